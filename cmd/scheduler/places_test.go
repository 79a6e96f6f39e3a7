package main

import (
	"net"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/helper/helpertest"
	"zmailer/internal/stage/scheduler/agents"
)

// newPlace returns a connection that is served, and its other end.
func newPlace(t *testing.T) (*place, *net.UnixConn) {
	t.Helper()
	one, other := helpertest.Pair(t)
	return &place{conn: one, s: &agents.Launcher{}}, other
}

// Connections that only wait do not shut the scheduler out, and it is the oldest that goes.
func TestANewConnectionGetsTheOldestUnusedPlace(t *testing.T) {
	t.Parallel()
	var l places
	var others []*net.UnixConn
	for range schedulersAtOnce + 2 {
		p, other := newPlace(t)
		if !l.take(p) {
			t.Fatal("it was refused")
		}
		others = append(others, other)
	}
	assert.Equal(t, len(l.all), schedulersAtOnce, "connections served")
	for i, c := range others {
		_, err := c.Write([]byte("{}"))
		if left := err != nil; left != (i < 2) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	for _, p := range append([]*place(nil), l.all...) {
		l.leave(p)
	}
	assert.Equal(t, len(l.all), 0, "connections left")
}
