package view

import (
	"fmt"
	"strconv"
	"time"

	"zmailer/internal/admin/trace"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// trace returns a message and its steps, for a Tracer.
func (h Histories) trace(id postoffice.SpoolID) (*Message, []trace.Step, error) {
	m, err := h.Spool.locate("trace", id)
	var steps []trace.Step
	account, lerr := h.account(id)
	if lerr != nil {
		err = lerr
	}
	for i := range account {
		a := &account[i]
		word, known := map[string]string{"in": "accepted", "done": "finished", "half": "finished"}[a.Event]
		if !known {
			word = a.Event
		}
		steps = append(steps, trace.Step{Time: a.Time, Event: word, Told: []string{trace.Ledger}, Text: a.Text})
	}
	if m == nil {
		return nil, steps, err
	}
	arrival := h.arrival(m)
	steps = append(steps, trace.Step{Time: arrival.Time, Event: "accepted", Told: []string{trace.History}, Text: arrival.Text})
	for _, a := range h.putAside(m) {
		steps = append(steps, trace.Step{Time: a.Time, Event: "put aside", Told: []string{trace.History}, Text: a.Text})
	}
	if m.Spec != nil {
		steps = append(steps, traceHistory(m.Spec)...)
	}
	return m, steps, err
}

// traceHistory makes steps of a specification's lines, one for each recipient.
func traceHistory(spec *workspec.Spec) (steps []trace.Step) {
	before := Attempts{}
	address := map[int64]*workspec.Recipient{}
	for gi := range spec.Groups {
		for ri := range spec.Groups[gi].Recipients {
			r := &spec.Groups[gi].Recipients[ri]
			address[r.Offset] = r
		}
	}
	expired := map[int64]time.Time{}
	for i := range spec.History {
		e := &spec.History[i]
		one := trace.Step{Time: e.Time, Event: traceWord(e), Told: []string{trace.History}, Who: human.Clean(e.Get(workspec.KeyWho)), Kind: human.Clean(e.Get("kind"))}
		if e.Event == workspec.EventReport || e.Recipient == 0 && e.Get("rcpts") == "" {
			var names []string
			for r := range spec.About(e) {
				names = append(names, human.Clean(r.Address))
			}
			one.Text = EventText(e, names)
			steps = append(steps, one)
			continue
		}
		left := before.LeftOut(spec, e)
		for r := range spec.About(e) {
			step := traceEvent(one, e, r)
			step.Text += left
			steps = append(steps, step)
			if e.Event == workspec.EventExpired {
				expired[r.Offset] = e.Time
			}
		}
	}
	for i := range spec.Diagnostics {
		d := &spec.Diagnostics[i]
		r := address[d.Of]
		if r == nil || d.Notary.Action != "failed" && d.Notary.Action != "delivered" || d.Time.Equal(expired[d.Of].Truncate(time.Second)) {
			continue
		}
		steps = append(steps, trace.Step{Time: d.Time, Event: d.Notary.Action, Told: []string{trace.History}, Recipients: []string{human.Clean(r.Address)},
			Channel: human.Clean(r.Channel), Host: human.Clean(r.Host), Status: human.Clean(d.Notary.Status), Reply: human.Clean(AnswerOf(d)),
			Text: d.Notary.Action + " <" + human.Clean(r.Address) + ">: " + human.Clean(d.Notary.Status) + " " + human.Clean(AnswerOf(d))})
	}
	return steps
}

// traceWord returns the log's word for an event of the history.
func traceWord(e *workspec.Event) string {
	if word, ok := map[string]string{workspec.EventHold: "held", workspec.EventRelease: "released", workspec.EventUnserved: "unknown-channel"}[e.Event]; ok {
		return word
	}
	return human.Clean(e.Event)
}

func traceEvent(s trace.Step, e *workspec.Event, r *workspec.Recipient) trace.Step {
	s.Recipients, s.Channel, s.Host = []string{human.Clean(r.Address)}, human.Clean(r.Channel), human.Clean(r.Host)
	s.Status, s.Reply = human.Clean(e.Get("status")), ""
	s.Attempt, _ = strconv.Atoi(e.Get("attempt"))
	ms := func(key string) time.Time {
		if n, err := strconv.ParseInt(e.Get(key), 10, 64); err == nil && n > 0 {
			return time.UnixMilli(n)
		}
		return time.Time{}
	}
	s.Next, s.Until = ms("next"), ms("until")
	switch e.Event {
	case workspec.EventDeferred, workspec.EventExpired:
		s.Reply = human.Clean(OneLine(e.Text))
	case workspec.EventThawed, workspec.EventRetry:
		s.Fresh = e.Event == workspec.EventThawed || workspec.Reopens(e)
	}
	s.Text = EventText(e, s.Recipients)
	return s
}

// overlay lets the files say what became of each recipient: they are the truth, and know
// those that nothing was said of yet.
func overlay(l *trace.Life, m *Message, now time.Time) {
	l.State, l.Untold = m.State, 0
	if l.Ended = (time.Time{}); m.HasSender {
		l.From, l.HasFrom = m.Sender, true
	}
	for _, f := range []struct{ to, from *string }{{&l.MessageID, &m.MessageID}, {&l.User, &m.User}, {&l.Client, &m.Client}, {&l.ClientName, &m.ClientName}} {
		if *f.to == "" {
			*f.to = *f.from
		}
	}
	if m.Size > 0 {
		l.Size = fmt.Sprint(m.Size)
	}
	for i := range m.Recipients {
		r := &m.Recipients[i]
		if r.Address == "(those of the header)" || m.State == StateCopy {
			continue
		}
		x := l.Recipient(r.Address)
		x.State, x.Attempts, x.Next = r.State, max(r.Attempts, x.Attempts), time.Time{}
		if r.Open() {
			x.Attempts, x.Ended = r.Attempts, time.Time{}
		}
		if r.Next != nil {
			x.Next = *r.Next
		}
		if r.Channel != "" {
			x.Channel, x.Host = r.Channel, r.Host
		}
		if r.Original != "" {
			x.Original = r.Original
		}
		if r.Last != "" {
			x.Status, x.Last = r.Status, r.Last
		}
	}
	l.Settle(now)
}
