package rules

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// TextFile is a file of a postmaster's that the router reads besides the tables: it is
// read again when it has changed; one that turns bad is refused, once, and what was read
// before stays. It may be used by many goroutines.
type TextFile[T any] struct {
	file  watched
	parse func(name, text string) (*T, error)
	now   func() time.Time
	log   *slog.Logger
	next  atomic.Int64 // when the file is looked at again, UnixNano
	cur   atomic.Pointer[T]
	mu    sync.Mutex // held by who looks at the file
}

// NewTextFile reads a file. One that is not there is empty, unless it is required.
// parse's errors, *config.Error, are given as they are.
func NewTextFile[T any](path string, required bool, parse func(name, text string) (*T, error), now func() time.Time, log *slog.Logger) (*TextFile[T], error) {
	f := &TextFile[T]{file: watched{path: path, required: required}, parse: parse, now: now, log: log}
	s, _, err := f.file.read(now(), true)
	if err != nil {
		return nil, err
	}
	v, err := parse(s.name, s.text)
	if err != nil {
		return nil, err
	}
	f.cur.Store(v)
	f.next.Store(now().Add(period).UnixNano())
	return f, nil
}

// Current is what the file says now. It is looked at once a second at most.
func (f *TextFile[T]) Current() *T {
	now := f.now()
	left := f.next.Load() - now.UnixNano()
	if left > 0 && left <= int64(period) || !f.mu.TryLock() {
		return f.cur.Load()
	}
	defer f.mu.Unlock()
	next := now.Add(period)
	s, state, err := f.file.read(now, false)
	switch {
	case err != nil:
		f.refused(err)
	case state == unsettled:
		next = now.Add(settle)
	case state == fresh:
		v, err := f.parse(s.name, s.text)
		if err != nil {
			f.refused(err)
			break
		}
		f.cur.Store(v)
		f.log.Info("table-read", "file", f.file.path)
	}
	f.next.Store(next.UnixNano())
	return f.cur.Load()
}

func (f *TextFile[T]) refused(err error) {
	f.log.Error("table-refused", "file", f.file.path, "reason", err, "kept", "the table as it was read before")
}
