package tasmtptest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Far stands before a server and is as far away from us as its bytes take in each
// direction. It gives its port on 127.0.0.1.
func Far(t testing.TB, to string, way time.Duration) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &far{end: make(chan struct{}), way: way}
	f.all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			f.all.Go(func() { f.carry(server, near) })
			f.all.Go(func() { f.carry(near, server) })
			f.all.Go(func() {
				<-f.end
				near.Close()
				server.Close()
			})
		}
	})
	t.Cleanup(func() {
		close(f.end)
		l.Close()
		f.all.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

type far struct {
	all sync.WaitGroup
	end chan struct{}
	way time.Duration
}

// carry moves bytes, each as much later as the way takes, and then the end.
func (f *far) carry(to, from net.Conn) {
	type piece struct {
		b  []byte
		at time.Time
	}
	pieces := make(chan piece, 10_000)
	f.all.Go(func() {
		defer close(pieces)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			pieces <- piece{b[:n], time.Now().Add(f.way)}
		}
	})
	for p := range pieces {
		f.wait(p.at)
		_, _ = to.Write(p.b)
	}
	f.wait(time.Now().Add(f.way))
	_ = to.(*net.TCPConn).CloseWrite()
}

func (f *far) wait(until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-f.end:
	}
}
