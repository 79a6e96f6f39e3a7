package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// crowd is clients that come to no end: of three one is idle after its greeting, one sends a
// command and one a message, a byte each second. Who is disconnected connects again.
type crowd struct {
	listen  string
	here    atomic.Int64 // that have come as far as they want to
	running sync.WaitGroup
	end     context.CancelFunc
}

// crowdPerAddress is how many of a crowd have one address.
const crowdPerAddress = 50

// gather opens n connections to the system and waits until they are there.
func (w *world) gather(n int) (*crowd, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &crowd{listen: w.listen, end: cancel}
	for i := range n {
		from := &net.TCPAddr{IP: net.IPv4(127, 77, byte(i/crowdPerAddress/200), byte(1+i/crowdPerAddress%200))}
		c.running.Go(func() {
			for ctx.Err() == nil {
				pause(ctx, rand.N(2*time.Second))
				c.stay(ctx, i, from)
			}
		})
	}
	for until := time.Now().Add(time.Minute); c.here.Load() < int64(n); pause(ctx, 100*time.Millisecond) {
		if time.Now().After(until) {
			here := c.here.Load()
			c.leave()
			return nil, fmt.Errorf("%d of %d clients have a connection", here, n)
		}
	}
	return c, nil
}

func (c *crowd) leave() {
	c.end()
	c.running.Wait()
}

// stay is one connection of client i.
func (c *crowd) stay(ctx context.Context, i int, from net.Addr) {
	d := net.Dialer{LocalAddr: from}
	conn, err := d.DialContext(ctx, "tcp", c.listen)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	in := bufio.NewReaderSize(conn, 512)
	steps := []string{"EHLO x.example\r\n"}
	if i%3 == 2 {
		steps = append(steps, "MAIL FROM:<x@x.example>\r\n", "RCPT TO:<x@bench.example>\r\n", "DATA\r\n")
	}
	if !answered(in) {
		return
	}
	for _, step := range steps {
		if _, err := conn.Write([]byte(step)); err != nil || !answered(in) {
			return
		}
	}
	c.here.Add(1)
	defer c.here.Add(-1)
	if i%3 == 0 {
		_ = answered(in) // it returns when the server ends the connection
		return
	}
	for pause(ctx, rand.N(time.Second)); ctx.Err() == nil; pause(ctx, time.Second) {
		if _, err := conn.Write([]byte{'x'}); err != nil {
			return
		}
	}
}

// answered reads a reply and reports whether it is positive.
func answered(in *bufio.Reader) bool {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil || len(line) < 4 || line[0] != '2' && line[0] != '3' {
			return false
		}
		if line[3] == ' ' {
			return true
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// beside compares the rate with that beside a crowd: bursts in turn to one running system.
func beside(o options) (err error) {
	w, err := open(o, &ours{bin: o.bin, settings: fmt.Sprintf("SMTPCONNECTIONS=%d\nLIMITSEXEMPT=127.0.0.1/32\nRCPTCHECK=untrusted\n", 2*o.crowd)}, nil)
	if err != nil {
		return err
	}
	defer func() {
		_, cerr := w.close(err)
		err = cerr // with ours
	}()
	if _, err := w.burst(o.messages, o.connections, o.size); err != nil { // agents start
		return err
	}
	var rates, costs []float64 // ratios
	for i := range o.runs {
		var rate, cpu [2]float64 // alone, beside the crowd
		for j := range rate {
			with := (i + j) % 2
			if rate[with], cpu[with], err = w.oneBeside(o, with == 1); err != nil {
				return err
			}
		}
		rates, costs = append(rates, rate[1]/rate[0]), append(costs, cpu[1]/cpu[0])
		fmt.Printf("run %d alone %.0f/s and %.0f µs/message, beside %d clients %.0f/s and %.0f µs: %.3f and %.3f\n",
			i+1, rate[0], cpu[0], o.crowd, rate[1], cpu[1], rates[i], costs[i])
	}
	slices.Sort(rates)
	slices.Sort(costs)
	fmt.Printf("\nmedians of %d: %.3f of the rate, %.3f of the system's CPU per message without them\n", o.runs, rates[len(rates)/2], costs[len(costs)/2])
	return nil
}

// oneBeside is one burst: the rate, and the system's processor time per message in
// microseconds.
func (w *world) oneBeside(o options, with bool) (rate, cpu float64, err error) {
	if with {
		c, err := w.gather(o.crowd)
		if err != nil {
			return 0, 0, err
		}
		defer c.leave()
	}
	before := w.busy()
	t, err := w.burst(o.messages, o.connections, o.size)
	return t.delivered, float64((w.busy() - before).Microseconds()) / float64(o.messages), err
}
