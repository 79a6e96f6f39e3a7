package tasmtp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

func targets(addresses ...string) []target {
	var list []target
	for _, a := range addresses {
		list = append(list, target{network: "tcp", address: a, name: "mx.test"})
	}
	return list
}

// RFC 8305 §4
func TestFamiliesTakeTurnsAndIPv6IsFirst(t *testing.T) {
	cases := map[string]struct{ addrs, want []target }{
		"IPv4 alone":   {targets("192.0.2.2:25", "192.0.2.1:25"), targets("192.0.2.2:25", "192.0.2.1:25")},
		"IPv6 alone":   {targets("[2001:db8::2]:25", "[2001:db8::1]:25"), targets("[2001:db8::2]:25", "[2001:db8::1]:25")},
		"one of each":  {targets("192.0.2.1:25", "[2001:db8::1]:25"), targets("[2001:db8::1]:25", "192.0.2.1:25")},
		"more of IPv4": {targets("192.0.2.1:25", "192.0.2.2:25", "[2001:db8::1]:25"), targets("[2001:db8::1]:25", "192.0.2.1:25", "192.0.2.2:25")},
		"more of IPv6": {targets("[2001:db8::1]:25", "[2001:db8::2]:25", "192.0.2.1:25"), targets("[2001:db8::1]:25", "192.0.2.1:25", "[2001:db8::2]:25")},
		"none":         {nil, nil},
	}
	for name, c := range cases {
		assert.Same(t, interleave(c.addrs), c.want, name)
	}
}

// RFC 8305 §5: an address that is silent does not keep the next one waiting for its
// time-out, and is not connected to once another has won.
func TestSilentIPv6CostsAMoment(t *testing.T) {
	silent := fullListener(t, "[::1]:0")
	port := silent.Port
	sink := new(Sink).Start(t, "tcp", fmt.Sprint("127.0.0.1:", port))
	server := mxtest.Start(t, `
there.test. 300 IN MX 10 mx.test.
mx.test.    300 IN AAAA ::1
mx.test.    300 IN A 127.0.0.1
`)
	s := newStation(t, sink.Port(), server.Addr)
	start := time.Now()
	s.want(taproto.OK3, "smtp", "there.test")
	if got := time.Since(start); got < stagger || got > 10*time.Second {
		t.Errorf("it took %s; one address after the other would have taken 30s", got)
	}
}

// An address that refuses makes room for the next one at once; one that answers is
// alone.
func TestRefusedAddressMakesRoomAtOnce(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	for range 20 {
		var addrs []target
		for i := range 30 {
			addrs = append(addrs, targets(fmt.Sprintf("127.0.0.%d:%d", i+2, sink.Port()))...)
		}
		start := time.Now()
		a := s.relay.dial(context.Background(), origin{}, append(addrs, targets(sink.Addr())...))
		nc, got, why := a.nc, a.target, a.why
		if why != nil {
			t.Fatal(why.reply)
		}
		nc.Close()
		s.relay.openings.end(a.trial, false) // as open does
		if got.address != sink.Addr() || time.Since(start) > 30*stagger {
			t.Errorf("got %s in %s", got.address, time.Since(start))
		}
	}
	other := new(Sink).Start(t, "tcp", fmt.Sprint("127.0.0.2:", sink.Port()))
	a := s.relay.dial(context.Background(), origin{}, targets(sink.Addr(), other.Addr()))
	nc, why := a.nc, a.why
	if why != nil {
		t.Fatal(why.reply)
	}
	nc.Close()
	assert.Equal(t, other.Connects(), 0, "connections to the second address")
}

// What answers after the race is closed.
func TestLateConnectionIsClosed(t *testing.T) {
	ours, theirs := net.Pipe()
	ended := make(chan attempt, 2)
	ended <- attempt{why: &refusal{}}
	ended <- attempt{nc: ours}
	new(Relay).closeLate(ended, 2)
	if _, err := theirs.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}

// Z6: each family is connected to from the zone's source of it, and left out if there
// is none.
func TestRaceKeepsToTheSourcesOfItsZone(t *testing.T) {
	sink := new(Sink).Start(t, "", "")
	six := new(Sink).Start(t, "tcp", fmt.Sprint("[::1]:", sink.Port()))
	both := targets(six.Addr(), sink.Addr())
	v4 := &source{addr: netip.MustParseAddr("127.0.0.7")}
	v6 := &source{addr: netip.IPv6Loopback()}
	foreign := &source{addr: netip.MustParseAddr("2001:db8::1")}
	cases := map[string]struct {
		from   origin
		addrs  []target
		source *source
		local  string
		reply  string
	}{
		"IPv4 alone has a source":     {origin{v4: v4}, both, v4, "127.0.0.7", ""},
		"both have":                   {origin{v4: v4, v6: v6}, both, v6, "::1", ""},
		"any":                         {origin{}, both, nil, "::1", ""},
		"none is of the family":       {origin{v4: v4}, both[:1], nil, "", "no source of the zone is of the family"},
		"one source is not ours":      {origin{v4: v4, v6: foreign}, both, v4, "127.0.0.7", ""},
		"the only source is not ours": {origin{v6: foreign}, both, nil, "", "source 2001:db8::1 cannot be used"},
	}
	s := newStation(t, sink.Port(), "")
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a := s.relay.dial(context.Background(), c.from, c.addrs)
			nc, src, why := a.nc, a.source, a.why
			if why != nil {
				if c.reply == "" || !strings.Contains(why.reply, c.reply) || why.weight != weightOurs {
					t.Errorf("got %+v, want %q", why, c.reply)
				}
				return
			}
			defer nc.Close()
			got, _, _ := net.SplitHostPort(nc.LocalAddr().String())
			if got != c.local || src != c.source {
				t.Errorf("it came from %s", got)
			}
		})
	}
}

// fullListener returns an address whose queue of connections is full, so that the kernel
// answers no more of them.
func fullListener(t *testing.T, address string) *net.TCPAddr {
	t.Helper()
	want := netip.MustParseAddrPort(address)
	family, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(want.Addr().AsSlice()), Port: int(want.Port())})
	if want.Addr().Is6() {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: want.Addr().As16(), Port: int(want.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	assert.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	assert.Must(t, unix.Bind(fd, at))
	assert.Must(t, unix.Listen(fd, 0))
	name, err := unix.Getsockname(fd)
	assert.Must(t, err)
	addr := &net.TCPAddr{IP: want.Addr().AsSlice()}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		addr.Port = name.Port
	case *unix.SockaddrInet6:
		addr.Port = name.Port
	}
	for range 10 {
		nc, err := net.DialTimeout("tcp", addr.String(), 200*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { nc.Close() })
	}
	t.Skip("the kernel keeps on answering for a full queue")
	return nil
}
