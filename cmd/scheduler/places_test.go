package main

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/scheduler"
)

// newPlace is a connection that is served, and its other end.
func newPlace(t *testing.T) (*place, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = unixConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { ends[i].Close() })
	}
	return &place{conn: ends[0], s: &scheduler.Starter{}}, ends[1]
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
	if len(l.all) != schedulersAtOnce {
		t.Errorf("%d are served, want %d", len(l.all), schedulersAtOnce)
	}
	for i, c := range others {
		_, err := c.Write([]byte("{}"))
		if left := err != nil; left != (i < 2) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	for _, p := range append([]*place(nil), l.all...) {
		l.leave(p)
	}
	if len(l.all) != 0 {
		t.Errorf("%d are left", len(l.all))
	}
}
