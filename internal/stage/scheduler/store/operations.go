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

// ourselves is the key who= of decisions of the scheduler.
const ourselves = "scheduler"

// operationWord returns the log event for an operator's decision in the history, "" for other
// lines. The scheduler logs its own decisions where it makes them.
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

// rememberedFor is how long the logged operations of a message are remembered; by then all
// earlier ones are logged.
const rememberedFor = 5 * time.Minute

// loggedOperations remembers which operations were logged: of each message the last line, for
// a while.
type loggedOperations struct {
	mu          sync.Mutex
	since       time.Time // earlier operations count as logged
	turned      time.Time
	now, before map[postoffice.SpoolID]int64
}

// first reports whether an operation was not logged yet, and records that it is now.
func (t *loggedOperations) first(id postoffice.SpoolID, e *workspec.Event, started, now time.Time) bool {
	if t.now == nil {
		// The history has milliseconds.
		t.now, t.since, t.turned = map[postoffice.SpoolID]int64{}, started.Truncate(time.Millisecond), now
	}
	if now.Sub(t.turned) > rememberedFor {
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

// moved takes over the lines of a message whose history was summarised, so that no operation is
// logged twice.
func (t *loggedOperations) moved(id postoffice.SpoolID, before, after *workspec.Spec) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range []map[postoffice.SpoolID]int64{t.now, t.before} {
		last, known := m[id]
		if !known {
			continue
		}
		logged := 0
		for i := range before.History {
			if e := &before.History[i]; operationWord(e) != "" && e.LineOffset <= last {
				logged++
			}
		}
		m[id] = 0
		for i := range after.History {
			if e := &after.History[i]; operationWord(e) != "" && logged > 0 {
				m[id], logged = e.LineOffset, logged-1
			}
		}
	}
}

// decisions logs what operators decided about messages, each decision once.
type decisions struct {
	*Env
	logged loggedOperations
}

// LogOperations logs the operations in a specification that an operator has changed.
func (s *decisions) LogOperations(name string) {
	f, err := s.open(name)
	if err != nil {
		return // it is gone, or reported elsewhere
	}
	defer f.close()
	s.logOperationsIn(f)
}

// logOperationsIn logs the operations in a specification, a line for each recipient, and each once.
// Those that were given while no scheduler ran are in the history alone.
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
		for _, r := range f.spec.All() {
			if wanted[r.Offset] {
				s.logOperation(word, id, f.Name, e, r, ends[r.Offset])
			}
		}
	}
}

// logOperation logs an operation on one recipient, with the time of the operation. end
// is the diagnostic if the recipient failed.
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
