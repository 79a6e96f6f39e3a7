// Package memo remembers answers for a while, a bounded number of them:
//
//	known := memo.New[Answer](4096)
//	known.Put(key, answer, now, time.Minute)
//	answer, ok := known.Get(key, now)
//
// It owns nothing on disk, and nothing survives a crash.
//
// Diagnostics: there are no errors.
package memo

import (
	"sync"
	"time"
)

// Memo may be used by many goroutines.
type Memo[V any] struct {
	most int

	mu   sync.Mutex
	kept map[string]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
	keep  time.Duration
}

// New makes a Memo that holds at most so many answers.
func New[V any](most int) *Memo[V] {
	return &Memo[V]{most: most, kept: map[string]entry[V]{}}
}

// Get returns the answer for a key, if there is one that is not too old.
func (m *Memo[V]) Get(key string, now time.Time) (value V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.kept[key]
	// A clock that was set back makes nothing last longer.
	left := e.until.Sub(now)
	if !ok || left <= 0 || left > e.keep {
		return value, false
	}
	return e.value, true
}

// Put keeps an answer for a time; zero: not at all.
func (m *Memo[V]) Put(key string, value V, now time.Time, keep time.Duration) {
	if keep <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.kept) >= m.most {
		m.drop(now)
	}
	m.kept[key] = entry[V]{value, now.Add(keep), keep}
}

// drop removes expired answers and, if these are few, half of the rest. m.mu is held.
func (m *Memo[V]) drop(now time.Time) {
	for key, e := range m.kept {
		if !now.Before(e.until) {
			delete(m.kept, key)
		}
	}
	for key := range m.kept {
		if len(m.kept) <= m.most/2 {
			return
		}
		delete(m.kept, key)
	}
}

// Len returns how many answers are held.
func (m *Memo[V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.kept)
}
