package table

import (
	"context"
	"sync"
	"time"
)

// cacheSize is how many answers are remembered.
const cacheSize = 4096

// cached remembers answers for a while, also that there is no such key, but no failures.
type cached struct {
	Table
	now  func() time.Time
	keep time.Duration

	mu      sync.Mutex
	answers map[string]answer
}

// answer is what a table has said.
type answer struct {
	value Value
	ok    bool
	until time.Time
}

func newCached(t Table, o Options) Table {
	if o.Keep <= 0 {
		return t
	}
	return &cached{Table: t, now: o.Now, keep: o.Keep, answers: map[string]answer{}}
}

// Lookup gives what is remembered, or asks.
func (c *cached) Lookup(ctx context.Context, key string) (Value, bool, error) {
	now := c.now()
	if v, ok, known := c.remembered(key, now); known {
		return v, ok, nil
	}
	v, ok, err := c.Table.Lookup(ctx, key)
	if err != nil {
		return v, ok, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) >= cacheSize {
		c.drop(now)
	}
	c.answers[key] = answer{v, ok, now.Add(c.keep)}
	return v, ok, nil
}

// remembered returns an answer that is kept; known is false if there is none.
func (c *cached) remembered(key string, now time.Time) (v Value, ok, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, known := c.answers[key]
	// A clock that was set back makes nothing last longer.
	left := a.until.Sub(now)
	return a.value, a.ok, known && left > 0 && left <= c.keep
}

// drop makes room: what is too old goes, and if that is little, half of the rest.
func (c *cached) drop(now time.Time) {
	for key, a := range c.answers {
		if !now.Before(a.until) {
			delete(c.answers, key)
		}
	}
	for key := range c.answers {
		if len(c.answers) <= cacheSize/2 {
			break
		}
		delete(c.answers, key)
	}
}
