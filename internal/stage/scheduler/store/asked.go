package store

import (
	"context"
	"sync"
	"time"

	"zmailer/internal/stage/scheduler/builtin"
)

// asked checks conditions that take time in goroutines of their own, so that a slow name
// server or file system delays only the mail that waits for it. Messages with the same
// condition share a check.
type asked struct {
	mu      sync.Mutex
	about   map[string]*answer
	running int
	asking  sync.WaitGroup // for tests
}

// answer is the state of a condition.
type answer struct {
	at    time.Time // when the answer came, or the check began
	asks  bool      // a check is running
	holds bool
}

const (
	askTimeout = 10 * time.Second
	// maxAsks is the number of checks at once.
	maxAsks = 8
	// answerHolds is how long an answer is used.
	answerHolds = time.Minute
	// askAgain is when the caller returns for an answer that is on its way.
	askAgain = time.Second
)

// ask returns the state of a condition, and starts a check if it is unknown or older than
// every. next is when to call again.
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
	// An answer is used at least once, however short the interval is.
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

// forget drops answers that were not used for long.
func (a *asked) forget(now time.Time) {
	for host, w := range a.about {
		if !w.asks && now.Sub(w.at) > 10*answerHolds {
			delete(a.about, host)
		}
	}
}
