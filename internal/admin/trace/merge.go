package trace

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zmailer/internal/run/logging"
)

// alike is how far apart two sources may report the same step.
const alike = 5 * time.Second

// merge puts the steps of several sources in order and makes one of those that report
// the same thing. The log comes first: it knows most.
func merge(steps []Step) []Step {
	rank := func(s *Step) int { return slices.Index([]string{Log, History, Ledger}, s.Told[0]) }
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Or(rank(&a)-rank(&b), a.Time.Compare(b.Time)) })
	var list []Step
	byEvent := map[string][]int{}
	for _, s := range steps {
		key := s.Event
		if len(s.Recipients) == 1 {
			key += " " + strings.ToLower(s.Recipients[0])
		}
		i := slices.IndexFunc(byEvent[key], func(i int) bool { return list[i].same(&s) })
		if i < 0 {
			byEvent[key] = append(byEvent[key], len(list))
			list = append(list, s)
			continue
		}
		list[byEvent[key][i]].also(&s)
	}
	slices.SortStableFunc(list, func(a, b Step) int { return cmp.Or(a.Time.Compare(b.Time), order(a.Event)-order(b.Event)) })
	return list
}

// order is that of steps within the resolution of a clock.
func order(event string) int {
	i := slices.Index([]string{"caused", "accepted", "routed"}, event)
	switch {
	case i >= 0:
		return i - 3
	case event == "finished":
		return 2
	case event == "report":
		return 1
	}
	return 0
}

// same reports whether two sources report one step; those of one source never do, unless
// they are one line that was read twice.
func (s *Step) same(o *Step) bool {
	if s.Told[0] == o.Told[0] && s.Told[0] != Ledger {
		return o.Time.Sub(s.Time) < moment && s.Text == o.Text
	}
	apart := s.Time.Sub(o.Time).Abs()
	if s.Attempt > 0 && s.Attempt == o.Attempt && s.Event == o.Event {
		return apart < time.Minute
	}
	return apart <= alike && (s.Attempt == 0 || o.Attempt == 0 || s.Attempt == o.Attempt) && (s.Who == "" || o.Who == "" || s.Who == o.Who)
}

// also adds the report of another source.
func (s *Step) also(o *Step) {
	if !slices.Contains(s.Told, o.Told[0]) {
		s.Told = append(s.Told, o.Told...)
	}
	for _, f := range []struct{ to, from *string }{{&s.Who, &o.Who}, {&s.Status, &o.Status}, {&s.Reply, &o.Reply}, {&s.Channel, &o.Channel}, {&s.Host, &o.Host}, {&s.Kind, &o.Kind},
		{&s.Relay, &o.Relay}, {&s.TLS, &o.TLS}, {&s.Cipher, &o.Cipher}, {&s.Verified, &o.Verified}, {&s.Original, &o.Original}} {
		*f.to = cmp.Or(*f.to, *f.from)
	}
	s.Attempt, s.count = cmp.Or(s.Attempt, o.Attempt), cmp.Or(s.count, o.count)
	if s.Next.IsZero() {
		s.Next = o.Next
	}
	s.Fresh = s.Fresh || o.Fresh
}

// New puts a life together from the steps of all sources. accepted is the time that its
// spool ID has, until that of now, or of the last look.
func New(id string, accepted time.Time, steps []Step, until time.Time) *Life {
	l := &Life{ID: id, Accepted: accepted, Steps: merge(steps), Recipients: []Recipient{}, Told: []string{}}
	known := 0
	l.Steps = slices.DeleteFunc(l.Steps, func(s Step) bool { // smtpserver and the router have it
		return s.Event == Filtered && !l.causes(&s)
	})
	for i := range l.Steps {
		s := &l.Steps[i]
		for _, t := range s.Told {
			if !slices.Contains(l.Told, t) {
				l.Told = append(l.Told, t)
			}
		}
		switch s.Event {
		case "accepted", "routed", "queued":
			l.In.add(&s.in)
			if s.from != "" {
				l.From, l.HasFrom = s.from, true
			}
			l.HasFrom = l.HasFrom || s.Told[0] == Log
			if logging.IsSpoolID(s.in.OriginalID) && l.Origin == nil { // else another mail system has named it
				l.Origin = &Caused{ID: s.in.OriginalID, Kind: Filtered}
			}
			l.Size = cmp.Or(l.Size, s.size)
			if s.Event == "routed" {
				known = s.count
			}
		case "caused":
			l.Origin = &Caused{ID: s.Other, Kind: s.Kind}
		case "report", "rerouted":
			l.causes(s)
		case "finished":
			l.Ended = s.Time
		}
	}
	l.Recipients = fold(l.Steps, until)
	l.Untold = max(known-len(l.Recipients), 0)
	l.Settle(until)
	return l
}

// Recipient returns the one with an address; it is added if there is none.
func (l *Life) Recipient(address string) *Recipient {
	if l.at == nil {
		l.at = map[string]int{}
		for i := range l.Recipients {
			l.at[strings.ToLower(l.Recipients[i].Address)] = i
		}
	}
	key := strings.ToLower(address)
	i, known := l.at[key]
	if !known {
		i = len(l.Recipients)
		l.at[key] = i
		l.Recipients = append(l.Recipients, Recipient{Address: address, State: Waiting})
	}
	return &l.Recipients[i]
}

// Groups returns the steps for reading: those that differ in the recipient alone are one.
func (l *Life) Groups() []Step { return l.groups((*Step).likewise) }

// moment is how far apart the lines about the recipients of one delivery may be written.
const moment = 10 * time.Millisecond

// Timed returns the steps as they took their time: deliveries are one only if they waited and
// lasted alike, and ended at the same moment.
func (l *Life) Timed() []Step {
	return l.groups(func(s, o *Step) bool {
		return s.likewise(o) && (!s.timed && !o.timed || o.Time.Sub(s.Time) < moment && s.Queue == o.Queue && s.Delivery == o.Delivery)
	})
}

// groups makes one of steps that follow one another and are one.
func (l *Life) groups(one func(s, o *Step) bool) (list []Step) {
	for _, s := range l.Steps {
		if n := len(list) - 1; n >= 0 && len(s.Recipients) > 0 && one(&list[n], &s) {
			list[n].Recipients = append(slices.Clip(list[n].Recipients), s.Recipients...)
			continue
		}
		list = append(list, s)
	}
	return list
}

// likewise reports whether the same happened to another recipient, at the same moment.
func (s *Step) likewise(o *Step) bool {
	return len(s.Recipients) > 0 && s.Event == o.Event && s.Channel == o.Channel && s.Host == o.Host && s.Status == o.Status && s.Reply == o.Reply &&
		s.Attempt == o.Attempt && s.Who == o.Who && s.Told[0] == o.Told[0] && o.Time.Sub(s.Time) < time.Second
}

// causes notes a message that a step has brought about, and reports whether it is new.
func (l *Life) causes(s *Step) bool {
	if s.Other == "" || slices.ContainsFunc(l.Caused, func(c Caused) bool { return c.ID == s.Other }) {
		return false
	}
	l.Caused = append(l.Caused, Caused{ID: s.Other, Kind: s.Kind})
	return true
}

// Settle computes how long each recipient took, those that have no end until now, and when
// the message ended if all of them have.
func (l *Life) Settle(until time.Time) {
	last, all := time.Time{}, l.Untold == 0 && len(l.Recipients) > 0
	for i := range l.Recipients {
		r := &l.Recipients[i]
		at := r.Ended
		if at.IsZero() {
			all, at = false, until
		}
		r.Took = max(at.Sub(l.Accepted), 0)
		r.Waited = max(r.Took-r.Routing-r.Queue-r.Delivery, 0)
		if last.Before(r.Ended) {
			last = r.Ended
		}
	}
	if l.Ended.IsZero() && all {
		l.Ended = last
	}
}
