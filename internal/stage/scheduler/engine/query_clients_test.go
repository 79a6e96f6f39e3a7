package engine

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
)

// queryClients is how many clients a query socket has at once.
const queryClients = 32

// Clients that say nothing do not keep others from the query socket: the one that has been
// idle the longest makes room.
func TestDel9IdleClientsDoNotFillTheQuerySocket(t *testing.T) {
	t.Parallel()
	r := newRig(t, "PARAM mailqsock = 127.0.0.1:0\n"+scriptConf("", ""), 0, nil)
	r.start()
	var idle []net.Conn
	for range queryClients {
		_, conn := r.dialTCP()
		idle = append(idle, conn)
	}
	r.dialTCP() // it gets a greeting
	r.wait(1, "msg=query-dropped")
	if _, err := io.ReadAll(idle[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the client that came first is still connected")
	}
}

// The administrator on this machine gets in though all places are taken by clients that
// are being served.
func TestDel9LocalAdministratorAlwaysGetsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, nil)
	r.start()
	for range queryClients {
		c, conn := r.dial()
		r.status(c)
		// It listens for events: it is not idle.
		if _, err := conn.Write([]byte("JSON EVENTS\n")); err != nil {
			t.Fatal(err)
		}
		var first [2]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil || first[0] != '+' {
			t.Fatal(string(first[:]), err)
		}
	}
	c, _ := r.dial()
	r.status(c)
	r.wait(1, "msg=query-dropped")
}
