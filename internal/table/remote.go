package table

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
	"zmailer/internal/wire/socketmap"
)

// How long a source that keeps failing is left alone: nothing after the first two
// failures, which one lookup may meet, then twice as long each time.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// remote is a source that speaks the socketmap protocol, a server or a child. Each of its
// connections answers one question at a time.
type remote struct {
	source  string // for operators
	name    string // of the map
	o       Options
	connect func(ctx context.Context) (*conn, error)
	slots   *slots // one per connection that may be open
	outage  *config.Outage

	mu     sync.Mutex
	idle   []*conn
	closed bool
	fails  int       // failures since the last answer
	next   time.Time // no connection is opened before
	last   error     // the last failure
}

// conn is a connection to a server or child.
type conn struct {
	r           *bufio.Reader
	w           io.Writer
	from        syscall.Conn // what r reads
	setDeadline func(time.Time) error
	close       func(orderly bool)
}

func newRemote(source, name string, connections int, o Options) *remote {
	return &remote{source: source, name: name, o: o, outage: config.NewOutage(o.Keeper, config.Backend{Name: source, Remedy: "start the server, or correct the table's settings"}), slots: newSlots(connections, o.Parallel)}
}

// Lookup asks for a key. A connection that breaks is replaced once: the server may have
// been restarted since it was asked last. The time limit holds for the wait for a
// connection and for the answer, each: a server that takes four seconds for a key answers
// all of many that are asked at once.
func (r *remote) Lookup(ctx context.Context, key string) (Value, bool, error) {
	if err := r.slots.take(ctx, r.o.Timeout); err != nil {
		return r.failed(err)
	}
	defer r.slots.give()
	limited, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	reply, err := r.ask(limited, key)
	if err != nil && limited.Err() == nil {
		reply, err = r.ask(limited, key)
	}
	if err != nil {
		err = r.reason(ctx, limited, err)
		if ctx.Err() == nil {
			r.outage.Failed(err)
		}
		return r.failed(err)
	}
	switch reply.Status {
	case socketmap.OK:
		r.outage.Answers()
		return Value{reply.Text, Nobody, r.source}, true, nil
	case socketmap.NotFound:
		r.outage.Answers()
		return Value{}, false, nil
	}
	err = fmt.Errorf("it answers %s %s", reply.Status, reply.Text)
	r.outage.Failed(err)
	return r.failed(err)
}

func (r *remote) failed(err error) (Value, bool, error) {
	return Value{}, false, fmt.Errorf("%s: %w", r.source, err)
}

// reason is the cause of a failure: the time limit, the caller, or the error itself.
func (r *remote) reason(ctx, limited context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		// The last two: the connection's clock was first.
		return fmt.Errorf("no answer within %v: %w", r.o.Timeout, err)
	}
	return err
}

// ask puts one question on one connection.
func (r *remote) ask(ctx context.Context, key string) (socketmap.Reply, error) {
	c, err := r.take(ctx)
	if err != nil {
		return socketmap.Reply{}, err
	}
	// A deadline of the connection outlives no question: a late answer would be taken
	// for that of the next.
	stop := context.AfterFunc(ctx, func() { _ = c.setDeadline(time.Unix(1, 0)) })
	reply, err := socketmap.Ask(c.r, c.w, r.name, key)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.close(false)
		r.down(ctx, err)
		return socketmap.Reply{}, err
	}
	r.up(c)
	return reply, nil
}

// take returns an idle connection or a new one.
func (r *remote) take(ctx context.Context) (*conn, error) {
	r.mu.Lock()
	for len(r.idle) > 0 {
		c := r.idle[len(r.idle)-1]
		r.idle = r.idle[:len(r.idle)-1]
		if !c.stale() {
			r.mu.Unlock()
			return c, nil
		}
		go c.close(false)
	}
	closed, last, left := r.closed, r.last, r.next.Sub(r.o.Now())
	r.mu.Unlock()
	if closed {
		return nil, os.ErrClosed
	}
	if left > 0 && left <= lastPause {
		return nil, fmt.Errorf("asked again in %v: %w", left.Round(time.Millisecond), last)
	}
	c, err := r.connect(ctx)
	if err != nil {
		r.down(ctx, err)
	}
	return c, err
}

// stale reports whether a connection has ended or holds an answer to no question.
func (c *conn) stale() bool {
	raw, err := c.from.SyscallConn()
	if err != nil {
		return true
	}
	ready := 0
	perr := raw.Control(func(fd uintptr) {
		ready, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return ready != 0 || err != nil || perr != nil
}

// up puts a connection back that has answered.
func (r *remote) up(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails > 0 {
		r.o.Log.Info("source-up", "source", r.source)
	}
	r.fails, r.last, r.next = 0, nil, time.Time{}
	if r.closed || len(r.idle) >= r.slots.first {
		go c.close(true)
		return
	}
	r.idle = append(r.idle, c)
}

// down notes a failure, and lets the next attempts wait after some.
func (r *remote) down(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the caller has no more use for it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails++
	r.last = err
	if r.fails > 1 {
		r.next = r.o.Now().Add(min(firstPause<<min(r.fails-2, 10), lastPause))
	}
	if r.fails == 2 {
		r.o.Log.Warn("source-down", "source", r.source, "reason", err)
	}
}

// Close ends the connections that are idle; others end with their answer.
func (r *remote) Close() error {
	r.mu.Lock()
	idle := r.idle
	r.idle, r.closed = nil, true
	r.mu.Unlock()
	for _, c := range idle {
		c.close(true)
	}
	return nil
}
