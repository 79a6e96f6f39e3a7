package view

import (
	"strings"
	"time"

	"zmailer/internal/admin/selector"
)

// facts returns what the selector asks of a recipient; r is nil for a message whose
// recipients are not known.
func (m *Message) facts(r *Recipient, now time.Time) *selector.Facts {
	f := &selector.Facts{ID: m.ID, From: m.Sender, Size: m.Size, Age: now.Sub(m.Since), Cause: m.Why, States: []string{stateWord(m.State)},
		Client: m.Client, ClientName: m.ClientName, User: m.User, MessageID: m.MessageID}
	if r == nil {
		return f
	}
	f.To, f.OrigTo, f.Channel, f.Host, f.Reply = r.Address, r.Original, r.Channel, r.Host, r.Last
	if r.Cause != "" {
		f.Cause = r.Cause
	}
	f.States = append(f.States, stateWord(r.State))
	if r.Open() {
		f.States = append(f.States, "open")
	}
	if r.State == Suspended {
		f.States = append(f.States, Waiting) // until it is resumed
	}
	if r.State == Waiting && (r.Next == nil || !r.Next.After(now)) {
		f.States = append(f.States, "due")
	}
	return f
}

func stateWord(state string) string {
	if state == Stale {
		return "locked"
	}
	return strings.ReplaceAll(state, " ", "-")
}

// Choose leaves those recipients in the message that are selected, and reports whether
// there are any. An empty selector leaves everything.
func (m *Message) Choose(sel selector.Selector, now time.Time) bool {
	if sel.Empty() {
		return true
	}
	if len(m.Recipients) == 0 {
		return sel.Match(m.facts(nil, now))
	}
	var left []Recipient
	for i := range m.Recipients {
		if sel.Match(m.facts(&m.Recipients[i], now)) {
			left = append(left, m.Recipients[i])
		}
	}
	m.Hidden = len(m.Recipients) - len(left)
	m.Recipients = left
	return len(left) > 0
}
