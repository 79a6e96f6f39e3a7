package peer

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Far stands before a server, on 127.0.0.1, and is as far away as its bytes take: each
// comes later in either direction, and the first ones by a round trip more, which opening
// a connection takes.
type Far struct {
	To  string        // the server's host:port
	Way time.Duration // in one direction

	l   net.Listener
	n   atomic.Int64
	all sync.WaitGroup
	end chan struct{}
}

// Start listens on Addr.
func (f *Far) Start() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f.l, f.end = l, make(chan struct{})
	f.all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			f.n.Add(1)
			f.all.Go(func() { f.join(near) })
		}
	})
	return nil
}

// Addr is "127.0.0.1:port".
func (f *Far) Addr() string { return f.l.Addr().String() }

// Port is that of Addr.
func (f *Far) Port() int { return f.l.Addr().(*net.TCPAddr).Port }

// Connections counts those there were.
func (f *Far) Connections() int { return int(f.n.Load()) }

// Close ends it and its connections.
func (f *Far) Close() {
	close(f.end)
	f.l.Close()
	f.all.Wait()
}

func (f *Far) join(near net.Conn) {
	defer near.Close()
	f.wait(time.Now().Add(2 * f.Way))
	server, err := net.Dial("tcp", f.To)
	if err != nil {
		return
	}
	defer server.Close()
	over := make(chan struct{})
	defer close(over)
	f.all.Go(func() {
		select {
		case <-f.end:
			near.Close()
			server.Close()
		case <-over:
		}
	})
	var both sync.WaitGroup
	both.Go(func() { f.carry(server, near) })
	both.Go(func() { f.carry(near, server) })
	both.Wait()
}

// carry moves bytes, each as much later as the way takes, and then the end.
func (f *Far) carry(to, from net.Conn) {
	type piece struct {
		b  []byte
		at time.Time
	}
	pieces := make(chan piece, 10_000)
	f.all.Go(func() {
		defer close(pieces)
		for {
			b := make([]byte, 64<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			pieces <- piece{b[:n], time.Now().Add(f.Way)}
		}
	})
	for p := range pieces {
		f.wait(p.at)
		_, _ = to.Write(p.b) // the peer may have ended
	}
	f.wait(time.Now().Add(f.Way))
	_ = to.(*net.TCPConn).CloseWrite()
}

func (f *Far) wait(until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-f.end:
	}
}
