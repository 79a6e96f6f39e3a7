package scheduler

import (
	"bytes"
	"encoding/json"
	"time"

	"zmailer/internal/workspec"
)

// orderOf is the event that a line of the history tells of what a person decided, ""
// if it tells of none. Who gave the order stands in it.
func orderOf(e *workspec.Event) string {
	switch e.Event {
	case workspec.EventRemoved, workspec.EventRestored:
		return e.Event
	}
	if e.Get(workspec.KeyWho) == "" {
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

// orders tells those who listen of the orders in a specification that a note was about.
// It is called by the pool.
func (h *eventHub) orders(s *Spool, name string) {
	if !h.listening.Load() {
		return
	}
	f, err := s.open(name)
	if err != nil {
		return // gone, or it is told elsewhere
	}
	defer f.close()
	h.ordersIn(f)
}

// ordersIn tells those who listen of the orders in a specification. Each is told once:
// the lines since the last one that was told, or since somebody listens.
func (h *eventHub) ordersIn(f *opened) {
	if h == nil || !h.listening.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.told == nil {
		return
	}
	id := f.ledgerID().String()
	last, known := h.told[id]
	for i := range f.spec.History {
		e := &f.spec.History[i]
		word := orderOf(e)
		if word == "" || known && e.LineOffset <= last || !known && e.Time.Before(h.since) {
			continue
		}
		h.told[id] = e.LineOffset
		wanted := map[int64]bool{}
		for _, off := range e.Recipients() {
			wanted[off] = true
		}
		f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
			if wanted[r.Offset] {
				line := orderLine(word, id, f.Name, e, r)
				for l := range h.listeners {
					l.put(line)
				}
			}
		})
	}
}

// orderLine is an order about one recipient as one JSON object.
func orderLine(word, id, name string, e *workspec.Event, r *workspec.Recipient) []byte {
	var b bytes.Buffer
	// Strings alone: none of them fails.
	put := func(before, value string) {
		text, _ := json.Marshal(value)
		b.WriteString(before)
		b.Write(text)
	}
	put(`{"time":`, e.Time.UTC().Format(time.RFC3339Nano))
	for _, kv := range [][2]string{{"event", word}, {"id", id}, {"name", name}, {"rcpt", r.Address}, {"channel", r.Channel}, {"host", r.Host},
		{"who", e.Get(workspec.KeyWho)}, {"order", e.Get("order")}, {"cause", e.Get(workspec.KeyCause)}, {"until", e.Get("until")}, {"reason", e.Text}} {
		if kv[1] != "" {
			put(`,"`+kv[0]+`":`, kv[1])
		}
	}
	b.WriteString("}")
	return b.Bytes()
}
