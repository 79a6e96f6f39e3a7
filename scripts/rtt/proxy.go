package main

import (
	"net"
	"sync"
	"time"
)

// proxy stands before a server and is as far away as its bytes take.
type proxy struct {
	l   net.Listener
	to  string
	way time.Duration
	all sync.WaitGroup
	end chan struct{}
}

func newProxy(to string, way time.Duration) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{l: l, to: to, way: way, end: make(chan struct{})}
	p.all.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) close() {
	close(p.end)
	p.l.Close()
	p.all.Wait()
}

func (p *proxy) accept() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		p.all.Go(func() {
			defer near.Close()
			p.wait(time.Now().Add(2 * p.way)) // the opening of the connection
			far, err := net.Dial("tcp", p.to)
			if err != nil {
				return
			}
			defer far.Close()
			stop := make(chan struct{})
			p.all.Go(func() {
				select {
				case <-p.end:
					near.Close()
					far.Close()
				case <-stop:
				}
			})
			var both sync.WaitGroup
			both.Go(func() { p.carry(far, near) })
			both.Go(func() { p.carry(near, far) })
			both.Wait()
			close(stop)
		})
	}
}

// carry moves bytes, each as much later as the way takes, and then the end.
func (p *proxy) carry(to, from net.Conn) {
	type piece struct {
		b  []byte
		at time.Time
	}
	pieces := make(chan piece, 10_000)
	p.all.Go(func() {
		defer close(pieces)
		for {
			b := make([]byte, 64<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			pieces <- piece{b[:n], time.Now().Add(p.way)}
		}
	})
	for x := range pieces {
		p.wait(x.at)
		if _, err := to.Write(x.b); err != nil {
			from.Close()
		}
	}
	p.wait(time.Now().Add(p.way))
	to.(*net.TCPConn).CloseWrite()
}

func (p *proxy) wait(until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-p.end:
	}
}
