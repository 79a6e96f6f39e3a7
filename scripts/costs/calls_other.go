//go:build !amd64

package main

// legacy: there are none.
func legacy() map[int]string { return nil }
