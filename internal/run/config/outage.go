package config

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// DefaultOutageAfter is the default of backend= in ALARMS.
const DefaultOutageAfter = 10 * time.Second

// OutageAfter returns how long what a program asks has to be in trouble before an alarm begins, by
// backend= in ALARMS; negative: there is no such alarm. The scheduler reports a value that cannot be
// used; then the default counts.
func (c *Config) OutageAfter() time.Duration {
	after := DefaultOutageAfter
	for word := range strings.FieldsSeq(c.String("ALARMS", "")) {
		value, ok := strings.CutPrefix(word, "backend=")
		if word == "off" || ok && value == "0" {
			return -1
		}
		if d, err := ParseDuration(value); ok && err == nil && d > 0 {
			after = d
		}
	}
	return after
}

// Backend is something that a program asks: a server, a service, a child process.
type Backend struct {
	Name   string // as the alarm names it: the source of a table, milter:ADDRESS, auth:SOURCE
	Remedy string // what an operator does about it
	// Failures in a row are needed for an alarm; 0: 1.
	Failures int
	// AtOnce: the first failure is an alarm, however short the trouble is.
	AtOnce bool
}

// again is how often the note of a lasting outage is written anew.
const again = time.Minute

// Outage raises an alarm, by a Keeper, while something that a program asks gives no answer, and ends it
// with the next answer, also that of a process before this one. It begins with a failure some time
// after the first (Keeper.OutageAfter), if there was no answer between them: one failure is no alarm.
// Many goroutines may use it.
type Outage struct {
	keeper Keeper
	of     Backend
	now    func() time.Time

	mu       sync.Mutex
	failures int       // in a row
	since    time.Time // of the first of them
	noted    time.Time // of the note; the zero value: the Keeper has none of this outage
	answered bool      // the Keeper knows that it answers
}

// NewOutage names what is asked. A nil keeper raises nothing.
func NewOutage(k Keeper, b Backend) *Outage {
	if k != nil {
		k.Names(b.Name)
	}
	return &Outage{keeper: k, of: b, now: time.Now}
}

// Failed notes a failure; the end of the caller's context does not count as one.
func (o *Outage) Failed(err error) {
	if o.keeper == nil || errors.Is(err, context.Canceled) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	if o.failures++; o.failures == 1 {
		o.since = now
	}
	after := o.keeper.OutageAfter()
	if o.failures < o.of.Failures || after < 0 || !o.of.AtOnce && now.Sub(o.since) < after {
		return
	}
	// Noted again for the last error, and because another process may have ended this alarm.
	if o.noted.IsZero() || now.Sub(o.noted) >= again {
		o.noted, o.answered = now, false
		o.keeper.Away(o.of.Name, o.since, err, o.of.Remedy)
	}
}

// Answers notes an answer.
func (o *Outage) Answers() {
	if o.keeper == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures = 0
	if !o.answered {
		o.noted, o.answered = time.Time{}, true
		o.keeper.Good(o.of.Name, nil, 0, nil)
	}
}

// Note notes what came of a question.
func (o *Outage) Note(err error) {
	if err != nil {
		o.Failed(err)
		return
	}
	o.Answers()
}
