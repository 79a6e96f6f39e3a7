package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/stage/scheduler/conf"

	"golang.org/x/sys/unix"
)

// ErrStarter means that the process that starts agents has ended: nothing can be
// delivered without it, the scheduler has to be started again.
var ErrStarter = errors.New("the starter of agents has ended")

// errSilentStarter means that the starter has not said what became of an order.
var errSilentStarter = errors.New("the starter of agents does not answer")

// StarterRefusal is what keeps a starter from working, in its own words: a configuration
// that it cannot use. Asking again does not help before somebody has mended it.
type StarterRefusal struct{ Reason string }

// Error implements error.
func (r *StarterRefusal) Error() string { return r.Reason }

// StarterClient is the scheduler's end of the connection to its starter.
type StarterClient struct {
	conn     *net.UnixConn
	patience time.Duration

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan starterAnswer // by the number of the order
	running map[uint64]*started           // by the number of the order
	gone    chan struct{}                 // closed when the connection has ended
}

// starterAnswer is a notice about a start, and the agent that was started.
type starterAnswer struct {
	starterNotice
	agent *started
}

// NewStarterClient takes a connection to a starter, waits for its greeting, which tells
// whether it can work, and says hello. A *StarterRefusal: it cannot; another error may pass.
func NewStarterClient(conn *net.UnixConn) (*StarterClient, error) {
	return newStarterClient(conn, starterPatience)
}

func newStarterClient(conn *net.UnixConn, patience time.Duration) (*StarterClient, error) {
	c := &StarterClient{conn: conn, patience: patience, waiting: map[uint64]chan starterAnswer{}, running: map[uint64]*started{}, gone: make(chan struct{})}
	err := conn.SetReadDeadline(time.Now().Add(patience))
	n := starterNotice{}
	if err == nil {
		n, err = c.hear()
	}
	if err == nil && n.Error != "" {
		err = &StarterRefusal{Reason: n.Error}
	}
	// After the greeting: one that refuses hangs up, and what it has not read then takes the
	// place of what it said (ECONNRESET).
	if err == nil {
		err = c.send(starterOrder{Hello: true}, nil)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, fmt.Errorf("start agents: %w", err)
	}
	go c.listen()
	return c, nil
}

// Gone is closed when the starter has ended.
func (c *StarterClient) Gone() <-chan struct{} { return c.gone }

func (c *StarterClient) hear() (n starterNotice, err error) {
	b := make([]byte, maxOrder)
	k, err := c.conn.Read(b)
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal(b[:k], &n)
}

func (c *StarterClient) listen() {
	for {
		n, err := c.hear()
		if err != nil {
			break
		}
		c.mu.Lock()
		switch {
		case n.Start != 0:
			a := starterAnswer{starterNotice: n}
			if n.Pid != 0 {
				a.agent = &started{c: c, start: n.Start, pid: n.Pid, ended: make(chan string, 1)}
				c.running[n.Start] = a.agent
			}
			if to := c.waiting[n.Start]; to != nil {
				delete(c.waiting, n.Start)
				to <- a
			}
		case n.Ended != "":
			if p := c.ended(n); p != nil {
				p.ended <- n.Ended
				delete(c.running, p.start)
			}
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.gone)
	for _, p := range c.running {
		p.ended <- "unknown"
	}
	for _, to := range c.waiting {
		to <- starterAnswer{starterNotice: starterNotice{Error: ErrStarter.Error()}}
	}
	clear(c.running)
	clear(c.waiting)
}

// start has an agent started.
func (c *StarterClient) start(channel, host string, in, out *os.File) (*started, error) {
	answer := make(chan starterAnswer, 1)
	c.mu.Lock()
	c.next++
	o := starterOrder{Start: c.next, Channel: channel, Host: host}
	select {
	case <-c.gone:
		c.mu.Unlock()
		return nil, ErrStarter
	default:
	}
	c.waiting[o.Start] = answer
	c.mu.Unlock()
	if err := c.send(o, unix.UnixRights(int(in.Fd()), int(out.Fd()))); err != nil {
		c.forget(o)
		return nil, err
	}
	late := time.NewTimer(c.patience)
	defer late.Stop()
	n := starterAnswer{}
	select {
	case n = <-answer:
	case <-late.C:
		// An agent that it starts after all finds its input ended.
		c.forget(o)
		return nil, errSilentStarter
	}
	if n.Error != "" {
		return nil, errors.New(n.Error)
	}
	return n.agent, nil
}

// ended is the agent that a notice is about, nil if none is known. c.mu is held. A starter
// of an earlier version gives the pid alone.
func (c *StarterClient) ended(n starterNotice) *started {
	if n.Agent != 0 {
		return c.running[n.Agent]
	}
	for _, p := range c.running {
		if p.pid == n.Pid {
			return p
		}
	}
	return nil
}

func (c *StarterClient) forget(o starterOrder) {
	c.mu.Lock()
	delete(c.waiting, o.Start)
	c.mu.Unlock()
}

func (c *StarterClient) send(o starterOrder, rights []byte) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	err = c.conn.SetWriteDeadline(time.Now().Add(c.patience))
	if err == nil {
		_, _, err = c.conn.WriteMsgUnix(b, rights, nil)
	}
	if err != nil {
		return fmt.Errorf("ask the starter of agents: %w", err)
	}
	return nil
}

// started is an agent of the starter.
type started struct {
	c     *StarterClient
	start uint64 // the number of the order
	pid   int
	ended chan string
}

// Wait implements process.
func (p *started) Wait() (string, error) { return <-p.ended, nil }

// Signal implements process. The starter knows whether it still runs.
func (p *started) Signal(sig syscall.Signal) error {
	return p.c.send(starterOrder{Signal: int(sig), Agent: p.start, Pid: p.pid}, nil)
}

// elsewhere tells whether an agent has to be started by somebody who may become others.
func (l launch) elsewhere() bool {
	_, err := conf.Credential(l.user, l.group, false)
	return err != nil || l.nice < 0 || filepath.Base(l.argv[0]) == mailboxAgent
}
