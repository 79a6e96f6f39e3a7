package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// dice is one actor's random source and its voice in the schedule. One goroutine
// uses it.
type dice struct {
	*rand.Rand
	actor string
	to    *schedule
}

// newDice makes the source of an actor, the same for the same seed and name.
func newDice(seed uint64, actor string, to *schedule) *dice {
	h := fnv.New64a()
	_, _ = io.WriteString(h, actor) // a hash takes everything
	return &dice{rand.New(rand.NewPCG(seed, h.Sum64())), actor, to}
}

// chance is true with a probability of percent in a hundred.
func (d *dice) chance(percent int) bool { return d.IntN(100) < percent }

// between returns a time from low to high.
func (d *dice) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.Int64N(int64(high-low)+1))
}

// pause lets time pass between two actions; false: the load is over. The load's pace
// is made here, there is no event that it could follow.
func (d *dice) pause(ctx context.Context, low, high time.Duration) bool {
	return wait(ctx, d.between(low, high))
}

// wait waits; false: ctx is done.
func wait(ctx context.Context, length time.Duration) bool {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// say puts a line into the schedule.
func (d *dice) say(format string, args ...any) { d.to.say(d.actor, fmt.Sprintf(format, args...)) }

// schedule is the file that records what was done, and when.
type schedule struct {
	mu    sync.Mutex
	w     io.Writer
	begin time.Time
}

func (s *schedule) say(actor, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// A schedule that cannot be written is missed when it is read.
	_, _ = fmt.Fprintf(s.w, "%s %8.3f %-10s %s\n", now.UTC().Format("15:04:05.000"), now.Sub(s.begin).Seconds(), actor, text)
}

// drawn returns a number from 0 to 99 made of a seed and words: a decision that is the
// same in whatever order it is asked for.
func drawn(seed uint64, words ...any) int {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, append([]any{seed}, words...)...)
	return int(rand.NewPCG(h.Sum64(), seed).Uint64() % 100)
}
