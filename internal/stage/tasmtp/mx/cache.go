package mx

import (
	"context"
	"sync"
	"time"
)

// question is what an answer is kept under.
type question struct {
	name  string // canonical
	qtype uint16
}

// cache keeps answers for their time, at most max of them. Whoever asks while the
// same question is out waits for its answer.
type cache struct {
	mu      sync.Mutex
	entries map[question]*entry
	max     int
}

// entry is a question that is out, until ready is closed, or its answer.
type entry struct {
	ready   chan struct{}
	a       *answer
	err     error
	expires time.Time
}

// get returns the answer from the table or from ask. An error is given to those who
// wait for it and not kept.
func (c *cache) get(ctx context.Context, q question, now func() time.Time, ask func() (*answer, time.Duration, error)) (*answer, error) {
	c.mu.Lock()
	e, ok := c.entries[q]
	if ok && e.known() && !now().Before(e.expires) {
		ok = false
	}
	if ok {
		c.mu.Unlock()
		select {
		case <-e.ready:
			return e.a, e.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c.makeRoom(now())
	e = &entry{ready: make(chan struct{})}
	c.entries[q] = e
	c.mu.Unlock()

	a, ttl, err := ask()
	c.mu.Lock()
	defer c.mu.Unlock()
	e.a, e.err, e.expires = a, err, now().Add(ttl)
	close(e.ready)
	if (err != nil || ttl <= 0) && c.entries[q] == e {
		delete(c.entries, q)
	}
	return a, err
}

// known reports whether an entry has its answer.
func (e *entry) known() bool {
	select {
	case <-e.ready:
		return true
	default:
		return false
	}
}

// makeRoom drops expired entries if the table is full, and if that is not enough
// any one.
func (c *cache) makeRoom(now time.Time) {
	if len(c.entries) < c.max {
		return
	}
	for q, e := range c.entries {
		if e.known() && !now.Before(e.expires) {
			delete(c.entries, q)
		}
	}
	for q, e := range c.entries {
		if len(c.entries) < c.max {
			return
		}
		if e.known() {
			delete(c.entries, q)
		}
	}
}
