package table

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// growAfter is how long a lookup waits for a connection before one more is opened. A
// source that answers quickly is served by few; one that takes long for each key gets as
// many as Options.Parallel allows.
const growAfter = 20 * time.Millisecond

// slots are the places of a source's connections: first of them are always there, others
// come when they are waited for, and go when they are not needed.
type slots struct {
	first int
	most  int
	free  chan struct{}
	n     atomic.Int64 // places that there are
}

func newSlots(first, most int) *slots {
	s := &slots{first: min(first, most), most: most, free: make(chan struct{}, most)}
	for range s.first {
		s.free <- struct{}{}
	}
	s.n.Store(int64(s.first))
	return s
}

// take waits for a place, for so long at most.
func (s *slots) take(ctx context.Context, limit time.Duration) error {
	select {
	case <-s.free:
		return nil
	default:
	}
	grow, late := time.NewTimer(growAfter), time.NewTimer(limit)
	defer grow.Stop()
	defer late.Stop()
	for {
		select {
		case <-s.free:
			return nil
		case <-grow.C:
			if s.add() {
				return nil
			}
		case <-late.C:
			return fmt.Errorf("no answer within %v: all %d connections are busy", limit, s.most)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// add makes one more place, if that is allowed.
func (s *slots) add() bool {
	for {
		n := s.n.Load()
		if n >= int64(s.most) {
			return false
		}
		if s.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// give gives a place back. One that no lookup waits for is not needed any more.
func (s *slots) give() {
	if n := s.n.Load(); n > int64(s.first) && len(s.free) >= s.first && s.n.CompareAndSwap(n, n-1) {
		return
	}
	s.free <- struct{}{}
}
