// Package events is what happens to messages, as values: the scheduler emits each event
// once, and it goes to the log and to those who follow the stream of the query socket
// (docs/mailq.md).
//
// A Kind is an event's name with the word and level that the log has for it; both have the
// same keys. A stream keeps a bounded number of events for each listener and waits for none.
//
// Nothing survives a crash: the ledger and the specifications have what matters.
//
// Diagnostics: there are no errors; a listener that is too slow gets a count of what it lost.
package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Kind is a kind of event.
type Kind struct {
	name  string // in the stream; "": not there
	word  string // in the log
	level slog.Level
}

func kind(word string, level slog.Level) Kind { return Kind{word, word, level} }

func (k Kind) named(name string) Kind {
	k.name = name
	return k
}

// String returns the event's word in the log.
func (k Kind) String() string { return k.word }

// The kinds of events.
var (
	Routed       = kind("queued", slog.LevelDebug).named("routed")
	Delivered    = kind("delivered", slog.LevelInfo)
	Deferred     = kind("deferred", slog.LevelInfo)
	Failed       = kind("failed", slog.LevelInfo)
	Expired      = kind("expired", slog.LevelInfo)
	Froze        = kind("frozen", slog.LevelWarn) // on expiry
	Rerouted     = kind("rerouted", slog.LevelInfo)
	Reported     = kind("report", slog.LevelInfo)
	Finished     = kind("finished", slog.LevelDebug)
	Vanished     = kind("vanished", slog.LevelWarn)
	Passed       = kind("vanished", slog.LevelDebug) // a file that was gone before it was read
	Kicked       = kind("etrn", slog.LevelInfo)
	Suspended    = kind("suspended", slog.LevelInfo) // by an operator
	Resumed      = kind("resumed", slog.LevelInfo)
	Unserved     = kind("unknown-channel", slog.LevelError)
	AlarmRaised  = kind("alarm-raised", slog.LevelWarn)
	AlarmCleared = kind("alarm-cleared", slog.LevelInfo)
)

// Operation returns an operator's decision, by the word of the log: held, removed, retry.
func Operation(word string) Kind { return kind(word, slog.LevelInfo) }

// Event is something that has happened.
type Event struct {
	Time  time.Time
	Name  string
	Attrs []slog.Attr
}

// Emitter gives events to the log and to a stream.
type Emitter struct {
	Log    *slog.Logger
	Stream *Stream // nil: none
}

// Wants reports whether anything takes events of a kind.
func (e Emitter) Wants(k Kind) bool {
	return e.Stream.Followed() || e.Log.Enabled(context.Background(), k.level)
}

// Emit emits an event that happens now; args are keys and values, or attributes, as
// slog.Logger.Log has them.
func (e Emitter) Emit(k Kind, args ...any) {
	if !e.Wants(k) {
		return
	}
	var r slog.Record
	r.Add(args...)
	attrs := make([]slog.Attr, 0, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	e.EmitAttrs(k, attrs...)
}

// EmitAttrs is Emit for attributes.
func (e Emitter) EmitAttrs(k Kind, attrs ...slog.Attr) {
	e.EmitAt(time.Now(), k, attrs...)
}

// EmitAt emits an event that happened at a time.
func (e Emitter) EmitAt(at time.Time, k Kind, attrs ...slog.Attr) {
	ctx := context.Background()
	if e.Log.Enabled(ctx, k.level) { // without the caller, as logging.LogAttrs
		r := slog.NewRecord(at, k.level, k.word, 0)
		r.AddAttrs(attrs...)
		_ = e.Log.Handler().Handle(ctx, r) // as a Logger does: there is nowhere to report an error
	}
	e.publish(at, k, attrs)
}

func (e Emitter) publish(at time.Time, k Kind, attrs []slog.Attr) {
	if k.name != "" && e.Stream.Followed() {
		e.Stream.publish(Event{at, k.name, slices.Clone(attrs)})
	}
}

// Stream gives events to listeners. Without one it costs the look at one flag.
type Stream struct {
	followed  atomic.Bool
	mu        sync.Mutex
	listeners map[*Listener]bool
}

// kept is how many events wait for a listener that is slow.
const kept = 1000

// Listener is one that follows the stream.
type Listener struct {
	More chan struct{} // receives when events have come

	of     *Stream
	events []Event
	lost   uint64
}

// Followed reports whether anything listens.
func (s *Stream) Followed() bool { return s != nil && s.followed.Load() }

// Listen begins to keep events for a listener.
func (s *Stream) Listen() *Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &Listener{of: s, More: make(chan struct{}, 1)}
	if s.listeners == nil {
		s.listeners = map[*Listener]bool{}
	}
	s.listeners[l] = true
	s.followed.Store(true)
	return l
}

// Leave ends it.
func (l *Listener) Leave() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	delete(l.of.listeners, l)
	l.of.followed.Store(len(l.of.listeners) > 0)
}

func (s *Stream) publish(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		l.put(e)
	}
}

// put keeps an event; one for which there is no space is counted. The stream is locked.
func (l *Listener) put(e Event) {
	if len(l.events) >= kept {
		l.lost++
		return
	}
	l.noteLost()
	l.events = append(l.events, e)
	select {
	case l.More <- struct{}{}:
	default:
	}
}

// noteLost puts the number of lost events in their place.
func (l *Listener) noteLost() {
	if l.lost > 0 {
		l.events = append(l.events, Event{Name: "lost", Attrs: []slog.Attr{slog.Uint64("count", l.lost)}})
		l.lost = 0
	}
}

// Take returns the events that were kept.
func (l *Listener) Take() []Event {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.noteLost()
	list := l.events
	l.events = nil
	return list
}

// JSON returns the event as one JSON object.
func (e Event) JSON() []byte {
	var b bytes.Buffer
	put := func(key string, v any) {
		// Strings, numbers and what has a text form: none of them fails.
		text, _ := json.Marshal(v)
		separator := ","
		if b.Len() == 0 {
			separator = "{"
		}
		name, _ := json.Marshal(key)
		fmt.Fprintf(&b, "%s%s:%s", separator, name, text)
	}
	if !e.Time.IsZero() {
		put("time", e.Time.UTC().Format(time.RFC3339Nano))
	}
	put("event", e.Name)
	for _, a := range e.Attrs {
		switch v := a.Value.Resolve(); v.Kind() {
		case slog.KindInt64, slog.KindUint64, slog.KindBool:
			put(a.Key, v.Any())
		case slog.KindDuration:
			put(a.Key, v.Duration().String())
		case slog.KindTime:
			put(a.Key, v.Time().UTC().Format(time.RFC3339Nano))
		default:
			put(a.Key, v.String())
		}
	}
	b.WriteString("}")
	return b.Bytes()
}
