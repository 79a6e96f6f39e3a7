package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/status"
	"zmailer/internal/workspec"
)

// Loaded is what a work specification asks for.
type Loaded struct {
	Name   string // below transport/; another than was asked for after a change of hash depth
	Number uint64 // that answers name
	ID     postoffice.SpoolID
	Open   []Waiting // recipients for agents, by channel, host and offset
	Held   int       // open recipients that wait for something else
	// Final tells of recipients with a final tag whether they were delivered.
	Final map[int64]bool
	Start []string // hosts that are to be tried now (T)
	// Look is when Settle has something to do, zero if never: a report, or the end.
	Look time.Time
	// Owes: the file holds more than tags, so its end wants a Settle.
	Owes bool
	// Gone: nothing is to be done, now or later; the reason was logged.
	Gone bool
}

// Waiting is an open recipient.
type Waiting struct {
	Offset        int64
	Channel, Host string
	Address       string
	Locked        bool      // by an agent that lives
	Attempts      int       // that ended in a deferral
	Next          time.Time // not before
	HostTries     int       // failures of the host in a row, which made it wait; 0: the recipient's own
	HostText      string
}

// Load reads a specification, mends what dead processes left in it, decides about
// recipients on channels that no agent serves, and moves it to its hash directory.
// Errors: postoffice.ErrGone, workspec.ErrUnknownFormat and *workspec.SyntaxError
// mean that the file is to be left alone; others are the disk's.
func (s *Spool) Load(name string) (*Loaded, error) {
	f, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if l, err := s.loadOdd(f); l != nil || err != nil {
		return l, err
	}
	dead := s.deadLocks(f)
	if s.wantsMending(f, dead) {
		if err := s.mend(f, dead); err != nil {
			return nil, err
		}
	}
	l, err := s.describe(f, dead)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(l.Open, func(w Waiting) bool { return w.Locked }) {
		if l.Name, err = s.PostOffice.Rehash(name); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// loadOdd deals with files that hold nothing to deliver. nil, nil: f is none.
func (s *Spool) loadOdd(f *opened) (*Loaded, error) {
	gone := &Loaded{Name: f.Name, Gone: true, Start: f.spec.Start}
	switch {
	case len(f.spec.Start) > 0 && len(f.spec.Groups) == 0:
		s.Log.Info("etrn", "name", f.Name, "host", strings.Join(f.spec.Start, " "))
		return gone, s.PostOffice.Finish(f.Name)
	case f.noMessage:
		return gone, s.finishHalf(f)
	case !f.spec.Complete:
		s.Log.Warn("recovered", "id", f.id, "name", f.Name, "action", postoffice.Rerouted,
			"reason", "its specification is not complete; the router writes it again")
		return gone, s.PostOffice.Reroute(f.Name)
	}
	return nil, nil
}

// finishHalf removes a specification whose message is gone: it was finishing.
func (s *Spool) finishHalf(f *opened) error {
	open := 0
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if !final(r.Tag) {
			open++
			s.Log.Error("message-lost", "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
				"reason", "its file in queue/ was removed while this recipient was open; restore it from a copy if there is one")
		}
	})
	if open == 0 {
		s.Log.Info("recovered", "name", f.Name, "action", postoffice.Completed)
	}
	return s.PostOffice.Finish(f.Name)
}

// deadLocks are the owners in the file's locks that no longer live.
func (s *Spool) deadLocks(f *opened) map[int]bool {
	var dead map[int]bool
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if r.Tag != workspec.TagLocked {
			return
		}
		if _, known := dead[r.Owner]; known {
			return
		}
		if dead == nil {
			dead = map[int]bool{}
		}
		alive, err := s.PostOffice.OwnerAlive(r.Owner)
		if err != nil {
			s.Log.Error("disk", "name", f.Name, "reason", err)
			alive = true
		}
		dead[r.Owner] = !alive
	})
	return dead
}

// wantsMending tells whether mend has something to do.
func (s *Spool) wantsMending(f *opened, dead map[int]bool) bool {
	found, failed := false, false
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		switch r.Tag {
		case workspec.TagLocked:
			found = found || dead[r.Owner]
		case workspec.TagToDo:
			found = found || r.Channel == channelError || r.Channel == channelBitbucket
		case workspec.TagFailed:
			failed = true
		}
	})
	return found || failed && len(undiagnosed(f)) > 0
}

// undiagnosed are the failed recipients without a d line that says so: a foreign
// agent died, or we did, between tag and line.
func undiagnosed(f *opened) map[int64]bool {
	m := map[int64]bool{}
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if r.Tag == workspec.TagFailed {
			m[r.Offset] = true
		}
	})
	for i := range f.spec.Diagnostics {
		if d := &f.spec.Diagnostics[i]; d.Notary.Action == "failed" {
			delete(m, d.Recipient)
		}
	}
	return m
}

// mend releases dead locks (M18), decides about channels without an agent, and
// writes the diagnostics that are missing.
func (s *Spool) mend(f *opened, dead map[int]bool) error {
	return f.underLock(func() error {
		var c changes
		now := s.Now()
		missing := undiagnosed(f)
		last := f.deferrals()
		f.recipients(func(g *workspec.Group, r *workspec.Recipient) {
			if r.Tag == workspec.TagLocked && dead[r.Owner] {
				s.Log.Warn("recovered", "id", f.id, "name", f.Name, "rcpt", r.Address, "action", "released", "owner", r.Owner)
				c.event(workspec.Event{Time: now, Recipient: r.Offset, Event: workspec.EventReleased,
					Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(r.Owner)}}})
				r.Tag, r.Owner = workspec.TagToDo, 0
				c.tag(f, r, workspec.TagToDo)
			}
			switch {
			case missing[r.Offset]:
				n, text := failure(status.Code{Class: 5}, "failed; its agent left no reason"), ""
				if e := last[r.Offset]; e != nil {
					n.Diagnostic, text = "x-local; "+e.Text, e.Text
				}
				c.diagnostic(g, r, now, n, text)
				c.sync = true
			case r.Tag == workspec.TagToDo && r.Channel == channelError:
				s.failNow(f, g, r, &c, now)
			case r.Tag == workspec.TagToDo && r.Channel == channelBitbucket:
				s.dropNow(f, g, r, &c, now)
			}
		})
		if err := c.write(f); err != nil {
			return err
		}
		return f.read()
	})
}

// failNow fails a recipient on channel error.
func (s *Spool) failNow(f *opened, g *workspec.Group, r *workspec.Recipient, c *changes, now time.Time) {
	code, text := errorHost(r.Host)
	c.diagnostic(g, r, now, failure(code, text), text)
	c.tag(f, r, workspec.TagFailed)
	c.sync = true
	s.Log.Info("failed", "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
		"status", code.String(), "reply", text)
}

// errorHost is what a host of channel error means.
func errorHost(host string) (status.Code, string) {
	switch host {
	case "nouser":
		return status.BadMailbox, "no such user here"
	case "badaddress":
		return status.BadAddress, "this is not an address"
	case "loop":
		return status.RoutingLoop, "the address leads back to itself"
	case "norelay":
		return status.Code{Class: 5, Subject: 7, Detail: 1}, "mail for this domain is not taken from here"
	}
	return status.Code{Class: 5}, "cannot be delivered: " + host
}

// dropNow delivers a recipient on channel bitbucket.
func (s *Spool) dropNow(f *opened, g *workspec.Group, r *workspec.Recipient, c *changes, now time.Time) {
	if wants(r.Notary, noDecode).success {
		c.diagnostic(g, r, now, workspec.Notary{Action: "delivered", Status: status.OK.String(), Agent: "scheduler"}, "")
	}
	c.tag(f, r, workspec.TagOK)
	s.Log.Info("delivered", "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
		"reply", "dropped", "took", now.Sub(f.arrival()))
}

func noDecode(string) (string, error) { return "", errors.New("not asked for") }

// describe turns the file into what the engine needs to know.
func (s *Spool) describe(f *opened, dead map[int]bool) (*Loaded, error) {
	number, ok := f.spec.Number()
	if !ok {
		return nil, fmt.Errorf("read specification %s: %w", f.Name,
			&workspec.SyntaxError{Line: "i " + f.spec.Message, Reason: "the message's name is no number"})
	}
	l := &Loaded{Name: f.Name, Number: number, ID: f.id, Start: f.spec.Start,
		Owes: len(f.spec.Diagnostics) > 0 || len(f.spec.History) > 0}
	last, held := f.deferrals(), f.held()
	var c changes
	n := 0
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if !final(r.Tag) {
			n++
		}
	})
	l.Open = make([]Waiting, 0, n)
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if final(r.Tag) {
			if l.Final == nil {
				l.Final = map[int64]bool{}
			}
			l.Final[r.Offset] = r.Tag == workspec.TagOK
			return
		}
		if !s.served(f, r, held[r.Offset], &c) {
			l.Held++
			return
		}
		w := Waiting{Offset: r.Offset, Channel: r.Channel, Host: r.Host, Address: strings.Clone(r.Address),
			Locked: r.Tag == workspec.TagLocked && !dead[r.Owner]}
		if e := last[r.Offset]; e != nil {
			w.Attempts = int(attrInt(e, "attempt"))
			w.Next = time.UnixMilli(attrInt(e, "next"))
			if w.HostTries = int(attrInt(e, attrHost)); w.HostTries > 0 {
				w.HostText = strings.Clone(e.Text)
			}
		}
		l.Open = append(l.Open, w)
	})
	slices.SortStableFunc(l.Open, func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Channel, b.Channel), strings.Compare(strings.ToLower(a.Host), strings.ToLower(b.Host)), cmp.Compare(a.Offset, b.Offset))
	})
	l.Look = s.nextLook(f, s.Now(), true)
	// Crash: the history lacks a line that the next start writes.
	return l, c.write(f)
}

// served tells whether an agent can be had for a recipient, and notes it when that
// has changed. Z8: one that has none is never left to wait in silence.
func (s *Spool) served(f *opened, r *workspec.Recipient, held bool, c *changes) bool {
	settings := s.Conf.Match(r.Channel, r.Host)
	if r.Channel == channelHold && (settings == nil || !strings.HasPrefix(settings.Clause, channelHold)) {
		return false // only a clause of its own has an agent for it
	}
	if settings == nil {
		const reason = "no clause of scheduler.conf with a command matches it; the recipient waits until one does and the scheduler is started again"
		s.Log.Error("unknown-channel", "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host, "reason", reason)
		if !held {
			c.event(workspec.Event{Time: s.Now(), Recipient: r.Offset, Event: workspec.EventHeld, Text: reason})
		}
		return false
	}
	if held {
		c.event(workspec.Event{Time: s.Now(), Recipient: r.Offset, Event: workspec.EventServed})
	}
	return true
}
