package peer

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// A message to many recipients has all of them at once, however many RCPT commands wait
// for their answers.
func TestSourceSendsOneMessageToMany(t *testing.T) {
	const many = 1234
	sink := &Sink{}
	if err := sink.Start(); err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	src := &Source{Addr: sink.Addr(), Connections: 1, Messages: 1, From: "a@source.example",
		ToAll: func(int) []string {
			var list []string
			for i := range many {
				list = append(list, fmt.Sprintf("n%d@sink.example", i))
			}
			return list
		},
		Body: func(int) []byte { return []byte("Subject: x\r\n\r\n..dot\r\n") }}
	if err := src.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := sink.Messages()
	if len(got) != 1 || len(got[0].Recipients) != many || got[0].Recipients[many-1] != "n1233@sink.example" {
		t.Fatalf("got %d messages, the first with %d recipients, want one with %d", len(got), len(got[0].Recipients), many)
	}
	if got, want := string(got[0].Data), "Subject: x\r\n\r\n.dot\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A connection that a full queue of connections swallowed is made again, as often as is
// asked for.
func TestSourceComesAgainBeforeTheGreeting(t *testing.T) {
	for _, again := range []int{0, 1} {
		sink := &Sink{}
		if err := sink.Start(); err != nil {
			t.Fatal(err)
		}
		defer sink.Close()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() { // loses the first, and passes on the second
			for lost := false; ; lost = true {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if lost {
					go join(c, sink.Addr())
					continue
				}
				c.Close()
			}
		}()
		src := &Source{Addr: l.Addr().String(), Connections: 1, Messages: 1, Again: again, From: "a@source.example",
			To: func(int) string { return "b@sink.example" }, Body: func(int) []byte { return []byte("x\r\n") }}
		if err := src.Run(context.Background()); (err == nil) != (again > 0) {
			t.Errorf("%d times again: got %v", again, err)
		}
		if n, _ := sink.Count(); n != again {
			t.Errorf("%d times again: got %d messages", again, n)
		}
	}
}

// join passes what comes on to an address, and its answers back.
func join(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { _, _ = s.(*net.TCPConn).ReadFrom(c) }() // its end is seen below
	_, _ = c.(*net.TCPConn).ReadFrom(s)
}

func TestAwaitListenerWaitsForTheGreeting(t *testing.T) {
	sink := &Sink{}
	if err := sink.Start(); err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if err := AwaitListener(sink.Addr(), time.Minute); err != nil {
		t.Error(err)
	}
	free, err := FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	if err := AwaitListener(free, 0); err == nil {
		t.Errorf("nobody listens on %s, and it was awaited", free)
	}
}
