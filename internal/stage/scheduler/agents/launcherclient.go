package agents

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

	"golang.org/x/sys/unix"

	"zmailer/internal/stage/scheduler/conf"
)

// ErrLauncher means that the agent launcher has ended: nothing can be delivered without it,
// the scheduler has to be started again.
var ErrLauncher = errors.New("the agent launcher has ended")

// errSilentLauncher means that the launcher has not answered a request.
var errSilentLauncher = errors.New("the agent launcher does not answer")

// LauncherRefusal is why a launcher cannot work: it cannot use the configuration. Another try
// helps only after the configuration was corrected.
type LauncherRefusal struct{ Reason string }

// Error implements error.
func (r *LauncherRefusal) Error() string { return r.Reason }

// LauncherClient is the scheduler's end of the connection to its launcher.
type LauncherClient struct {
	conn     *net.UnixConn
	patience time.Duration

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan launchAnswer // by the number of the request
	running map[uint64]*launched         // by the number of the request
	gone    chan struct{}                // closed when the connection has ended
}

// launchAnswer is a notice about a start, and the agent that was started.
type launchAnswer struct {
	launchNotice
	agent *launched
}

// NewLauncherClient takes a connection to a launcher, waits for its greeting, which has
// the reason if it cannot work, and says hello. A *LauncherRefusal: it cannot; another error
// may pass.
func NewLauncherClient(conn *net.UnixConn) (*LauncherClient, error) {
	return newLauncherClient(conn, launcherPatience)
}

func newLauncherClient(conn *net.UnixConn, patience time.Duration) (*LauncherClient, error) {
	c := &LauncherClient{conn: conn, patience: patience, waiting: map[uint64]chan launchAnswer{}, running: map[uint64]*launched{}, gone: make(chan struct{})}
	err := conn.SetReadDeadline(time.Now().Add(patience))
	n := launchNotice{}
	if err == nil {
		n, err = c.read()
	}
	if err == nil && n.Error != "" {
		err = &LauncherRefusal{Reason: n.Error}
	}
	// After the greeting: one that refuses hangs up, and what it has not read then takes the
	// place of the greeting (ECONNRESET).
	if err == nil {
		err = c.send(launchRequest{Hello: true}, nil)
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

// Gone is closed when the launcher has ended.
func (c *LauncherClient) Gone() <-chan struct{} { return c.gone }

func (c *LauncherClient) read() (n launchNotice, err error) {
	b := make([]byte, maxMessage)
	k, err := c.conn.Read(b)
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal(b[:k], &n)
}

func (c *LauncherClient) listen() {
	for {
		n, err := c.read()
		if err != nil {
			break
		}
		c.mu.Lock()
		switch {
		case n.Start != 0:
			a := launchAnswer{launchNotice: n}
			if n.Pid != 0 {
				a.agent = &launched{c: c, start: n.Start, pid: n.Pid, ended: make(chan string, 1)}
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
		to <- launchAnswer{launchNotice: launchNotice{Error: ErrLauncher.Error()}}
	}
	clear(c.running)
	clear(c.waiting)
}

// start has an agent started.
func (c *LauncherClient) start(channel, host string, in, out *os.File) (*launched, error) {
	answer := make(chan launchAnswer, 1)
	c.mu.Lock()
	c.next++
	o := launchRequest{Start: c.next, Channel: channel, Host: host}
	select {
	case <-c.gone:
		c.mu.Unlock()
		return nil, ErrLauncher
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
	n := launchAnswer{}
	select {
	case n = <-answer:
	case <-late.C:
		// An agent that it starts after all finds its input ended.
		c.forget(o)
		return nil, errSilentLauncher
	}
	if n.Error != "" {
		return nil, errors.New(n.Error)
	}
	return n.agent, nil
}

// ended returns the agent that a notice is about, nil if none is known. c.mu is held. A
// launcher of an earlier version gives the pid alone.
func (c *LauncherClient) ended(n launchNotice) *launched {
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

func (c *LauncherClient) forget(o launchRequest) {
	c.mu.Lock()
	delete(c.waiting, o.Start)
	c.mu.Unlock()
}

func (c *LauncherClient) send(o launchRequest, rights []byte) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	err = c.conn.SetWriteDeadline(time.Now().Add(c.patience))
	if err == nil {
		_, _, err = c.conn.WriteMsgUnix(b, rights, nil)
	}
	if err != nil {
		return fmt.Errorf("ask the agent launcher: %w", err)
	}
	return nil
}

// launched is an agent of the launcher.
type launched struct {
	c     *LauncherClient
	start uint64 // the number of the request
	pid   int
	ended chan string
}

// Wait implements handle.
func (p *launched) Wait() (string, error) { return <-p.ended, nil }

// Signal implements handle. The launcher knows whether it still runs.
func (p *launched) Signal(sig syscall.Signal) error {
	return p.c.send(launchRequest{Signal: int(sig), Agent: p.start, Pid: p.pid}, nil)
}

// elsewhere reports whether an agent has to be started by a process that may become other
// users.
func (l Launch) elsewhere() bool {
	_, err := conf.Credential(l.User, l.Group, false)
	return err != nil || l.Nice < 0 || filepath.Base(l.Argv[0]) == mailboxAgent
}
