package policy

import (
	"sync"
	"time"
)

// rates are the counters of rate(). Each counts the events of a period in slices of a
// tenth of it; a slice is forgotten when all of it is older than the period.
type rates struct {
	most int // counters that are kept
	mu   sync.Mutex
	keys map[rateKey]*counter
	// done and before are the messages that were counted lately, so that one which is
	// routed again counts once.
	done, before map[counted]int
}

// counted names a message that a key was counted for.
type counted struct {
	key rateKey
	id  string
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

func newRates() *rates {
	return &rates{most: maxCounters, keys: map[rateKey]*counter{}, done: map[counted]int{}}
}

// count adds n events of a message, and gives how many there were in the last period,
// these included. call is the how-manieth one it is with that key for that message, from
// 1. In play nothing is added.
func (r *rates) count(k rateKey, n int64, id string, call int, now time.Time, play bool) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !play && r.again(counted{k, id}, call) {
		n = 0
	}
	period := k.period
	c := r.keys[k]
	slice := now.UnixNano() / max(int64(period)/sliced, 1)
	if c == nil {
		if play {
			return n
		}
		if len(r.keys) >= r.most {
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

// again reports whether a call was counted before, and notes it down.
func (r *rates) again(m counted, call int) bool {
	if max(r.done[m], r.before[m]) >= call {
		return true
	}
	if len(r.done) >= r.most/2 {
		r.before, r.done = r.done, map[counted]int{}
	}
	r.done[m] = call
	return false
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

func (r *rates) forget(now time.Time) {
	for k, c := range r.keys {
		if now.UnixNano()/max(int64(k.period)/sliced, 1)-c.slice > sliced {
			delete(r.keys, k)
		}
	}
	for k := range r.keys {
		if len(r.keys) < r.most*9/10 {
			return
		}
		delete(r.keys, k)
	}
}
