// Package store is every change that the scheduler makes in the postoffice: it reads work
// specifications, records the outcomes of attempts, gives recipients up, submits reports,
// and removes what is done.
//
// It owns the lines and tags that the scheduler writes into a specification, and the end
// of a message's files. A message is read into a Loaded; what happens to it after that, and
// when, the engine decides.
//
// What survives a crash: everything. Each method writes its lines, syncs them before
// anything depends on them, and sets the tags after that; a method that was interrupted
// is completed by the next Load or Settle of the same message.
//
// Diagnostics: postoffice.ErrGone, workspec.ErrUnknownFormat and *workspec.SyntaxError mean
// that a file is to be left alone. ErrMessageGone, ErrUnfinished, ErrCut and ErrUnreported
// say why a message cannot be used or ended now. Other errors are the disk's.
package store

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/workspec"
)

// Env is what all parts of a Store work with.
type Env struct {
	PostOffice *postoffice.PostOffice
	Conf       *conf.File
	Hostname   string
	Postmaster string // sender of reports
	Now        func() time.Time
	Started    time.Time // of the scheduler
	// KeepRemoved is how long messages stay in removed/; 0: forever.
	KeepRemoved time.Duration
	// Resolver is the name server for conditions of channel hold, host:port; "": those of
	// /etc/resolv.conf.
	Resolver string
	Log      *slog.Logger
	Stream   *events.Stream  // gets events, too; nil: none
	Ledger   *ledger.Journal // records each message's end and each report; nil: nothing does
	Meters   Meters

	site atomic.Pointer[Site] // replaces what was set at the start; nil: nothing does
}

// Site is what a reload of zmailer.conf may change.
type Site struct {
	Hostname, Postmaster, Resolver string
	KeepRemoved                    time.Duration
}

// Adopt has other settings take effect. Many goroutines may work meanwhile.
func (e *Env) Adopt(s Site) { e.site.Store(&s) }

// current returns the settings in effect.
func (e *Env) current() Site {
	if s := e.site.Load(); s != nil {
		return *s
	}
	return Site{e.Hostname, e.Postmaster, e.Resolver, e.KeepRemoved}
}

// Store is every change that the scheduler makes on the disk. Each method does its work
// before it returns. Several may run at once for different messages, one at a time for the
// same message. An error means that the change was not made, or that a part of it was made,
// which a later call of the same method finds and completes.
type Store struct {
	*Env
	*loader     // reads specifications
	*recorder   // records what became of recipients
	*reporter   // reports to senders
	*holds      // waits for the conditions of channel hold
	*summariser // shortens long histories
	*ender      // removes messages that are done
	*decisions  // logs what operators did
	*sweeper    // removes what crashed processes left
}

// New returns a Store. env stays in use: who changes it changes what the Store works with.
func New(env *Env) *Store {
	s := &Store{Env: env, recorder: &recorder{env}, reporter: &reporter{env}, holds: &holds{Env: env},
		decisions: &decisions{Env: env}, sweeper: &sweeper{Env: env}}
	s.summariser = &summariser{env, s.decisions}
	s.ender = &ender{env, s.reporter, s.decisions, s.sweeper}
	s.loader = &loader{env, s.recorder, s.reporter, s.holds, s.summariser, s.ender, s.sweeper}
	return s
}

// emit emits an event.
func (s *Env) emit(k events.Kind, args ...any) {
	events.Emitter{Log: s.Log, Stream: s.Stream}.Emit(k, args...)
}

// work is a work specification with its content.
type work struct {
	*postoffice.Spec
	raw  []byte
	spec *workspec.Spec
	id   postoffice.SpoolID
	// opened is when that was, and changed when the message's inode was changed last.
	opened, changed time.Time
	// noMessage: queue/NAME is gone.
	noMessage bool
	removal   *workspec.Removal // nil: no recipient was ever removed
	reopens   map[int64]int64   // of reopensOf, see reopenedAt
	reopensOf *workspec.Spec
	orders    *workspec.Orders // nil: no operator decided anything
	// wished has the times before which no attempt was wanted; nil: there are none.
	wished map[int64]time.Time
	// moves has how often recipients were given another source; nil: none was.
	moves  map[int64]int
	before loadMode
	// only are the recipients that are read; nil: all.
	only []int64
}

// open reads a specification and describes its message.
func (s *Env) open(name string) (*work, error) { return s.openFor(name, nil) }

// openFor is open for some recipients, by their offsets: of a list with very many, the
// others are not even read.
func (s *Env) openFor(name string, only []int64) (*work, error) {
	f, err := s.openUnread(name, only)
	if err != nil {
		return nil, err
	}
	if err := f.read(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openUnread is openFor without reading the file, for underLock.
func (s *Env) openUnread(name string, only []int64) (*work, error) {
	file, err := s.PostOffice.Queue.Open(name)
	if err != nil {
		return nil, err
	}
	f := &work{Spec: file}
	if only != nil {
		f.only = slices.Sorted(slices.Values(only))
	}
	info, err := s.PostOffice.Queue.StatMessage(name)
	switch {
	case errors.Is(err, postoffice.ErrGone):
		f.noMessage = true
	case err != nil:
		return nil, errors.Join(err, file.Close())
	default:
		f.id, f.opened, f.changed = postoffice.IDOf(info), s.Now(), info.CTime
	}
	return f, nil
}

func (f *work) read() (err error) {
	if f.raw, err = f.Read(); err != nil {
		return err
	}
	var want func(int64, []byte, []byte) bool
	if f.only != nil {
		want = func(offset int64, _, _ []byte) bool {
			_, ok := slices.BinarySearch(f.only, offset)
			return ok
		}
	}
	if f.spec, err = workspec.ParseOnly(f.raw, want); err != nil {
		return fmt.Errorf("read specification %s: %w", f.Name, err)
	}
	f.removal, f.orders, f.wished, f.moves = f.spec.Removal(), f.spec.Orders(), firstAttempts(f.spec), f.spec.SourceMoves()
	return nil
}

// tagOf returns the tag that a recipient should have by the decisions of operators.
func (f *work) tagOf(r *workspec.Recipient) workspec.Tag {
	return workspec.Decided(f.removal, f.orders, r)
}

// close closes the files. Nothing is buffered and everything durable was synced, so an error
// of close(2) means nothing.
func (f *work) close() { _ = f.Close() }

// find returns the recipient at an offset; offsets ascend in a group.
func (f *work) find(offset int64) (*workspec.Group, *workspec.Recipient) {
	for gi := range f.spec.Groups {
		g := &f.spec.Groups[gi]
		i, ok := slices.BinarySearchFunc(g.Recipients, offset, func(r workspec.Recipient, off int64) int {
			return cmp.Compare(r.Offset, off)
		})
		if ok {
			return g, &g.Recipients[i]
		}
	}
	return nil, nil
}

// arrival returns when the message was accepted or, if its file is gone, when the specification
// was last changed.
func (f *work) arrival() time.Time {
	if f.noMessage {
		return f.Info.ModTime
	}
	at := f.id.Time()
	if at.After(f.opened.Add(clockSlack)) {
		return f.notAfter(f.opened)
	}
	return at
}

// notAfter returns the latest time of acceptance of a message whose file has a time in the
// future, because it or the clock was set. The inode's change time, which no user can set, and
// the history bound it, so that it stays the same from one start to the next.
func (f *work) notAfter(now time.Time) time.Time {
	at := now
	if !f.changed.IsZero() && f.changed.Before(at) {
		at = f.changed
	}
	for i := range f.spec.History {
		if t := f.spec.History[i].Time; !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	return at
}

func final(t workspec.Tag) bool { return t == workspec.TagOK || t == workspec.TagFailed }

// attrHost of a deferral is how often in a row the host failed: the whole thread waits.
const attrHost = "host"

func attrInt(e *workspec.Event, key string) int64 {
	n, err := strconv.ParseInt(e.Get(key), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// changes are lines to append and tags to set after them.
type changes struct {
	lines []byte
	// Deferrals become one line for all recipients with the same reply.
	deferrals []deferrals
	sync      bool // the lines must be durable before the tags
	tags      []tagChange
}

type tagChange struct {
	bytes []byte
	off   int64
}

// tag sets a recipient's tag.
func (c *changes) tag(f *work, r *workspec.Recipient, t workspec.Tag) {
	c.tags = append(c.tags, tagChange{workspec.TagBytes(f.spec.Format, t), workspec.TagOffset(r.Offset)})
}

// diagnostic appends a recipient's d line.
func (c *changes) diagnostic(g *workspec.Group, r *workspec.Recipient, now time.Time, n workspec.Notary, text string) {
	c.diagnosticOf(g, r, now, n, text, false)
}

// diagnosticOf is diagnostic; reported: without a report.
func (c *changes) diagnosticOf(g *workspec.Group, r *workspec.Recipient, now time.Time, n workspec.Notary, text string, reported bool) {
	if n.Address == "" {
		n.Address = r.Address
	}
	c.lines = workspec.AppendDiagnostic(c.lines, &workspec.Diagnostic{
		Reported: reported, Recipient: r.Offset, HeaderOffset: g.HeaderOffset, NotaryOffset: r.NotaryOffset, Time: now, Notary: n, Text: text})
}

// event appends an h line.
func (c *changes) event(e workspec.Event) { c.lines = workspec.AppendEvent(c.lines, &e) }

// deferrals are a deferral and the recipients that it is about.
type deferrals struct {
	event workspec.Event
	of    []int64
}

// deferral appends the h line of a deferral of one recipient.
func (c *changes) deferral(e workspec.Event) {
	// Neighbours mostly have the same reply.
	for i := len(c.deferrals) - 1; i >= max(0, len(c.deferrals)-maxReplies); i-- {
		if d := &c.deferrals[i]; d.event.Text == e.Text && slices.Equal(d.event.Attrs, e.Attrs) {
			d.of = append(d.of, e.Recipient)
			return
		}
	}
	c.deferrals = append(c.deferrals, deferrals{e, []int64{e.Recipient}})
}

// maxReplies is how many replies are compared. With more different ones they differ by
// recipient.
const maxReplies = 32

// write makes the changes.
func (c *changes) write(f *work) error {
	for i := range c.deferrals {
		d := &c.deferrals[i]
		if len(d.of) > 1 {
			slices.Sort(d.of)
			f.spec.SetAbout(&d.event, slices.Compact(d.of))
		}
		c.event(d.event)
	}
	c.deferrals = nil
	if len(c.lines) > 0 {
		// Crash: lines without their tags: the recipients are still open, are dealt
		// with again and get another line; the last one counts.
		if err := f.Append(c.lines); err != nil {
			return err
		}
	}
	if c.sync {
		// Crash: as before, or the lines are durable; a tag is never ahead of its line. After an
		// error no tag is set: the caller logs it, and the recipients are dealt with again.
		if err := f.Sync(); err != nil {
			return err
		}
	}
	for _, t := range c.tags {
		// Crash: some tags are set; the others are open or locked as before.
		if err := f.SetTag(t.bytes, t.off); err != nil {
			return err
		}
	}
	return nil
}

// underLock runs fn with the specification locked and read again: agents look at
// tags and set their locks under the same lock.
func (f *work) underLock(fn func() error) (err error) {
	if err := f.Lock(); err != nil {
		return fmt.Errorf("lock %s: %w", f.Name, err)
	}
	defer func() { err = errors.Join(err, f.Unlock()) }()
	if err := f.read(); err != nil {
		return err
	}
	return fn()
}

// failure returns the status part of a failure that the scheduler decided.
func failure(code status.Code, text string) workspec.Notary {
	return workspec.Notary{Action: "failed", Status: code.String(), Diagnostic: "x-local; " + text, Agent: "scheduler"}
}

// Meters are what the store counts; the zero value counts nothing.
type Meters struct {
	Recipients *metrics.Counters   // channel, clause, result
	Reports    *metrics.Counters   // kind
	Life       *metrics.Histograms // channel, result
}

// expired counts a recipient that was given up.
func (m *Meters) expired(c *conf.File, channel, host string, took time.Duration) {
	if m.Recipients == nil {
		return
	}
	clause := ""
	if s := c.Current().Match(channel, host); s != nil {
		clause = s.Clause
	}
	m.Recipients.With(channel, clause, "expired").Add(1)
	m.Life.With(channel, "expired").Observe(max(took, 0))
}
