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

	"golang.org/x/sys/unix"
)

// crowd is clients that come to no end: of three one is idle after its greeting, one sends a
// command and one a message, a byte each second. Who is disconnected connects again.
type crowd struct {
	listen  string
	here    atomic.Int64 // that have come as far as they want to
	running sync.WaitGroup
	end     context.CancelFunc
}

const (
	// crowdPerAddress is how many of a crowd have one address.
	crowdPerAddress = 50
	// steady is how long a crowd is there before the load begins.
	steady = 10 * time.Second
)

// gather opens n connections to an address and waits until they are there.
func gather(listen string, n int) (*crowd, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &crowd{listen: listen, end: cancel}
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
	steps := []string{lastCommand}
	if i%3 == 2 {
		steps = []string{"EHLO x.example\r\n", "MAIL FROM:<x@x.example>\r\n", "RCPT TO:<x@bench.example>\r\n", "DATA\r\n"}
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

// lastCommand is the only one of a client that sends no message.
const lastCommand = "EHLO idle.example\r\n"

// idler is a server that reads nothing after lastCommand and DATA: what a crowd costs there is
// the work of the crowd itself and of the kernel, on the same processors.
type idler struct{ net.Listener }

func startIdler() (*idler, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &idler{l}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go idle(conn.(*net.TCPConn))
		}
	}()
	return s, nil
}

// idle serves one connection. It ends when the client closes it.
func idle(conn *net.TCPConn) {
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 512)
	reply := "220 idle\r\n"
	for {
		if _, err := conn.Write([]byte(reply)); err != nil || reply[0] == '3' {
			break
		}
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch reply = "250 ok\r\n"; line {
		case "DATA\r\n":
			reply = "354 go on\r\n"
		case lastCommand:
			reply = "350 go on\r\n"
		}
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // without it this process works more, not less
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1<<20)
	})
	_, _ = conn.Read(make([]byte, 1)) // it returns when the client has closed
}

// beside compares the rate with that beside a crowd, and beside the same crowd at a server that
// does nothing: bursts in turn to one running system.
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
	elsewhere, err := startIdler()
	if err != nil {
		return err
	}
	defer elsewhere.Close()
	crowds := []string{"", elsewhere.Addr().String(), w.listen}
	var rates, costs, share [3][]float64 // of those without a crowd; share: of those beside one elsewhere
	for i := range o.runs {
		var rate, cpu [3]float64
		for j := range crowds {
			at := (i + j) % len(crowds)
			if rate[at], cpu[at], err = w.oneBeside(o, crowds[at]); err != nil {
				return err
			}
		}
		for at := range crowds {
			rates[at], costs[at] = append(rates[at], rate[at]/rate[0]), append(costs[at], cpu[at]/cpu[0])
			share[at] = append(share[at], rate[at]/rate[1])
		}
		fmt.Printf("run %d alone %.0f/s and %.0f µs/message; beside %d clients elsewhere %.0f/s and %.0f µs; beside %d of its own %.0f/s and %.0f µs\n",
			i+1, rate[0], cpu[0], o.crowd, rate[1], cpu[1], o.crowd, rate[2], cpu[2])
	}
	median := func(of []float64) float64 {
		slices.Sort(of)
		return of[len(of)/2]
	}
	fmt.Printf("\nmedians of %d: the rate beside clients of its own is %.3f of that beside clients elsewhere and %.3f of that without any, the system's CPU per message %.3f of that without any (%.3f with clients elsewhere)\n",
		o.runs, median(share[2]), median(rates[2]), median(costs[2]), median(costs[1]))
	return nil
}

// oneBeside is one burst beside a crowd at an address, if there is one: the rate, and the system's
// processor time per message in microseconds.
func (w *world) oneBeside(o options, crowd string) (rate, cpu float64, err error) {
	if crowd != "" {
		c, err := gather(crowd, o.crowd)
		if err != nil {
			return 0, 0, err
		}
		defer c.leave()
		pause(context.Background(), steady)
	}
	before := w.busy()
	t, err := w.burst(o.messages, o.connections, o.size)
	return t.delivered, float64((w.busy() - before).Microseconds()) / float64(o.messages), err
}
