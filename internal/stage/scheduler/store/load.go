package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/workspec"
)

// Loaded is the content of a work specification that the engine works on.
type Loaded struct {
	Name   string // below transport/; a new one after a change of hash depth
	Number uint64 // of the message, in the answers of agents
	ID     postoffice.SpoolID
	Open   []Waiting // recipients for agents, by channel, host and offset
	Held   int       // open recipients that do not wait for an agent
	Aside  []int64   // those, by offset
	Total  int       // recipients, final ones included
	Sender uint32    // key of the sender, for taking turns
	From   string    // its address; "": the null sender
	Ident  string    // identification of the message, mostly its Message-ID
	Origin Origin    // where it came from, for the log
	// Obsoletes names the messages that it supersedes; nil: none.
	Obsoletes *Superseding
	// Judged: messages that supersede it were checked.
	Judged bool
	// Final reports whether recipients with a final tag were delivered.
	Final map[int64]bool
	Start []string // hosts that are to be tried now (ETRN)
	// Look is when Settle has something to do; zero: never.
	Look time.Time
	// Wake is when the first hold ends, zero if none does.
	Wake time.Time
	// Owes: the file has more than tags, so that its end needs a Settle.
	Owes bool
	// Unserved: some recipients have no agent, by the clauses of Conf.
	Unserved bool
	Conf     *conf.File
	// Accepted is when it was accepted, if its file's time is in the future; else zero.
	Accepted time.Time
	// Away is how long it lay in removed/, which does not count for its age.
	Away time.Duration
	// Gone: nothing is to be done; the reason was logged.
	Gone bool
}

// Origin is where a message came from, as its specification has it.
type Origin struct {
	From, MessageID          string
	Client, ClientName, User string // as workspec.Spec has them
}

func cameFrom(spec *workspec.Spec) Origin {
	o := Origin{MessageID: spec.Ident, Client: spec.Client, ClientName: spec.ClientName, User: spec.User}
	if len(spec.Groups) > 0 && spec.Groups[0].Sender.Channel != "error" {
		o.From = spec.Groups[0].Sender.Address
	}
	return o
}

// Waiting is an open recipient.
type Waiting struct {
	Offset        int64
	Channel, Host string
	Address       string
	Locked        bool          // by an agent that lives
	Attempts      int           // that ended in a deferral
	Next          time.Time     // not before
	HostTries     int           // failures of the host in a row; 0: the recipient was deferred for itself
	Hurry         bool          // an operator wants it tried now
	Away          time.Duration // does not count for its age, besides Loaded.Away
	HostText      string
	Moves         int // how often a rule on replies gave it another source
}

// loader reads specifications, and mends what processes that ended left in them.
type loader struct {
	*Env
	recorder   *recorder
	reporter   *reporter
	holds      *holds
	summariser *summariser
	ender      *ender
	sweeper    *sweeper
}

// Load reads a specification, mends what dead processes left in it, decides about
// recipients on channels that no agent serves, and moves it to its hash directory.
// Errors: postoffice.ErrGone, workspec.ErrUnknownFormat and *workspec.SyntaxError
// mean that the file is to be left alone; ErrMessageGone, that it waits for its message,
// see Abandon; others are the disk's.
func (s *loader) Load(name string) (*Loaded, error) { return s.loadAgain(name, loadAny) }

// Reload is Load for a specification that was complete before: if it is not now, it is left
// alone, with ErrCut.
func (s *loader) Reload(name string) (*Loaded, error) { return s.loadAgain(name, loadKnown) }

// LoadNew is Load for a name that has just appeared: a file that is not complete may be being
// written, and is left alone for a while, with ErrUnfinished.
func (s *loader) LoadNew(name string) (*Loaded, error) { return s.loadAgain(name, loadNew) }

// ErrUnfinished means that a specification is not complete, and was written a moment
// ago.
var ErrUnfinished = errors.New("it is being written")

// unfinishedGrace is how long a specification without its end may be under way.
const unfinishedGrace = 10 * time.Second

// loadMode is what the caller knows about a specification.
type loadMode int

const (
	loadAny   loadMode = iota // nothing
	loadKnown                 // it was complete before
	loadNew                   // its name has just appeared
)

// ErrCut means that a specification lost its end while it was in use, which no crash does to
// a file that was read whole. Routing the message again would deliver it again.
var ErrCut = errors.New("it was complete before and is not now")

func (s *loader) loadAgain(name string, a loadMode) (*Loaded, error) {
	at := name
	for range looksInAll {
		l, again, err := s.loadAt(at, a)
		if err != nil || again == "" {
			return l, err
		}
		at = again
	}
	return nil, fmt.Errorf("read specification %s: moved %d times meanwhile", name, looksInAll)
}

// looksInAll bounds how often a moved specification is followed.
const looksInAll = 5

// loadAt is Load under one name. again: the specification or its message was moved there.
func (s *loader) loadAt(name string, a loadMode) (l *Loaded, again string, err error) {
	f, err := s.open(name)
	if err != nil {
		return nil, "", err
	}
	defer f.close()
	f.before = a
	if l, again, err := s.loadOdd(f); l != nil || again != "" || err != nil {
		return l, again, err
	}
	dead := s.deadLocks(f)
	if s.wantsMending(f, dead) {
		if err := s.mend(f, dead); err != nil {
			return nil, "", err
		}
	}
	if a == loadNew && f.long(0, 1) {
		// Nothing else in this scheduler uses it yet.
		if err := s.summariser.summarise(f); err != nil {
			return nil, "", err
		}
	}
	if l, err = s.describe(f, dead); err != nil {
		return nil, "", err
	}
	if !slices.ContainsFunc(l.Open, func(w Waiting) bool { return w.Locked }) {
		if s.PostOffice.Queue.Place(name) != name {
			s.sweeper.moves.Add(1)
		}
		if l.Name, err = s.PostOffice.Queue.Rehash(name); err != nil {
			return nil, "", err
		}
	}
	return l, "", nil
}

// loadOdd handles files without mail to deliver. All zero: f is not one.
func (s *loader) loadOdd(f *work) (l *Loaded, again string, err error) {
	gone := func() *Loaded { return &Loaded{Name: f.Name, Gone: true, Start: startHosts(f.spec)} }
	switch {
	case f.before == loadNew && !f.spec.Complete && len(f.spec.Start) == 0 && s.Now().Sub(f.Info.ModTime).Abs() < unfinishedGrace:
		return nil, "", fmt.Errorf("read specification %s: %w", f.Name, ErrUnfinished)
	case len(f.spec.Start) > 0 && len(f.spec.Groups) == 0:
		s.emit(events.Kicked, "name", f.Name, "host", strings.Join(startHosts(f.spec), " "))
		return gone(), "", s.PostOffice.Queue.Finish(f.Name)
	case f.noMessage:
		again, err := s.ender.alone(f)
		if err != nil || again != "" {
			return nil, again, err
		}
		return gone(), "", nil
	case !f.spec.Complete && f.before == loadKnown:
		return nil, "", fmt.Errorf("read specification %s: %w", f.Name, ErrCut)
	case !f.spec.Complete:
		s.Log.Warn("recovered", "id", f.id, "name", f.Name, "action", postoffice.Rerouted,
			"reason", "the specification is not complete; the router writes it again")
		return gone(), "", s.PostOffice.Queue.Reroute(f.Name)
	}
	return nil, "", nil
}

// startHosts returns the hosts that are to be tried now. ZMailer's SMTP server writes the
// client after the name.
func startHosts(spec *workspec.Spec) []string {
	var list []string
	for _, line := range spec.Start {
		if host, _, _ := strings.Cut(strings.TrimSpace(line), " "); host != "" {
			list = append(list, host)
		}
	}
	return list
}

// deadLocks returns the owners of the file's locks whose processes have ended.
func (s *Env) deadLocks(f *work) map[int]bool {
	var dead map[int]bool
	for _, r := range f.spec.All() {
		if r.Tag != workspec.TagLocked {
			continue
		}
		if _, known := dead[r.Owner]; known {
			continue
		}
		if dead == nil {
			dead = map[int]bool{}
		}
		alive, err := s.PostOffice.Owners.Alive(r.Owner)
		if err != nil {
			s.Log.Error("disk", "name", f.Name, "reason", err)
			alive = true
		}
		dead[r.Owner] = !alive
	}
	return dead
}

// wantsMending reports whether mend has something to do.
func (s *loader) wantsMending(f *work, dead map[int]bool) bool {
	found, failed := false, false
	for _, r := range f.spec.All() {
		found = found || f.tagOf(r) != r.Tag
		switch r.Tag {
		case workspec.TagLocked:
			found = found || dead[r.Owner]
		case workspec.TagToDo:
			found = found || r.Channel == builtin.Error || r.Channel == builtin.Bitbucket
		case workspec.TagFailed:
			failed = true
		}
	}
	return found || failed && len(undiagnosed(f)) > 0
}

// mend releases dead locks (M18), ends reroutings that a crash interrupted, sets the tags
// that operators decided (A15), ends recipients of channels without an agent, and writes the
// diagnostics that are missing.
func (s *loader) mend(f *work, dead map[int]bool) error {
	return f.underLock(func() error {
		if err := s.reporter.resumeReroutes(f); err != nil {
			return err
		}
		var c changes
		now := s.Now()
		missing := undiagnosed(f)
		last := lastDeferrals(f.spec)
		for g, r := range f.spec.All() {
			if r.Tag == workspec.TagLocked && dead[r.Owner] {
				s.Log.Warn("recovered", "id", f.id, "name", f.Name, "rcpt", r.Address, "action", "unlocked", "owner", r.Owner)
				c.event(workspec.Event{Time: now, Recipient: r.Offset, Event: workspec.EventUnlocked,
					Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(r.Owner)}}})
				r.Tag, r.Owner = workspec.TagToDo, 0
				c.tag(f, r, workspec.TagToDo)
			}
			if tag := f.tagOf(r); tag != r.Tag {
				r.Tag = tag
				c.tag(f, r, tag)
			}
			switch {
			case missing[r.Offset]:
				c.diagnose(g, r, last[r.Offset], now)
			case r.Tag == workspec.TagToDo && r.Channel == builtin.Error:
				s.failNow(f, g, r, &c, now)
			case r.Tag == workspec.TagToDo && r.Channel == builtin.Bitbucket:
				s.dropNow(f, g, r, &c, now)
			}
		}
		if err := c.write(f); err != nil {
			return err
		}
		return f.read()
	})
}

// failNow fails a recipient on channel error.
func (s *loader) failNow(f *work, g *workspec.Group, r *workspec.Recipient, c *changes, now time.Time) {
	code, text := builtin.ErrorHost(r.Host)
	c.diagnostic(g, r, now, failure(code, text), text)
	c.tag(f, r, workspec.TagFailed)
	c.sync = true
	s.emit(events.Failed, "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
		"status", code.String(), "reply", text, "took", now.Sub(f.arrival()))
}

// dropNow ends a recipient on channel bitbucket as delivered. An address that the router
// expanded is there only for its report.
func (s *loader) dropNow(f *work, g *workspec.Group, r *workspec.Recipient, c *changes, now time.Time) {
	action, reply := dsn.Delivered, "dropped"
	switch r.Host {
	case builtin.Expanded:
		action, reply = dsn.Expanded, "expanded"
	case builtin.List:
		reply = "taken by the list"
	}
	if report.Requested(r.Notary, nil).Success {
		c.diagnostic(g, r, now, workspec.Notary{Action: string(action), Status: status.OK.String(), Agent: "scheduler"}, "")
	}
	c.tag(f, r, workspec.TagOK)
	s.emit(events.Delivered, "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
		"reply", reply, "took", now.Sub(f.arrival()))
}

// describe returns the content of the file for the engine.
func (s *loader) describe(f *work, dead map[int]bool) (*Loaded, error) {
	number, ok := f.spec.Number()
	if !ok {
		return nil, fmt.Errorf("read specification %s: %w", f.Name,
			&workspec.SyntaxError{Line: "i " + f.spec.Message, Reason: "the message's name is no number"})
	}
	l := &Loaded{Conf: s.Conf.Current(), Name: f.Name, Number: number, ID: f.id, Start: startHosts(f.spec), Away: f.away(), Sender: senderKey(f.spec), From: senderOf(f.spec), Ident: f.spec.Ident, Origin: cameFrom(f.spec), Obsoletes: supersedes(f.id, f.spec),
		Owes: len(f.spec.Diagnostics) > 0 || len(f.spec.History) > 0}
	if at := f.arrival(); at.Before(f.id.Time()) {
		l.Accepted = at
	}
	last, held := lastDeferrals(f.spec), unservedNow(f.spec)
	var c changes
	now := s.Now()
	n := 0
	for _, r := range f.spec.All() {
		l.Total++
		if !final(r.Tag) {
			n++
		}
	}
	l.Open = make([]Waiting, 0, n)
	for g, r := range f.spec.All() {
		if final(r.Tag) {
			if l.Final == nil {
				l.Final = map[int64]bool{}
			}
			l.Final[r.Offset] = r.Tag == workspec.TagOK
			continue
		}
		locked := r.Tag == workspec.TagLocked && !dead[r.Owner]
		if !locked && f.orders.Waits(r, now) {
			if o := f.orders.Of(r.Offset); o.Freeze == nil && o.Held(now) {
				l.Wake = Earliest(l.Wake, o.Until)
			}
			l.setAside(r)
			continue
		}
		settings, ok := s.served(f, r, held[r.Offset], &c)
		if !ok {
			l.Unserved = true
			l.setAside(r)
			continue
		}
		e := last[r.Offset]
		if e == nil && (settings.NotBefore != "" || settings.MinAge > 0) {
			e = s.waitForFirst(f, g, r, settings, &c)
		}
		l.Open = append(l.Open, s.waiting(f, g, r, settings, e, locked))
	}
	slices.SortStableFunc(l.Open, func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Channel, b.Channel), strings.Compare(strings.ToLower(a.Host), strings.ToLower(b.Host)), cmp.Compare(a.Offset, b.Offset))
	})
	s.enterBack(f, l)
	l.Look = s.reporter.nextLook(f, s.Now(), true)
	if l.Held > 0 {
		l.Look = Earliest(Earliest(Earliest(l.Look, l.Wake), s.recorder.nextUnserved(f)), s.holds.nextHold(f, now))
	}
	// Crash: the history lacks a line that the next start writes.
	return l, c.write(f)
}

// setAside counts a recipient that does not wait for an agent.
func (l *Loaded) setAside(r *workspec.Recipient) {
	l.Held++
	l.Aside = append(l.Aside, r.Offset)
}

// waiting describes an open recipient for an agent; last is its last deferral or nil.
func (s *Env) waiting(f *work, g *workspec.Group, r *workspec.Recipient, settings *conf.Settings, last *workspec.Event, locked bool) Waiting {
	w := Waiting{Offset: r.Offset, Channel: r.Channel, Host: r.Host, Address: strings.Clone(r.Address), Locked: locked, Moves: f.moves[r.Offset]}
	now, line := s.Now(), int64(0)
	if last != nil {
		line = last.LineOffset
	}
	w.Away = f.awayOf(r, now)
	if f.orders != nil {
		o := f.orders.Of(r.Offset)
		w.Hurry = o.Hurried(line)
		if o.Fresh(line) {
			last = nil
		}
	}
	if last != nil {
		w.Attempts = int(attrInt(last, "attempt"))
	}
	switch {
	case w.Hurry:
	case last != nil:
		w.Next = nextOf(last, now)
		if w.HostTries = int(attrInt(last, attrHost)); w.HostTries > 0 {
			w.HostText = strings.Clone(last.Text)
		}
	}
	return w
}

// served reports whether a recipient has an agent, and records it when that has changed. Z8:
// a recipient without an agent is logged each time.
func (s *loader) served(f *work, r *workspec.Recipient, held bool, c *changes) (*conf.Settings, bool) {
	settings, unserved := s.Unserved(r)
	reason := "no clause of scheduler.conf with a command matches it; it waits for one until it expires"
	if unserved && r.Channel == builtin.Hold {
		_, err := builtin.ParseCondition(r.Host)
		if err == nil {
			return nil, false
		}
		reason = "invalid condition of channel hold: " + err.Error() + "; it waits until it expires"
	}
	if unserved {
		s.emit(events.Unserved, "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host, "reason", reason)
		if !held {
			c.event(workspec.Event{Time: s.Now(), Recipient: r.Offset, Event: workspec.EventUnserved, Text: reason})
		}
		return nil, false
	}
	if held {
		c.event(workspec.Event{Time: s.Now(), Recipient: r.Offset, Event: workspec.EventServed})
	}
	return settings, true
}
