package store

import (
	"context"
	"sync"
	"time"

	"zmailer/internal/stage/scheduler/builtin"
)

// asked finds out about conditions that take time, beside everything else: a name server
// or a file system that hangs holds up nobody but those who wait for it. Messages with
// the same condition share one look.
type asked struct {
	mu      sync.Mutex
	about   map[string]*answer
	running int
	asking  sync.WaitGroup // for tests
}

// answer is what is known of a condition.
type answer struct {
	at    time.Time // when it came, or was asked for while it has not come
	asks  bool      // it is being asked
	holds bool
}

const (
	askTimeout = 10 * time.Second
	// maxAsks is how many questions are under way at once.
	maxAsks = 8
	// answerHolds is how long an answer counts.
	answerHolds = time.Minute
	// askAgain is when a question that was just asked is looked at again.
	askAgain = time.Second
)

// ask tells what is known about a condition; it has it found out if that is nothing, or
// older than every. next is when to ask again.
func (a *asked) ask(host string, c *builtin.Condition, server string, every time.Duration, now time.Time) (holds bool, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.about == nil {
		a.about = map[string]*answer{}
	}
	w := a.about[host]
	if w == nil {
		w = &answer{}
		a.about[host] = w
	}
	// An answer counts until it was looked at, however short the interval is.
	every = max(every, 2*askAgain)
	switch {
	case w.asks:
		return false, now.Add(askAgain)
	case !w.at.IsZero() && now.Sub(w.at).Abs() < every:
		return w.holds, w.at.Add(every)
	case a.running >= maxAsks:
		return false, now.Add(askAgain)
	}
	a.forget(now)
	a.about[host] = w
	a.running++
	w.asks, w.at = true, now
	ask, began := c.Ask, time.Now()
	a.asking.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		err := ask(ctx, server)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.running--
		w.asks, w.holds, w.at = false, err == nil, now.Add(time.Since(began))
	})
	return false, now.Add(askAgain)
}

// forget drops answers that nobody has wanted for long.
func (a *asked) forget(now time.Time) {
	for host, w := range a.about {
		if !w.asks && now.Sub(w.at) > 10*answerHolds {
			delete(a.about, host)
		}
	}
}
