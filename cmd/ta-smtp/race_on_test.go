//go:build race

package main

// raced: the race detector multiplies memory.
const raced = true
