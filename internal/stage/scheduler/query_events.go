package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/internal/wire/mailq"
)

// eventHub gives what the scheduler tells of messages to those who listen: the same
// events with the same keys as the log has, whatever its level. While nobody listens it
// costs the look at one flag.
type eventHub struct {
	listening atomic.Bool
	mu        sync.Mutex
	listeners map[*listener]bool
}

// eventsKept is how many events wait for a listener that is slow.
const eventsKept = 1000

// listener is one who listens.
type listener struct {
	lines [][]byte
	lost  uint64
	more  chan struct{}
}

func newEventHub() *eventHub { return &eventHub{listeners: map[*listener]bool{}} }

// eventOf is the event that a line of the log tells of a message, "" if none.
func eventOf(r *slog.Record) string {
	switch word := r.Message; word {
	case "queued":
		return "routed"
	case "removed":
		finished := "finished" // the last of its recipients were removed by a person
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "rcpt" {
				finished = word // one of them
			}
			return finished != word
		})
		return finished
	case "delivered", "deferred", "failed", "expired", "held", "released", "frozen", "thawed", "rerouted", "report", "finished",
		"retry", "restored", "vanished", "etrn", "unknown-channel", "alarm-raised", "alarm-cleared":
		return word
	}
	return ""
}

// listen begins to keep events for somebody.
func (h *eventHub) listen() *listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &listener{more: make(chan struct{}, 1)}
	h.listeners[l] = true
	h.listening.Store(true)
	return l
}

func (h *eventHub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
	if len(h.listeners) == 0 {
		h.listening.Store(false)
	}
}

// publish gives an event to all who listen; it waits for nobody.
func (h *eventHub) publish(line []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listeners {
		l.put(line)
	}
}

// put keeps an event; what finds no room is counted. h.mu is held.
func (l *listener) put(line []byte) {
	if len(l.lines) >= eventsKept {
		l.lost++
		return
	}
	if l.lost > 0 {
		l.lines = append(l.lines, lostLine(l.lost))
		l.lost = 0
	}
	l.lines = append(l.lines, line)
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func lostLine(n uint64) []byte { return fmt.Appendf(nil, `{"event":"lost","count":%d}`, n) }

// take gives what was kept.
func (h *eventHub) take(l *listener) [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines := l.lines
	l.lines = nil
	if l.lost > 0 {
		lines = append(lines, lostLine(l.lost))
		l.lost = 0
	}
	return lines
}

// eventLog is the log with the hub beside it.
type eventLog struct {
	slog.Handler
	hub *eventHub
}

// Enabled has every line come while somebody listens.
func (l eventLog) Enabled(ctx context.Context, level slog.Level) bool {
	return l.Handler.Enabled(ctx, level) || l.hub.listening.Load()
}

// Handle logs a line and publishes it.
func (l eventLog) Handle(ctx context.Context, r slog.Record) error {
	if l.hub.listening.Load() {
		if word := eventOf(&r); word != "" {
			l.hub.publish(eventLine(word, r))
		}
		if !l.Handler.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs keeps the hub.
func (l eventLog) WithAttrs(a []slog.Attr) slog.Handler {
	return eventLog{l.Handler.WithAttrs(a), l.hub}
}

// WithGroup keeps the hub.
func (l eventLog) WithGroup(name string) slog.Handler {
	return eventLog{l.Handler.WithGroup(name), l.hub}
}

// eventLine is a record as one JSON object.
func eventLine(word string, r slog.Record) []byte {
	var b bytes.Buffer
	b.WriteString(`{"time":`)
	put := func(v any) {
		// Strings, numbers and what has a text form: none of them fails.
		text, _ := json.Marshal(v)
		b.Write(text)
	}
	put(r.Time.UTC().Format(time.RFC3339Nano))
	b.WriteString(`,"event":`)
	put(word)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(`,`)
		put(a.Key)
		b.WriteString(`:`)
		switch v := a.Value.Resolve(); v.Kind() {
		case slog.KindInt64, slog.KindUint64, slog.KindBool:
			put(v.Any())
		case slog.KindDuration:
			put(v.Duration().String())
		case slog.KindTime:
			put(v.Time().UTC().Format(time.RFC3339Nano))
		default:
			put(v.String())
		}
		return true
	})
	b.WriteString("}")
	return b.Bytes()
}

// follow gives events until the client says anything or goes.
func (s *querySession) follow() error {
	h := s.q.events
	l := h.listen()
	defer h.leave(l)
	if err := s.say(mailq.Follows); err != nil {
		return err
	}
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.ReadAtLeast(s.in, make([]byte, 1), 1)
	}()
	defer func() {
		_ = s.conn.Close()
		<-gone
	}()
	for {
		for _, line := range h.take(l) {
			if err := s.write(mailq.AppendLine(nil, string(line))); err != nil {
				return err
			}
		}
		if err := s.out.Flush(); err != nil {
			return err
		}
		select {
		case <-l.more:
		case <-gone:
			_ = s.say(mailq.End)
			_ = s.out.Flush()
			return errBye
		case <-s.q.ctx.Done():
			_ = s.say(mailq.End)
			_ = s.out.Flush()
			return errStopped
		}
	}
}
