package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// States of a message, as docs/spool.md has them.
const (
	stateWriting    = "writing"
	stateAccepted   = "accepted"
	stateClaimed    = "claimed"
	stateHandedOver = "handed over"
	stateQueued     = "queued"
	stateFinishing  = "finishing"
	stateDeferred   = "deferred"
	stateFrozen     = "frozen"
	stateSetAside   = "set aside" // postman/, the only copy
	stateCopy       = "copy"      // postman/, the mail went on
	stateRemoved    = "removed"   // removed/, zmctl undo puts it back
)

// States of a recipient.
const (
	toRoute    = "to route"
	waiting    = "waiting"
	noClause   = "unserved" // no clause of scheduler.conf does
	delivering = "delivering"
	stale      = "locked by the dead"
	delivered  = "delivered"
	failed     = "failed"
	removed    = "removed" // by zmctl remove
	held       = "held"    // by zmctl hold, or a rule
	frozen     = "frozen"  // waits for a person
	rerouted   = "rerouted"
	wentOn     = "went on" // of a copy: its message did
)

// message is what the files of one message say.
type message struct {
	ID         string      `json:"id,omitempty"` // "" if the message file is gone
	Name       string      `json:"name"`         // last element of its file's name
	State      string      `json:"state"`
	Files      []string    `json:"files"`
	Since      time.Time   `json:"since"` // when it was accepted
	AgeSeconds int64       `json:"age_seconds"`
	Size       int64       `json:"size"` // bytes of the message file
	Sender     string      `json:"sender"`
	HasSender  bool        `json:"-"`
	Why        string      `json:"why,omitempty"` // of deferred, frozen and set aside
	Owner      *owner      `json:"owner,omitempty"`
	Recipients []recipient `json:"recipients"`
	Problem    string      `json:"problem,omitempty"`

	Reason string `json:"reason,omitempty"` // of what is put aside: in full

	octets   int64 // that its first line says; -1: none
	unusable bool  // its envelope cannot be used
	hidden   int   // recipients that were not selected
	unread   bool  // Problem is that a file cannot be read
	denied   bool  // and only because of who asks
	newer    bool  // the specification is of a format that is not known here
	id       postoffice.SpoolID
	message  file               // zero if there is none
	spec     file               // zero if there is none
	parsed   *workspec.Spec     // nil if there is none that can be read
	raw      []byte             // of the specification
	envelope *envelope.Envelope // nil if it was not read
}

// recipient is one recipient and what became of it so far.
type recipient struct {
	Address  string     `json:"address"`
	Channel  string     `json:"channel,omitempty"`
	Host     string     `json:"host,omitempty"`
	State    string     `json:"state"`
	Attempts int        `json:"attempts"`
	Next     *time.Time `json:"next,omitempty"`
	Status   string     `json:"status,omitempty"`
	Last     string     `json:"last,omitempty"`     // last answer
	Unserved string     `json:"unserved,omitempty"` // why nothing serves it
	Owner    *owner     `json:"owner,omitempty"`
	Reported bool       `json:"reported,omitempty"`
	Until    *time.Time `json:"until,omitempty"`  // end of a hold
	By       string     `json:"by,omitempty"`     // who holds it, froze it, ...
	Reason   string     `json:"reason,omitempty"` // and why
	Cause    string     `json:"cause,omitempty"`  // of frozen, if it was no person
	Ordered  *time.Time `json:"ordered,omitempty"`
	Order    string     `json:"order,omitempty"`

	offset int64 // of its line in the specification
}

func (r *recipient) open() bool {
	switch r.State {
	case delivered, failed, removed, rerouted:
		return false
	}
	return true
}

// sender is the address with brackets, or that it is not known here.
func (m *message) sender() string {
	if !m.HasSender && m.unread {
		return "(not known)"
	}
	if !m.HasSender {
		return "(owner of the file)"
	}
	return "<" + m.Sender + ">"
}

// loadFile makes a message of a file in public/, router/, deferred/, freezer/ or
// postman/: its envelope tells the recipients.
func (s *spool) loadFile(f file, state string) (*message, error) {
	m := &message{State: state, Name: f.Name, Files: []string{f.path()}, message: f}
	m.setMessage(s, f)
	if err := s.readEnvelope(m); err != nil {
		return nil, err
	}
	if m.envelope == nil {
		return m, nil
	}
	m.Sender, m.HasSender = human.Clean(m.envelope.From), m.envelope.HasFrom
	for _, r := range m.envelope.Recipients {
		m.Recipients = append(m.Recipients, recipient{Address: human.Clean(r.Address), State: toRoute})
	}
	if len(m.Recipients) == 0 {
		m.Recipients = []recipient{{Address: "(those of the header)", State: toRoute}}
	}
	return m, nil
}

func (m *message) setMessage(s *spool, f file) {
	m.message, m.id = f, postoffice.IDOf(f.Info)
	m.ID = m.id.String()
	m.Since, m.Size = f.Info.ModTime, f.Info.Size
	m.AgeSeconds = int64(max(s.now.Sub(m.Since), 0) / time.Second)
}

// readEnvelope reads the head of the message file; what is wrong with it becomes
// the message's problem.
func (s *spool) readEnvelope(m *message) error {
	h, err := s.open(m.message)
	if errors.Is(err, errMoved) {
		return err
	}
	if err != nil {
		m.Problem, m.unread = err.Error(), true
		return nil
	}
	defer h.Close()
	head, err := envelope.Read(h)
	if err != nil {
		broken := (*envelope.SyntaxError)(nil)
		m.Problem, m.unread, m.unusable = err.Error(), !errors.As(err, &broken), true
		return nil
	}
	m.envelope, m.octets = &head.Envelope, head.Octets
	if o := head.Octets; o >= 0 && o != m.Size {
		m.Problem = fmt.Sprintf("the file has %d bytes, its first line says %d", m.Size, o)
	}
	return nil
}

// find looks for a name in queue/ or transport/ at every hash depth, the configured
// one first.
func (s *spool) find(dir string, n postoffice.Name) (file, error) {
	place := s.po.Place(n.String())
	f, err := s.stat(dir, place)
	for levels := 0; errors.Is(err, errMoved) && levels <= 2; levels++ {
		if name := path.Join(postoffice.HashDir(n.Ino, levels), n.String()); name != place {
			f, err = s.stat(dir, name)
		}
	}
	return f, err
}

// loadQueued makes a message of a name that stands in transport/, queue/ or both.
func (s *spool) loadQueued(n postoffice.Name) (*message, error) {
	m := &message{Name: n.String(), State: stateQueued}
	// Names appear in queue/ first and go from queue/ first. So whatever is missing is
	// looked for again: the first look may have fallen between two renames.
	msg, merr := s.find(postoffice.Queue, n)
	spec, serr := s.find(postoffice.Transport, n)
	if errors.Is(merr, errMoved) && serr == nil {
		msg, merr = s.find(postoffice.Queue, n)
	}
	if errors.Is(serr, errMoved) && merr == nil {
		msg, merr = s.find(postoffice.Queue, n)
	}
	if errors.Is(merr, errMoved) && errors.Is(serr, errMoved) {
		return nil, errMoved
	}
	if err := errors.Join(unlessMoved(merr), unlessMoved(serr)); err != nil {
		m.Problem = err.Error()
		return m, nil
	}
	if merr == nil {
		m.setMessage(s, msg)
		m.Files = append(m.Files, msg.path())
	}
	if serr != nil {
		m.State = stateHandedOver
		if n.Owner != 0 {
			o := s.owner(n.Owner)
			m.Owner = &o
		}
		return m, s.readSenders(m)
	}
	m.spec = spec
	m.Files = append(m.Files, spec.path())
	if merr != nil {
		m.State = stateFinishing
		m.Since = spec.Info.ModTime
		m.AgeSeconds = int64(max(s.now.Sub(m.Since), 0) / time.Second)
	}
	return m, s.readSpec(m)
}

func unlessMoved(err error) error {
	if errors.Is(err, errMoved) {
		return nil
	}
	return err
}

// readSenders takes sender and recipients from the envelope, when there is no
// specification to take them from.
func (s *spool) readSenders(m *message) error {
	head, err := s.loadFile(m.message, m.State)
	if err != nil {
		return err
	}
	m.Sender, m.HasSender, m.Recipients, m.envelope = head.Sender, head.HasSender, head.Recipients, head.envelope
	m.Problem, m.unread = head.Problem, head.unread
	return nil
}

// readSpec reads recipients and their history from the work specification.
func (s *spool) readSpec(m *message) error {
	b, err := s.read(m.spec)
	if errors.Is(err, errMoved) {
		return err
	}
	if err != nil {
		m.Problem, m.unread, m.denied = err.Error(), true, errors.Is(err, fs.ErrPermission)
		return nil
	}
	m.raw = b
	m.parsed, err = workspec.Parse(b)
	if err != nil {
		m.Problem, m.newer = err.Error(), errors.Is(err, workspec.ErrUnknownFormat)
		return nil
	}
	removal, orders := m.parsed.Removal(), m.parsed.Orders()
	told := toldOf(m.parsed)
	for gi := range m.parsed.Groups {
		g := &m.parsed.Groups[gi]
		if !m.HasSender {
			m.HasSender = true
			if m.Sender = human.Clean(g.Sender.Address); m.Sender == "<>" || g.Sender.Channel == "error" {
				m.Sender = ""
			}
		}
		for ri := range g.Recipients {
			r := s.recipientOf(told, orders, &g.Recipients[ri])
			if removal.Removed(&g.Recipients[ri]) {
				r.State, r.Next, r.Unserved = removed, nil, ""
			} else {
				r.obey(orders, &g.Recipients[ri], s.now)
			}
			m.Recipients = append(m.Recipients, r)
		}
	}
	return nil
}

// told is what a specification's lines tell of each recipient, in their order.
type told struct {
	events      map[int64][]*workspec.Event // unserved, served and the last deferral
	whole       []*workspec.Event           // those about the whole message
	diagnostics map[int64][]*workspec.Diagnostic
}

func toldOf(spec *workspec.Spec) told {
	t := told{events: map[int64][]*workspec.Event{}, diagnostics: map[int64][]*workspec.Diagnostic{}}
	deferred := map[int64]int{} // where the last deferral is
	for i := range spec.History {
		e := &spec.History[i]
		switch e.Event {
		case workspec.EventUnserved, workspec.EventServed, workspec.EventDeferred:
		default:
			continue
		}
		some := false
		for r := range spec.About(e) {
			some = true
			list := t.events[r.Offset]
			if at, known := deferred[r.Offset]; known && e.Event == workspec.EventDeferred {
				list[at] = e
				continue
			} else if e.Event == workspec.EventDeferred {
				deferred[r.Offset] = len(list)
			}
			t.events[r.Offset] = append(list, e)
		}
		if !some && e.Recipient == 0 {
			t.whole = append(t.whole, e)
		}
	}
	for i := range spec.Diagnostics {
		d := &spec.Diagnostics[i]
		t.diagnostics[d.Of] = append(t.diagnostics[d.Of], d)
	}
	return t
}

func (s *spool) recipientOf(told told, orders *workspec.Orders, r *workspec.Recipient) recipient {
	out := recipient{Address: human.Clean(r.Address), Channel: human.Clean(r.Channel), Host: human.Clean(r.Host), offset: r.Offset}
	switch r.Tag {
	case workspec.TagOK:
		out.State = delivered
	case workspec.TagFailed:
		out.State = failed
	case workspec.TagLocked:
		o := s.owner(r.Owner)
		out.Owner = &o
		out.State = delivering
		if !o.Alive {
			out.State = stale
		}
	default:
		out.State = waiting
	}
	order := orders.Of(r.Offset)
	var at time.Time
	for _, e := range slices.Concat(told.whole, told.events[r.Offset]) {
		switch e.Event {
		case workspec.EventUnserved, workspec.EventServed:
			out.serve(e)
			continue
		case workspec.EventDeferred:
		default:
			continue
		}
		out.Attempts, _ = strconv.Atoi(e.Get("attempt"))
		if order.Fresh(e.LineOffset) {
			out.Attempts = 0
		}
		out.Next = nil
		if order.Hurried(e.LineOffset) {
			// Due: a person has said so since.
		} else if ms, err := strconv.ParseInt(e.Get("next"), 10, 64); err == nil && out.open() {
			next := time.UnixMilli(ms)
			out.Next = &next
		}
		out.Status, out.Last, at = human.Clean(e.Get("status")), human.Clean(oneLine(e.Text)), e.Time
	}
	for _, d := range told.diagnostics[r.Offset] {
		out.Reported = d.Reported
		// The d line has whole seconds: of the same second it is the later one.
		if !d.Time.Before(at.Truncate(time.Second)) {
			out.Status, out.Last = human.Clean(d.Notary.Status), human.Clean(answerOf(d))
		}
	}
	return out
}

// serve takes an event that says whether the recipient is served.
func (r *recipient) serve(e *workspec.Event) {
	switch {
	case !r.open():
	case e.Event == workspec.EventServed:
		r.State, r.Unserved = waiting, ""
	default:
		r.State, r.Unserved = noClause, human.Clean(oneLine(e.Text))
	}
}

// answerOf is the last thing that the other side said.
func answerOf(d *workspec.Diagnostic) string {
	if _, text, ok := strings.Cut(d.Notary.Diagnostic, ";"); ok && strings.TrimSpace(text) != "" {
		return oneLine(text)
	}
	if d.Notary.Diagnostic != "" {
		return oneLine(d.Notary.Diagnostic)
	}
	lines := strings.Split(strings.TrimSpace(d.Text), "\n")
	return oneLine(lines[len(lines)-1])
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
