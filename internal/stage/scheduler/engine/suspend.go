package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/thread"
)

// suspender has the suspensions of operators decide which deliveries begin. It is the gate
// of the core while there are any.
//
// The core has no sender's address but a key of it. When a sender is suspended, one
// specification is read for each key that is queued, and until then its mail waits too: what
// is not known to be allowed does not begin.
type suspender struct {
	*base

	list    *suspension.List
	failure error // why the file cannot be read
	active  []*thread.Suspension
	rules   []*suspension.Suspension // those of active

	senders map[uint32]string            // by key, while a sender is suspended
	asked   map[uint32][]*thread.Message // whose sender is being read
	unread  []uint32                     // keys that are to be read
	reading bool
	sources map[*thread.Ring]suspension.Sources
}

// undecided is what mail waits for whose sender is not known yet.
var undecided = &thread.Suspension{Subject: "a sender: whether this is one is being read from its file"}

// follow reads the file of suspensions until ctx is done.
func (e *suspender) follow(ctx context.Context) {
	suspension.Follow(ctx, suspension.Following{PostOffice: e.po, Dir: e.conf.Dir, Every: e.conf.Look, Now: e.conf.tuning.clocks.now, Log: e.log,
		Changed: func(l *suspension.List, err error) { e.post(func() { e.apply(l, err) }) }})
}

// begin reads it before the first delivery.
func (e *suspender) begin() {
	err := e.po.PlaceSuspensions()
	l, rerr := suspension.Read(e.po)
	if rerr != nil {
		err = rerr
	}
	if l == nil {
		l = &suspension.List{}
	}
	e.apply(l, err)
}

// apply has suspensions decide from now on.
func (e *suspender) apply(l *suspension.List, err error) {
	if err != nil && (e.failure == nil || e.failure.Error() != err.Error()) {
		e.log.Error("suspensions-unread", "reason", err, "advice", "those that were read before stay in force")
	}
	before := e.rules
	e.list, e.failure = l, err
	e.rules, e.active = nil, nil
	vertices, bySender := false, false
	for _, s := range l.Active(e.now) {
		if s.Accepting {
			continue // that is smtpserver's
		}
		e.rules = append(e.rules, s)
		e.active = append(e.active, &thread.Suspension{Order: string(s.Order), Who: s.Who, Reason: s.Reason, Subject: s.Subject(), Since: s.Since, Until: s.Until})
		vertices, bySender = vertices || s.OfMessages(), bySender || s.Sender != ""
	}
	switch {
	case !bySender:
		e.senders, e.asked, e.unread = nil, nil, nil
	case e.senders == nil:
		e.senders, e.asked = map[uint32]string{}, map[uint32][]*thread.Message{}
	}
	e.sources = map[*thread.Ring]suspension.Sources{}
	if len(e.rules) > 0 {
		e.core.SetGate(e, vertices, e.now)
	} else if len(before) > 0 {
		e.core.SetGate(nil, false, e.now)
	}
	e.readSenders()
	e.report(before)
}

// report logs what began and what has ended.
func (e *suspender) report(before []*suspension.Suspension) {
	known := map[postoffice.OperationID]bool{}
	for _, s := range before {
		known[s.Order] = true
	}
	for _, s := range e.rules {
		if !known[s.Order] {
			e.emit(events.Suspended, "order", string(s.Order), "subject", s.Subject(), "by", s.Who, "reason", s.Reason, "until", stamp(s.Until))
		}
		delete(known, s.Order)
	}
	for _, s := range before {
		if known[s.Order] {
			cause := "resumed"
			if s.Over(e.now) {
				cause = "time"
			}
			e.emit(events.Resumed, "order", string(s.Order), "subject", s.Subject(), "cause", cause)
		}
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// regate decides again about single messages: threads have gone to other rings.
func (e *suspender) regate() {
	clear(e.sources)
	if len(e.rules) > 0 {
		e.apply(e.list, e.failure)
	}
}

// alarms returns what is wrong with the file.
func (e *suspender) alarms() (list []alarm.Alarm) {
	add := func(text string) {
		list = append(list, alarm.Alarm{Kind: alarm.Unusable, Subject: postoffice.SuspensionFile, Since: e.now, Text: text})
	}
	if e.failure != nil {
		add(e.failure.Error() + "; the suspensions that were read before are in force")
		return list
	}
	for _, d := range e.list.Damaged {
		add(d.String() + "; what it suspended is not suspended")
	}
	return list
}

// Thread implements thread.Gate.
func (e *suspender) Thread(channel, host string) *thread.Suspension {
	for i, s := range e.rules {
		if !s.OfMessages() && s.Thread(channel, host) {
			return e.active[i]
		}
	}
	return nil
}

// Vertex implements thread.Gate.
func (e *suspender) Vertex(v *thread.Vertex) *thread.Suspension {
	for i, s := range e.rules {
		if !s.OfMessages() || !s.Thread(v.Thread.Channel(), v.Thread.Host) || s.Source != "" && !e.uses(v, s) {
			continue
		}
		if s.Sender == "" {
			return e.active[i]
		}
		switch from, known := e.senders[v.Message.Sender]; {
		case !known:
			e.want(v.Message)
			return undecided
		case s.From(from):
			return e.active[i]
		}
	}
	return nil
}

// uses reports whether a delivery would connect from the source of a suspension. Recipients
// that rules on replies have moved on to different sources may go in one transaction or in
// several: none of them begins then.
func (e *suspender) uses(v *thread.Vertex, s *suspension.Suspension) bool {
	r := v.Thread.Ring
	of, known := e.sources[r]
	if !known {
		if g := agents.GroupOf(r); g != nil && g.Settings() != nil {
			of = suspension.ParseSources(g.Settings().Sources)
		}
		e.sources[r] = of
	}
	turn := idOf(v.Message).Turn()
	return slices.ContainsFunc(v.Moves(), func(n int) bool { return s.Leaves(of, turn+uint64(n)) })
}

// learn takes note of the sender of a specification that was read.
func (e *suspender) learn(key uint32, from string) {
	if e.senders == nil {
		return
	}
	if _, known := e.senders[key]; !known {
		e.senders[key] = strings.Clone(from)
	}
}

// want has the sender of a message read.
func (e *suspender) want(m *thread.Message) {
	if len(e.asked[m.Sender]) == 0 {
		e.unread = append(e.unread, m.Sender)
	}
	if list := e.asked[m.Sender]; len(list) == 0 || list[len(list)-1] != m {
		e.asked[m.Sender] = append(list, m)
	}
}

// sendersAtOnce is how many specifications are read in one go for their senders.
const sendersAtOnce = 64

// readSenders reads senders that are wanted, some at a time.
func (e *suspender) readSenders() {
	if e.reading || len(e.unread) == 0 || e.stopping {
		return
	}
	type asking struct {
		key  uint32
		name string
		id   postoffice.SpoolID
		from string
		err  error
	}
	n := min(len(e.unread), sendersAtOnce)
	list := make([]asking, 0, n)
	for _, key := range e.unread[:n] {
		if of := e.asked[key]; len(of) > 0 {
			list = append(list, asking{key: key, name: of[0].Name(), id: idOf(of[0])})
		}
	}
	e.unread = e.unread[n:]
	e.reading = true
	e.pool.do(func() {
		for i := range list {
			a := &list[i]
			a.from, a.err = e.spool.SenderOf(a.name, a.id)
		}
		e.post(func() {
			e.reading = false
			for i := range list {
				e.wasRead(list[i].key, list[i].from, list[i].err)
			}
			e.readSenders()
		})
	})
}

// wasRead decides about the messages of a sender that was read.
func (e *suspender) wasRead(key uint32, from string, err error) {
	of := e.asked[key]
	if e.senders == nil || len(of) == 0 {
		return
	}
	if errors.Is(err, postoffice.ErrGone) && len(of) > 1 {
		// Another message of the sender is asked.
		e.asked[key] = of[1:]
		e.unread = append(e.unread, key)
		return
	}
	delete(e.asked, key)
	if err != nil && !errors.Is(err, postoffice.ErrGone) {
		e.log.Error("disk", "name", of[0].Name(), "reason", err, "advice", "its sender is not known: the message is not suspended")
	}
	e.learn(key, from)
	for _, m := range of {
		e.core.Ask(m, e.now)
	}
}
