package ports

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
)

// Op11: an address that overlaps with that of a listener which allows it is opened, also in place of
// the same one; a socket that does not ask for it gets none.
func TestOp11AddressesOverlapWhereBothAllowIt(t *testing.T) {
	ctx := context.Background()
	old := assert.Get(Listen(ctx, "127.0.0.1:0", false))(t)
	defer old.Close()
	_, port, _ := net.SplitHostPort(old.Addr().String())
	if l, err := Listen(ctx, ":"+port, true); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("the one in use does not allow it: %v, %v", l, err)
	}
	for _, addr := range []string{":" + port, "127.0.0.1:" + port} {
		assert.Must(t, Share(old, true))
		next := assert.Get(Listen(ctx, addr, true))(t)
		assert.Must(t, Share(old, false), Share(next, false))
		if l, err := Listen(ctx, addr, false); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s, one that does not ask for it: %v, %v", addr, l, err)
		}
		assert.Must(t, next.Close())
	}
}

// Op11: connections that wait in a listener are accepted before it is closed.
func TestOp11WaitingConnectionsAreDrained(t *testing.T) {
	l := assert.Get(Listen(context.Background(), "127.0.0.1:0", false))(t)
	for range 3 {
		c := assert.Get(net.Dial("tcp", l.Addr().String()))(t)
		defer c.Close()
	}
	drained := 0
	Drain(l, func(c net.Conn) {
		drained++
		assert.Must(t, c.Close())
	})
	assert.Equal(t, drained, 3)
	assert.Must(t, l.Close())
	Drain(l, func(net.Conn) { t.Error("a connection of a closed listener") })
}
