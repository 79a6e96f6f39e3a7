package logging

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// floodLines is how many lines of an event Bounded logs in floodTime.
	floodLines = 20
	floodTime  = 10 * time.Second
)

// Bounded returns a logger for events that others can cause as often as they like, each at no
// cost of theirs. It logs at most 20 lines of an event in ten seconds, and at the end of these
// one line unlogged with the number of the others. A number that is pending when the program
// ends is lost.
func Bounded(log *slog.Logger) *slog.Logger {
	return slog.New(&bounded{Handler: log.Handler(), floods: &floods{log: log}})
}

// bounded is the handler of such a logger.
type bounded struct {
	slog.Handler
	floods *floods
}

// floods has the count of each event.
type floods struct {
	log *slog.Logger
	mu  sync.Mutex
	of  map[string]*flood
}

// flood is the count of an event in the ten seconds since it began.
type flood struct {
	began           time.Time
	lines, unlogged int
}

// Handle implements slog.Handler.
func (b *bounded) Handle(ctx context.Context, r slog.Record) error {
	if !b.floods.take(r.Message, r.Level) {
		return nil
	}
	return b.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (b *bounded) WithAttrs(a []slog.Attr) slog.Handler {
	return &bounded{b.Handler.WithAttrs(a), b.floods}
}

// WithGroup implements slog.Handler.
func (b *bounded) WithGroup(name string) slog.Handler {
	return &bounded{b.Handler.WithGroup(name), b.floods}
}

// take counts an event and reports whether it is to be logged.
func (f *floods) take(event string, level slog.Level) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, now := f.of[event], time.Now()
	if n == nil {
		if f.of == nil {
			f.of = map[string]*flood{}
		}
		n = &flood{}
		f.of[event] = n
	}
	if n.unlogged == 0 && now.Sub(n.began) >= floodTime {
		*n = flood{began: now}
	}
	if n.lines < floodLines {
		n.lines++
		return true
	}
	if n.unlogged++; n.unlogged == 1 {
		time.AfterFunc(n.began.Add(floodTime).Sub(now), func() { f.end(event, level) })
	}
	return false
}

// end logs how often an event was not logged.
func (f *floods) end(event string, level slog.Level) {
	f.mu.Lock()
	n := f.of[event].unlogged
	*f.of[event] = flood{}
	f.mu.Unlock()
	f.log.Log(context.Background(), level, "unlogged", "event", event, "times", n)
}
