package store

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/workspec"
)

// holds finds the recipients on channel hold whose conditions hold.
type holds struct {
	*Env
	asked asked
}

// holds calls fn for each open recipient that waits for a condition and for nothing else.
func (s *holds) holds(f *work, now time.Time, fn func(r *workspec.Recipient, settings *conf.Settings)) {
	for _, r := range f.spec.All() {
		if r.Tag != workspec.TagToDo || r.Channel != builtin.Hold || f.orders.Waits(r, now) {
			continue
		}
		if settings, unserved := s.Unserved(r); unserved {
			fn(r, settings)
		}
	}
}

// holding reports whether the condition of a recipient on channel hold holds, and if not,
// when to check again. The first check is one interval after the specification was written,
// so that a route that leads back to channel hold does not loop without a pause.
func (s *holds) holding(f *work, r *workspec.Recipient, settings *conf.Settings, now time.Time) (holds bool, next time.Time, err error) {
	c, err := builtin.ParseCondition(r.Host)
	if err != nil {
		return false, time.Time{}, err
	}
	every := min(cmp.Or(settings.Interval, time.Minute), answerHolds)
	at := f.Info.CTime.Add(every)
	switch {
	case !c.At.IsZero():
		at = later(at, c.At)
	case c.Ask == nil:
		at = later(at, f.begun(r, now).Add(c.Age))
	}
	if at.After(now) {
		return false, at, nil
	}
	if c.Ask == nil {
		return true, now, nil
	}
	holds, next = s.asked.ask(r.Host, &c, s.current().Resolver, every, now)
	return holds, next, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// letGo has the recipients routed again whose condition holds (M11). It returns their number
// and when to check again; zero: never.
func (s *holds) letGo(f *work, now time.Time) (gone int, next time.Time, err error) {
	due := map[int64]bool{}
	s.holds(f, now, func(r *workspec.Recipient, settings *conf.Settings) {
		holds, at, err := s.holding(f, r, settings, now)
		switch {
		case err != nil: // reported when it was loaded
		case holds:
			due[r.Offset] = true
		default:
			next = Earliest(next, at)
		}
	})
	if len(due) == 0 {
		return 0, next, nil
	}
	res, err := operations.Reroute(operations.Request{PostOffice: s.PostOffice, ID: f.id, Now: now, Who: "scheduler", Silent: true, Submit: s.submitPrepared,
		Reason: "the condition on channel hold holds",
		Match:  func(_ *workspec.Group, r *workspec.Recipient) bool { return due[r.Offset] }}, f.Name)
	switch {
	case errors.Is(err, operations.ErrNothing), errors.Is(err, operations.ErrMoved):
		return 0, next, nil
	case err != nil:
		return 0, next, err
	}
	for _, a := range res.Left {
		s.Log.Error("not-rerouted", "id", f.id, "name", f.Name, "rcpt", a, "reason", "the address is a file or program of an alias; it waits until it expires")
	}
	for _, a := range res.Changed {
		s.emit(events.Rerouted, "id", f.id, "name", f.Name, "rcpt", a, "channel", builtin.Hold, "copy", res.To)
	}
	return len(res.Changed), next, f.read()
}

// nextHold returns when letGo has something to do: now, if a condition holds.
func (s *holds) nextHold(f *work, now time.Time) (next time.Time) {
	s.holds(f, now, func(r *workspec.Recipient, settings *conf.Settings) {
		if _, at, err := s.holding(f, r, settings, now); err == nil {
			next = Earliest(next, at)
		}
	})
	return next
}

// asked checks conditions that take time in goroutines of their own, so that a slow name
// server or file system delays only the mail that waits for it. Messages with the same
// condition share a check.
type asked struct {
	mu      sync.Mutex
	about   map[string]*answer
	running int
	asking  sync.WaitGroup // for tests
}

// answer is the state of a condition.
type answer struct {
	at    time.Time // when the answer came, or the check began
	asks  bool      // a check is running
	holds bool
}

const (
	askTimeout = 10 * time.Second
	// maxAsks is the number of checks at once.
	maxAsks = 8
	// answerHolds is how long an answer is used.
	answerHolds = time.Minute
	// askAgain is when the caller returns for an answer that is on its way.
	askAgain = time.Second
)

// ask returns the state of a condition, and starts a check if it is unknown or older than
// every. next is when to call again.
func (a *asked) ask(host string, c *builtin.Condition, server string, every time.Duration, now time.Time) (holds bool, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.about == nil {
		a.about = map[string]*answer{}
	}
	w := a.about[host]
	if w == nil {
		w = &answer{}
		a.about[host] = w
	}
	// An answer is used at least once, however short the interval is.
	every = max(every, 2*askAgain)
	switch {
	case w.asks:
		return false, now.Add(askAgain)
	case !w.at.IsZero() && now.Sub(w.at).Abs() < every:
		return w.holds, w.at.Add(every)
	case a.running >= maxAsks:
		return false, now.Add(askAgain)
	}
	a.forget(now)
	a.about[host] = w
	a.running++
	w.asks, w.at = true, now
	ask, began := c.Ask, time.Now()
	a.asking.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		err := ask(ctx, server)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.running--
		w.asks, w.holds, w.at = false, err == nil, now.Add(time.Since(began))
	})
	return false, now.Add(askAgain)
}

// forget drops answers that were not used for long.
func (a *asked) forget(now time.Time) {
	for host, w := range a.about {
		if !w.asks && now.Sub(w.at) > 10*answerHolds {
			delete(a.about, host)
		}
	}
}

// Unserved reports whether a recipient has no agent: its channel is hold, or no
// clause with a command matches. settings are those of the clauses that do match.
func (s *Env) Unserved(r *workspec.Recipient) (settings *conf.Settings, unserved bool) {
	settings = s.Conf.Current().Match(r.Channel, r.Host)
	if settings == nil {
		return s.Conf.Current().MatchAny(r.Channel, r.Host), true
	}
	// Only a clause of its own has an agent for hold.
	return settings, r.Channel == builtin.Hold && !strings.HasPrefix(settings.Clause, builtin.Hold)
}

// unservedUntil is when an open recipient that nothing serves is given up (M27), zero if
// never. No attempt can be waited for, so expiry counts as expiry2 does; but from the
// time of the history's line about it, so that a clause that is missing for an hour does not
// end old mail.
func (s *recorder) unservedUntil(f *work, r *workspec.Recipient, settings *conf.Settings, noted map[int64]time.Time) time.Time {
	age := settings.GiveUp()
	if age == 0 {
		return time.Time{}
	}
	since := f.begun(r, s.Now())
	at, ok := noted[r.Offset]
	switch {
	case ok && at.After(since):
		since = at
	case !ok && r.Channel != builtin.Hold: // that is no trouble
		since = s.Now() // the line is about to be written
	}
	return since.Add(age)
}

// nextUnserved is when the first of the recipients that nothing serves is given up, zero
// if none is.
func (s *recorder) nextUnserved(f *work) (next time.Time) {
	noted := unservedSince(f.spec)
	for _, r := range f.spec.All() {
		if r.Tag != workspec.TagToDo {
			continue
		}
		if settings, unserved := s.Unserved(r); unserved && !f.orders.Waits(r, s.Now()) {
			next = Earliest(next, s.unservedUntil(f, r, settings, noted))
		}
	}
	return next
}

// expireUnserved gives up the recipients that nothing served in time, and gives their
// number.
func (s *recorder) expireUnserved(f *work, now time.Time) (int, error) {
	if next := s.nextUnserved(f); next.IsZero() || next.After(now) {
		return 0, nil
	}
	var c changes
	err := f.underLock(func() error {
		noted := unservedSince(f.spec)
		for g, r := range f.spec.All() {
			settings, unserved := s.Unserved(r)
			if r.Tag != workspec.TagToDo || !unserved || f.orders.Waits(r, now) {
				continue
			}
			if at := s.unservedUntil(f, r, settings, noted); !at.IsZero() && !at.After(now) {
				s.giveUp(f, g, r, &c, nil, "", now)
			}
		}
		if len(c.lines) == 0 {
			return nil
		}
		c.sync = true
		if err := c.write(f); err != nil {
			return err
		}
		return f.read()
	})
	return len(c.tags), err
}
