package policy

import (
	"sync"
	"time"
)

// rates are the counters of rate(). Each counts the events of a period in slices of a
// tenth of it; a slice is forgotten when all of it is older than the period.
type rates struct {
	mu   sync.Mutex
	keys map[rateKey]*counter
}

type rateKey struct {
	name   string
	period time.Duration
}

const sliced = 10

// counter holds the slices of a period and the one that is not over yet.
type counter struct {
	slice  int64 // number of the latest, in slices since 1970
	counts [sliced + 1]int64
}

// maxCounters bounds what is remembered. When there are more, those that count nothing
// now go first, then any.
const maxCounters = 100_000

func newRates() *rates { return &rates{keys: map[rateKey]*counter{}} }

// count adds n events, and gives how many there were in the last period, these included.
func (r *rates) count(name string, period time.Duration, n int64, now time.Time, play bool) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := rateKey{name, period}
	c := r.keys[k]
	slice := now.UnixNano() / max(int64(period)/sliced, 1)
	if c == nil {
		if play {
			return n
		}
		if len(r.keys) >= maxCounters {
			r.forget(now)
		}
		c = &counter{slice: slice}
		r.keys[k] = c
	}
	c.advance(slice)
	sum := n
	for _, v := range c.counts {
		sum += v
	}
	if !play {
		c.counts[c.slice%(sliced+1)] += n
	}
	return sum
}

// advance drops the slices that have become too old. A clock that is set back counts on
// in the slice that is the latest.
func (c *counter) advance(slice int64) {
	if slice-c.slice > sliced {
		c.counts = [sliced + 1]int64{}
		c.slice = slice
	}
	for c.slice < slice {
		c.slice++
		c.counts[c.slice%(sliced+1)] = 0
	}
}

// forget makes room.
func (r *rates) forget(now time.Time) {
	for k, c := range r.keys {
		if now.UnixNano()/max(int64(k.period)/sliced, 1)-c.slice > sliced {
			delete(r.keys, k)
		}
	}
	for k := range r.keys {
		if len(r.keys) < maxCounters*9/10 {
			return
		}
		delete(r.keys, k)
	}
}
