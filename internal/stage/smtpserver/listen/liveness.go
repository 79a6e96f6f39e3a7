package listen

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// Liveness finds out whether every listener still accepts, for the watchdog: Check
// interrupts accept(2) of each, and each accept loop answers. alive is called when all have.
type Liveness struct {
	listeners []*Listener
	round     atomic.Uint64
	alive     func()
}

// deadliner is a listener whose Accept can be interrupted.
type deadliner interface{ SetDeadline(t time.Time) error }

var _ deadliner = (*net.TCPListener)(nil)

// NewLiveness prepares a check of all listeners that can be interrupted.
func NewLiveness(listeners []*Listener, alive func()) *Liveness {
	r := &Liveness{alive: alive}
	for _, l := range listeners {
		if _, ok := l.Listener.(deadliner); ok {
			l.check.Store(r)
			r.listeners = append(r.listeners, l)
		}
	}
	return r
}

// Check begins a round.
func (r *Liveness) Check() {
	r.round.Add(1)
	for _, l := range r.listeners {
		// A closed listener does not answer: the server is ending.
		_ = l.Listener.(deadliner).SetDeadline(time.Unix(1, 0))
	}
}

// answer reports whether an error of Accept is a check, and answers it.
func (l *Listener) answer(err error) bool {
	r := l.check.Load()
	if r == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	round := r.round.Load()
	if l.Listener.(deadliner).SetDeadline(time.Time{}) != nil {
		return false
	}
	l.answered.Store(round)
	for _, other := range r.listeners {
		if other.answered.Load() < round {
			return true
		}
	}
	r.alive()
	return true
}
