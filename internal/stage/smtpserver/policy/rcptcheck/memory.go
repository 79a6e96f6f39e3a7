package rcptcheck

import (
	"sync"
	"time"
)

// maxKept is how many answers a memory holds.
const maxKept = 20000

// memory remembers answers for a while. The zero value is empty.
type memory struct {
	mu   sync.Mutex
	kept map[string]kept
}

type kept struct {
	answer Answer
	until  time.Time
	length time.Duration
}

func (m *memory) get(key string, now time.Time) (Answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.kept[key]
	// A clock that was set back makes nothing last longer.
	left := k.until.Sub(now)
	return k.answer, ok && left > 0 && left <= k.length
}

func (m *memory) put(key string, a Answer, now time.Time, length time.Duration) {
	if length <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = map[string]kept{}
	}
	if len(m.kept) >= maxKept {
		m.drop(now)
	}
	m.kept[key] = kept{a, now.Add(length), length}
}

// drop removes expired answers and, if these are few, half of the rest.
func (m *memory) drop(now time.Time) {
	for key, k := range m.kept {
		if !now.Before(k.until) {
			delete(m.kept, key)
		}
	}
	for key := range m.kept {
		if len(m.kept) <= maxKept/2 {
			return
		}
		delete(m.kept, key)
	}
}
