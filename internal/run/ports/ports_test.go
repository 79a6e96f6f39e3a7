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

// Op11: 0.0.0.0 and [::] are opened beside each other, and each has its clients alone; an empty host
// has those of both.
func TestOp11EachFamilyHasItsWildcard(t *testing.T) {
	ctx := context.Background()
	dials := func(host, port string) bool {
		c, err := net.Dial("tcp", net.JoinHostPort(host, port))
		return err == nil && c.Close() == nil
	}
	if l, err := Listen(ctx, "[::1]:0", false); err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	} else {
		assert.Must(t, l.Close())
	}
	four := assert.Get(Listen(ctx, "0.0.0.0:0", false))(t)
	_, port, _ := net.SplitHostPort(four.Addr().String())
	assert.Equal(t, [2]bool{dials("127.0.0.1", port), dials("::1", port)}, [2]bool{true, false})
	six := assert.Get(Listen(ctx, "[::]:"+port, false))(t)
	assert.Must(t, four.Close())
	assert.Equal(t, [2]bool{dials("127.0.0.1", port), dials("::1", port)}, [2]bool{false, true})
	assert.Must(t, six.Close())
	both := assert.Get(Listen(ctx, ":"+port, false))(t)
	defer both.Close()
	assert.Equal(t, [2]bool{dials("127.0.0.1", port), dials("::1", port)}, [2]bool{true, true})
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
