package router

import (
	"context"
	"testing"
	"time"

	"zmailer/internal/disk/watch"
)

// scripted gives the hints that a test sends.
type scripted struct {
	c    chan watch.Hint
	kick chan struct{}
}

func newScripted() *scripted {
	return &scripted{c: make(chan watch.Hint), kick: make(chan struct{}, 1)}
}

func (s *scripted) Await(until time.Time) []watch.Hint {
	var over <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case h := <-s.c:
		return []watch.Hint{h}
	case <-over:
	case <-s.kick:
	}
	return nil
}

func (s *scripted) Interrupt() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// hinted routes what hints told of, without a look at the directory, and gives what
// became of each.
func (o *office) hinted(t *testing.T, names ...string) []jobResult {
	t.Helper()
	var list []jobResult
	for _, name := range names {
		list = append(list, jobResult{name, o.r.routeOne(context.Background(), name, false)})
	}
	return list
}
