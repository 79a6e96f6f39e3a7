package table

import (
	"context"
	"time"

	"zmailer/internal/run/memo"
)

// cacheSize is how many answers are remembered.
const cacheSize = 4096

// cached remembers answers for a while, also that there is no such key, but no failures.
type cached struct {
	Table
	now     func() time.Time
	keep    time.Duration
	answers *memo.Memo[answer]
}

type answer struct {
	value Value
	ok    bool
}

func newCached(t Table, o Options) Table {
	if o.Keep <= 0 {
		return t
	}
	return &cached{Table: t, now: o.Now, keep: o.Keep, answers: memo.New[answer](cacheSize)}
}

// Lookup returns what is remembered, or asks.
func (c *cached) Lookup(ctx context.Context, key string) (Value, bool, error) {
	now := c.now()
	if a, known := c.answers.Get(key, now); known {
		return a.value, a.ok, nil
	}
	v, ok, err := c.Table.Lookup(ctx, key)
	if err == nil {
		c.answers.Put(key, answer{v, ok}, now, c.keep)
	}
	return v, ok, err
}
