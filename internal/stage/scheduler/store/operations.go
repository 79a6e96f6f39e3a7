package store

import (
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/workspec"
)

// ourselves is who has decided where it was no person.
const ourselves = "scheduler"

// operationWord is the event that a line of the history tells of what a person decided, ""
// if it tells of none. Who gave the order stands in it. What we decide by ourselves is
// logged where we do.
func operationWord(e *workspec.Event) string {
	switch e.Event {
	case workspec.EventRemoved, workspec.EventRestored:
		return e.Event
	}
	if who := e.Get(workspec.KeyWho); who == "" || who == ourselves {
		return ""
	}
	switch e.Event {
	case workspec.EventHold:
		return "held"
	case workspec.EventRelease:
		return "released"
	case workspec.EventFrozen, workspec.EventThawed, workspec.EventRetry, workspec.EventRerouted, workspec.EventExpired:
		return e.Event
	}
	return ""
}

// toldFor is how long it is remembered which orders of a message were told; by then all
// that were given before are.
const toldFor = 5 * time.Minute

// loggedOperations remembers which orders were told: of each message the last line, for a while.
type loggedOperations struct {
	mu          sync.Mutex
	since       time.Time // what was ordered before counts as told
	turned      time.Time
	now, before map[postoffice.SpoolID]int64
}

// first tells whether an order is new, and notes that it is told.
func (t *loggedOperations) first(id postoffice.SpoolID, e *workspec.Event, started, now time.Time) bool {
	if t.now == nil {
		// The history has milliseconds.
		t.now, t.since, t.turned = map[postoffice.SpoolID]int64{}, started.Truncate(time.Millisecond), now
	}
	if now.Sub(t.turned) > toldFor {
		if t.before != nil {
			t.since = t.turned
		}
		t.before, t.now, t.turned = t.now, map[postoffice.SpoolID]int64{}, now
	}
	last, known := t.now[id]
	if !known {
		last, known = t.before[id]
	}
	if known && e.LineOffset <= last || !known && e.Time.Before(t.since) {
		return false
	}
	t.now[id] = e.LineOffset
	return true
}

// moved takes note that the history of a message was summarised, so that its lines have other
// places: orders that were told stay told.
func (t *loggedOperations) moved(id postoffice.SpoolID, before, after *workspec.Spec) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range []map[postoffice.SpoolID]int64{t.now, t.before} {
		last, known := m[id]
		if !known {
			continue
		}
		told := 0
		for i := range before.History {
			if e := &before.History[i]; operationWord(e) != "" && e.LineOffset <= last {
				told++
			}
		}
		m[id] = 0
		for i := range after.History {
			if e := &after.History[i]; operationWord(e) != "" && told > 0 {
				m[id], told = e.LineOffset, told-1
			}
		}
	}
}

// decisions logs what operators decided about messages, each decision once.
type decisions struct {
	*Env
	logged loggedOperations
}

// orders tells of the orders in a specification that a note was about. It is called by
// the pool.
func (s *decisions) LogOperations(name string) {
	f, err := s.open(name)
	if err != nil {
		return // gone, or it is told elsewhere
	}
	defer f.close()
	s.logOperationsIn(f)
}

// logOperationsIn logs the orders in a specification, a line for each recipient, and each once.
// Those that were given while no scheduler ran stand in the history alone.
func (s *decisions) logOperationsIn(f *work) {
	for i := range f.spec.History {
		if operationWord(&f.spec.History[i]) != "" {
			s.logOperations(f, i)
			return
		}
	}
}

func (s *decisions) logOperations(f *work, from int) {
	s.logged.mu.Lock()
	defer s.logged.mu.Unlock()
	id, now := f.ledgerID(), s.Now()
	ends := map[int64]*workspec.Diagnostic{}
	for i := range f.spec.Diagnostics {
		if d := &f.spec.Diagnostics[i]; d.Failed() {
			ends[d.Of] = d
		}
	}
	for i := from; i < len(f.spec.History); i++ {
		e := &f.spec.History[i]
		word := operationWord(e)
		if word == "" || !s.logged.first(id, e, s.Started, now) {
			continue
		}
		wanted := map[int64]bool{}
		for _, off := range e.Recipients() {
			wanted[off] = true
		}
		f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
			if wanted[r.Offset] {
				s.logOperation(word, id, f.Name, e, r, ends[r.Offset])
			}
		})
	}
}

// logOperation logs an order about one recipient, with the time at which it was given. end
// is what its sender is told if it failed.
func (s *decisions) logOperation(word string, id postoffice.SpoolID, name string, e *workspec.Event, r *workspec.Recipient, end *workspec.Diagnostic) {
	k, em := events.Operation(word), events.Emitter{Log: s.Log, Stream: s.Stream}
	if !em.Wants(k) {
		return
	}
	list := append([]slog.Attr(nil), slog.Any("id", id), slog.String("name", name), slog.String("rcpt", r.Address), slog.String("channel", r.Channel), slog.String("host", r.Host))
	who, reason := e.Get(workspec.KeyWho), e.Text
	if who == "" { // of removed and restored
		who, reason, _ = strings.Cut(e.Text, ": ")
	}
	for _, kv := range [][2]string{{"who", who}, {"order", e.Get("order")}, {"cause", e.Get(workspec.KeyCause)}, {"reason", reason}} {
		if kv[1] != "" {
			list = append(list, slog.String(kv[0], Cut(kv[1])))
		}
	}
	if ms, err := strconv.ParseInt(e.Get("until"), 10, 64); err == nil && ms > 0 {
		list = append(list, slog.Time("until", time.UnixMilli(ms)))
	}
	switch {
	case e.Event == workspec.EventExpired || e.Event == workspec.EventRemoved:
		if end != nil {
			_, reply, _ := strings.Cut(end.Notary.Diagnostic, ";")
			list = append(list, slog.String("status", end.Notary.Status), slog.String("reply", Cut(strings.TrimSpace(reply))))
		}
		list = append(list, slog.Duration("took", Since(id.Time(), e.Time)))
	case e.Event == workspec.EventRetry && workspec.Reopens(e):
		list = append(list, slog.Bool("fresh", true))
	}
	em.EmitAt(e.Time, k, list...)
}
