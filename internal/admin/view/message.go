package view

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// States of a message, as docs/spool.md has them.
const (
	StateWriting    = "writing"
	StateAccepted   = "accepted"
	StateClaimed    = "claimed"
	StateHandedOver = "handed over"
	StateQueued     = "queued"
	StateFinishing  = "finishing"
	StateDeferred   = "deferred"
	StateFrozen     = "frozen"
	StateSetAside   = "set aside" // postman/, the only copy
	StateCopy       = "copy"      // postman/, the mail went on
	StateRemoved    = "removed"   // removed/, zmctl undo puts it back
)

// States of a recipient.
const (
	ToRoute    = "to route"
	Waiting    = "waiting"
	Unserved   = "unserved" // no clause of scheduler.conf does
	Delivering = "delivering"
	Stale      = "locked by the dead"
	Delivered  = "delivered"
	Failed     = "failed"
	Removed    = "removed" // by zmctl remove
	Held       = "held"    // by zmctl hold, or a rule
	Frozen     = "frozen"  // waits for an operator
	Rerouted   = "rerouted"
	Suspended  = "suspended" // waits for the end of zmctl suspend
	wentOn     = "went on"   // of a copy: its message did
)

// Message is what the files of one message say.
type Message struct {
	ID         string      `json:"id,omitempty"` // "" if the message file is gone
	Name       string      `json:"name"`         // last element of its file's name
	State      string      `json:"state"`
	Files      []string    `json:"files"`
	Since      time.Time   `json:"since"` // when it was accepted
	AgeSeconds int64       `json:"age_seconds"`
	Size       int64       `json:"size"` // bytes of the message file
	Sender     string      `json:"sender"`
	HasSender  bool        `json:"-"`
	MessageID  string      `json:"message_id,omitempty"`
	Client     string      `json:"client,omitempty"` // address of the SMTP client, without port
	ClientName string      `json:"client_name,omitempty"`
	User       string      `json:"user,omitempty"` // who logged in
	Why        string      `json:"why,omitempty"`  // of deferred, frozen and set aside
	Owner      *Owner      `json:"owner,omitempty"`
	Recipients []Recipient `json:"recipients"`
	Problem    string      `json:"problem,omitempty"`

	Reason string `json:"reason,omitempty"` // of a message that is put aside, in full

	Octets        int64              `json:"-"` // size by its first line; -1: it has none
	Unusable      bool               `json:"-"` // its envelope cannot be used
	Hidden        int                `json:"-"` // recipients that were not selected
	Unreadable    bool               `json:"-"` // Problem is that a file cannot be read
	denied        bool               `json:"-"` // and only because of who asks
	UnknownFormat bool               `json:"-"` // the specification is of a format that is not known here
	SpoolID       postoffice.SpoolID `json:"-"`
	File          File               `json:"-"` // zero if there is none
	SpecFile      File               `json:"-"` // zero if there is none
	Spec          *workspec.Spec     `json:"-"` // nil if there is none that can be read
	Raw           []byte             `json:"-"` // of the specification
	Envelope      *envelope.Envelope `json:"-"` // nil if it was not read
}

// Recipient is one recipient and what became of it so far.
type Recipient struct {
	Address  string     `json:"address"`
	Original string     `json:"original,omitempty"` // what the sender wrote, before aliases
	Channel  string     `json:"channel,omitempty"`
	Host     string     `json:"host,omitempty"`
	State    string     `json:"state"`
	Attempts int        `json:"attempts"`
	Next     *time.Time `json:"next,omitempty"`
	Status   string     `json:"status,omitempty"`
	Last     string     `json:"last,omitempty"`     // last answer
	Unserved string     `json:"unserved,omitempty"` // why nothing serves it
	Owner    *Owner     `json:"owner,omitempty"`
	Reported bool       `json:"reported,omitempty"`
	Until    *time.Time `json:"until,omitempty"`  // end of a hold
	By       string     `json:"by,omitempty"`     // who holds it, froze it, ...
	Reason   string     `json:"reason,omitempty"` // and why
	Cause    string     `json:"cause,omitempty"`  // of frozen, if no operator did it
	Ordered  *time.Time `json:"ordered,omitempty"`
	Order    string     `json:"order,omitempty"`

	Offset int64 `json:"-"` // of its line in the specification
}

func (r *Recipient) Open() bool {
	switch r.State {
	case Delivered, Failed, Removed, Rerouted:
		return false
	}
	return true
}

// From returns the address with brackets, or that it is not known here.
func (m *Message) From() string {
	if !m.HasSender && m.Unreadable {
		return "(not known)"
	}
	if !m.HasSender {
		return "(local user)"
	}
	return "<" + m.Sender + ">"
}

// LoadFile makes a message of a file in public/, router/, deferred/, freezer/ or
// postman/, with the recipients of its envelope.
func (s *Spool) LoadFile(f File, state string) (*Message, error) {
	m := &Message{State: state, Name: f.Name, Files: []string{f.Path()}, File: f}
	m.setMessage(s, f)
	if err := s.readEnvelope(m); err != nil {
		return nil, err
	}
	if m.Envelope == nil {
		return m, nil
	}
	m.Sender, m.HasSender = human.Clean(m.Envelope.From), m.Envelope.HasFrom
	for _, r := range m.Envelope.Recipients {
		m.Recipients = append(m.Recipients, Recipient{Address: human.Clean(r.Address), State: ToRoute})
	}
	if len(m.Recipients) == 0 {
		m.Recipients = []Recipient{{Address: "(those of the header)", State: ToRoute}}
	}
	return m, nil
}

func (m *Message) setMessage(s *Spool, f File) {
	m.File, m.SpoolID = f, postoffice.IDOf(f.Info)
	m.ID = m.SpoolID.String()
	m.Since, m.Size = f.Info.ModTime, f.Info.Size
	m.AgeSeconds = int64(max(s.Now.Sub(m.Since), 0) / time.Second)
}

// readEnvelope reads the head of the message file; an error becomes the
// Problem of the message.
func (s *Spool) readEnvelope(m *Message) error {
	h, err := s.Open(m.File)
	if errors.Is(err, ErrMoved) {
		return err
	}
	if err != nil {
		m.Problem, m.Unreadable = err.Error(), true
		return nil
	}
	defer h.Close()
	head, err := envelope.Read(h)
	if err != nil {
		broken := (*envelope.SyntaxError)(nil)
		m.Problem, m.Unreadable, m.Unusable = err.Error(), !errors.As(err, &broken), true
		return nil
	}
	m.Envelope, m.Octets = &head.Envelope, head.Octets
	if head.External && head.Submitter == nil {
		m.setOrigin(head.Origin())
	}
	for _, f := range envelope.Fields(head.Header) {
		if strings.EqualFold(f.Name, "Message-ID") {
			m.MessageID = human.Cut(human.Clean(f.Value()), maxMessageID)
			break
		}
	}
	if o := head.Octets; o >= 0 && o != m.Size {
		m.Problem = fmt.Sprintf("the file has %d bytes, but %d by its first line", m.Size, o)
	}
	return nil
}

// maxMessageID bounds a Message-ID. Bytes.
const maxMessageID = 500

// setOrigin takes over where the message came in.
func (m *Message) setOrigin(o envelope.Origin) {
	if a, ok := envelope.ClientAddress(o.Client); ok {
		m.Client = a.Addr().Unmap().String()
	}
	m.ClientName = human.Clean(o.Name)
	if user, err := address.DecodeXText(o.User); err == nil {
		m.User = human.Clean(user)
	}
}

// originalOf returns the recipient that the sender wrote, "" if it is the recipient itself.
func originalOf(r *workspec.Recipient) string {
	found := ""
	for field := range strings.FieldsSeq(r.Notary) {
		switch key, value, _ := strings.Cut(field, "="); strings.ToUpper(key) {
		case "INRCPT":
			found = value
		case "ORCPT":
			found = cmp.Or(found, value)
		}
	}
	_, text, _ := strings.Cut(found, ";")
	plain, err := address.DecodeXText(text)
	if err != nil || strings.EqualFold(plain, r.Address) {
		return ""
	}
	return human.Clean(plain)
}

// Find looks for a name in queue/ or transport/ at every hash depth, the configured
// one first.
func (s *Files) Find(dir string, n postoffice.Name) (File, error) {
	place := s.PO.Queue.Place(n.String())
	f, err := s.Stat(dir, place)
	for levels := 0; errors.Is(err, ErrMoved) && levels <= 2; levels++ {
		if name := path.Join(postoffice.HashDir(n.Ino, levels), n.String()); name != place {
			f, err = s.Stat(dir, name)
		}
	}
	return f, err
}

// LoadQueued makes a message of a name in transport/, queue/ or both.
func (s *Spool) LoadQueued(n postoffice.Name) (*Message, error) {
	m := &Message{Name: n.String(), State: StateQueued}
	// Names appear in queue/ first and go from queue/ first. So whatever is missing is
	// looked for again: the first look may have fallen between two renames.
	msg, merr := s.Find(postoffice.Queue, n)
	spec, serr := s.Find(postoffice.Transport, n)
	if errors.Is(merr, ErrMoved) && serr == nil {
		msg, merr = s.Find(postoffice.Queue, n)
	}
	if errors.Is(serr, ErrMoved) && merr == nil {
		msg, merr = s.Find(postoffice.Queue, n)
	}
	if errors.Is(merr, ErrMoved) && errors.Is(serr, ErrMoved) {
		return nil, ErrMoved
	}
	if err := errors.Join(UnlessMoved(merr), UnlessMoved(serr)); err != nil {
		m.Problem = err.Error()
		return m, nil
	}
	if merr == nil {
		m.setMessage(s, msg)
		m.Files = append(m.Files, msg.Path())
	}
	if serr != nil {
		m.State = StateHandedOver
		if n.Owner != 0 {
			o := s.Owner(n.Owner)
			m.Owner = &o
		}
		return m, s.readSenders(m)
	}
	m.SpecFile = spec
	m.Files = append(m.Files, spec.Path())
	if merr != nil {
		m.State = StateFinishing
		m.Since = spec.Info.ModTime
		m.AgeSeconds = int64(max(s.Now.Sub(m.Since), 0) / time.Second)
	}
	return m, s.readSpec(m)
}

func UnlessMoved(err error) error {
	if errors.Is(err, ErrMoved) {
		return nil
	}
	return err
}

// readSenders takes sender and recipients from the envelope, when there is no
// specification to take them from.
func (s *Spool) readSenders(m *Message) error {
	head, err := s.LoadFile(m.File, m.State)
	if err != nil {
		return err
	}
	m.Sender, m.HasSender, m.Recipients, m.Envelope = head.Sender, head.HasSender, head.Recipients, head.Envelope
	m.MessageID, m.Client, m.ClientName, m.User = head.MessageID, head.Client, head.ClientName, head.User
	m.Problem, m.Unreadable = head.Problem, head.Unreadable
	return nil
}

// readSpec reads recipients and their history from the work specification.
func (s *Spool) readSpec(m *Message) error {
	b, err := s.Read(m.SpecFile)
	if errors.Is(err, ErrMoved) {
		return err
	}
	if err != nil {
		m.Problem, m.Unreadable, m.denied = err.Error(), true, errors.Is(err, fs.ErrPermission)
		return nil
	}
	m.Raw = b
	m.Spec, err = workspec.Parse(b)
	if err != nil {
		m.Problem, m.UnknownFormat = err.Error(), errors.Is(err, workspec.ErrUnknownFormat)
		return nil
	}
	m.setOrigin(envelope.Origin{Client: m.Spec.Client, Name: m.Spec.ClientName, User: m.Spec.User})
	if strings.HasPrefix(m.Spec.Ident, "<") {
		m.MessageID = human.Clean(m.Spec.Ident)
	}
	removal, orders := m.Spec.Removal(), m.Spec.Orders()
	lines := linesOf(m.Spec)
	for gi := range m.Spec.Groups {
		g := &m.Spec.Groups[gi]
		if !m.HasSender {
			m.HasSender = true
			if m.Sender = human.Clean(g.Sender.Address); m.Sender == "<>" || g.Sender.Channel == "error" {
				m.Sender = ""
			}
		}
		for ri := range g.Recipients {
			r := s.recipientOf(lines, orders, &g.Recipients[ri])
			r.Original = originalOf(&g.Recipients[ri])
			if removal.Removed(&g.Recipients[ri]) {
				r.State, r.Next, r.Unserved = Removed, nil, ""
			} else {
				r.obey(orders, &g.Recipients[ri], s.Now)
				r.suspend(s.suspension(g.Recipients[ri].Channel, g.Recipients[ri].Host, m.Sender))
			}
			m.Recipients = append(m.Recipients, r)
		}
	}
	return nil
}

// lines are the lines of a specification about each recipient, in their order.
type lines struct {
	events      map[int64][]*workspec.Event // unserved, served and the last deferral
	whole       []*workspec.Event           // those about the whole message
	diagnostics map[int64][]*workspec.Diagnostic
}

func linesOf(spec *workspec.Spec) lines {
	t := lines{events: map[int64][]*workspec.Event{}, diagnostics: map[int64][]*workspec.Diagnostic{}}
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

func (s *Spool) recipientOf(lines lines, orders *workspec.Orders, r *workspec.Recipient) Recipient {
	out := Recipient{Address: human.Clean(r.Address), Channel: human.Clean(r.Channel), Host: human.Clean(r.Host), Offset: r.Offset}
	switch r.Tag {
	case workspec.TagOK:
		out.State = Delivered
	case workspec.TagFailed:
		out.State = Failed
	case workspec.TagLocked:
		o := s.Owner(r.Owner)
		out.Owner = &o
		out.State = Delivering
		if !o.Alive {
			out.State = Stale
		}
	default:
		out.State = Waiting
	}
	order := orders.Of(r.Offset)
	var at time.Time
	for _, e := range slices.Concat(lines.whole, lines.events[r.Offset]) {
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
			// Due: an operator has ordered it since.
		} else if ms, err := strconv.ParseInt(e.Get("next"), 10, 64); err == nil && out.Open() {
			next := time.UnixMilli(ms)
			out.Next = &next
		}
		out.Status, out.Last, at = human.Clean(e.Get("status")), human.Clean(OneLine(e.Text)), e.Time
	}
	for _, d := range lines.diagnostics[r.Offset] {
		out.Reported = d.Reported
		// The d line has whole seconds: of the same second it is the later one.
		if !d.Time.Before(at.Truncate(time.Second)) {
			out.Status, out.Last = human.Clean(d.Notary.Status), human.Clean(AnswerOf(d))
		}
	}
	return out
}

// serve applies an event about whether a clause serves the recipient.
func (r *Recipient) serve(e *workspec.Event) {
	switch {
	case !r.Open():
	case e.Event == workspec.EventServed:
		r.State, r.Unserved = Waiting, ""
	default:
		r.State, r.Unserved = Unserved, human.Clean(OneLine(e.Text))
	}
}

// AnswerOf returns the last thing that the other side said.
func AnswerOf(d *workspec.Diagnostic) string {
	if _, text, ok := strings.Cut(d.Notary.Diagnostic, ";"); ok && strings.TrimSpace(text) != "" {
		return OneLine(text)
	}
	if d.Notary.Diagnostic != "" {
		return OneLine(d.Notary.Diagnostic)
	}
	lines := strings.Split(strings.TrimSpace(d.Text), "\n")
	return OneLine(lines[len(lines)-1])
}

func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// OpenOffsets returns the open recipients of a specification.
func (m *Message) OpenOffsets() map[int64]bool {
	open := make(map[int64]bool, len(m.Recipients))
	for i := range m.Recipients {
		if r := &m.Recipients[i]; r.Open() {
			open[r.Offset] = true
		}
	}
	return open
}
