package operations

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// desk is a postoffice with one queued message, and an operator who gives orders.
type desk struct {
	t    *testing.T
	po   *postoffice.PostOffice
	name string
	id   postoffice.SpoolID
	now  time.Time
}

// newDesk queues a message for x@h and y@h; text is its message file up to the body, header
// the block that is to be sent.
func newDesk(t *testing.T, text, header, body string) *desk {
	t.Helper()
	fs := cutfs.New()
	assert.Must(t, postoffice.Init(fs))
	po, err := postoffice.Open(postoffice.Config{FS: fs})
	assert.Must(t, err)
	d := &desk{t: t, po: po, now: time.Now()}
	draft, err := po.Submissions.NewDraft("test")
	d.must(err)
	_, err = io.WriteString(draft, text)
	d.must(err)
	at := draft.Size()
	_, err = io.WriteString(draft, body)
	d.must(err)
	a, err := draft.Commit()
	d.must(err)
	owner, err := po.Owners.Take("router")
	d.must(err)
	claim, err := po.Router.Claim(owner, strings.TrimPrefix(a.Name, "router/"))
	d.must(err)
	work, err := claim.CreateWork()
	d.must(err)
	w := workspec.NewWriter(work)
	w.Preamble(&workspec.Spec{Message: claim.Name(), BodyOffset: at})
	w.Group(workspec.Sender{Channel: "local", Host: "s", Address: "s@here", Privilege: "1"}, []workspec.Recipient{
		{Channel: "smtp", Host: "h", Address: "x@h", Privilege: "1"}, {Channel: "smtp", Host: "h", Address: "y@h", Privilege: "1"}}, []byte(header))
	d.must(errors.Join(w.Close(), work.Close()))
	d.name, err = claim.HandOver()
	d.must(err)
	d.must(owner.Release())
	d.id = a.ID
	return d
}

func (d *desk) must(err error) {
	d.t.Helper()
	assert.Must(d.t, err)
}

func (d *desk) request() Request {
	return Request{PostOffice: d.po, ID: d.id, Now: d.now, Who: "bob", Order: "20261121-081400-hold-1", Reason: "looks odd"}
}

func (d *desk) spec() *workspec.Spec {
	d.t.Helper()
	f, err := d.po.Queue.Open(d.name)
	d.must(err)
	defer f.Close()
	s, err := read(f)
	d.must(err)
	return s
}

// copies returns the texts of the messages in router/.
func (d *desk) copies() []string {
	d.t.Helper()
	pending, err := d.po.Router.List(false, time.Now())
	d.must(err)
	var list []string
	for _, p := range pending {
		f, err := d.po.FS().Open("router/"+p.Name, 0, 0)
		d.must(err)
		text, err := io.ReadAll(f)
		d.must(errors.Join(err, f.Close()))
		list = append(list, string(text))
	}
	return list
}

const (
	plainText   = "from <s@here>\nto <x@h>\nenv-end\nSubject: a\n\n"
	plainHeader = "Received: by here\n\tid 1\nSubject: a\nMessage-ID: <made@here>\n"
)

func TestOrderSaysWhoAndWhy(t *testing.T) {
	d := newDesk(t, plainText, plainHeader, "body\n")
	_, err := Hold(d.request(), d.name, d.now.Add(time.Hour))
	d.must(err)
	e := &d.spec().History[0]
	if e.Event != "hold" || e.Get("who") != "bob" || e.Get("order") != "20261121-081400-hold-1" || e.Text != "looks odd" || e.Get("id") != d.id.String() ||
		len(e.Recipients()) != 2 || e.Get("until") == "" {
		t.Errorf("got %+v", e)
	}
	if _, err := Thaw(d.request(), d.name); !errors.Is(err, ErrNothing) {
		t.Errorf("thawed what is not frozen: %v", err)
	}
	q := d.request()
	q.ID.MTime++
	if _, err := Release(q, d.name); !errors.Is(err, ErrMoved) {
		t.Errorf("another message has its name: %v", err)
	}
	if _, err := Release(d.request(), "1-1"); !errors.Is(err, ErrMoved) {
		t.Errorf("it is not there: %v", err)
	}
}

// A copy that could not be submitted is recorded: no one is given to an agent meanwhile, and
// the same order ends it, without a scheduler and without a second copy.
func TestRerouteIsResumedByTheNextOrder(t *testing.T) {
	d := newDesk(t, plainText, plainHeader, "body\n")
	q := d.request()
	q.Submit = func(string, int) (postoffice.Accepted, error) { return postoffice.Accepted{}, io.ErrUnexpectedEOF }
	if _, err := Reroute(q, d.name); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got %v", err)
	}
	s := d.spec()
	r := &s.Groups[0].Recipients[0]
	if r.Tag != workspec.TagToDo || !s.Orders().Waits(r, d.now) || len(Pending(s)) != 1 || len(d.copies()) != 0 {
		t.Errorf("tag %q, pending %+v, %d copies", r.Tag, Pending(s), len(d.copies()))
	}
	if _, err := Hold(d.request(), d.name, time.Time{}); !errors.Is(err, ErrNothing) {
		t.Errorf("held what is on its way: %v", err)
	}
	_, err := Reroute(d.request(), d.name)
	d.must(err)
	s = d.spec()
	if len(d.copies()) != 1 || len(Pending(s)) != 0 || s.Groups[0].Recipients[0].Tag != workspec.TagOK || s.Groups[0].Recipients[1].Tag != workspec.TagOK {
		t.Errorf("%d copies, %+v", len(d.copies()), s.Groups[0].Recipients)
	}
}

// A recipient whose agent died behind the final dot may have the message: no copy of it is
// made, which would come a second time without a word of doubt.
func TestRerouteLeavesWhoIsInDoubt(t *testing.T) {
	d := newDesk(t, plainText, plainHeader, "body\n")
	first := &d.spec().Groups[0].Recipients[0]
	f, err := d.po.Queue.Open(d.name)
	d.must(err)
	defer f.Close()
	for _, event := range []string{workspec.EventSent, workspec.EventUnlocked} {
		d.must(f.Append(workspec.AppendEvent(nil, &workspec.Event{Time: d.now, Recipient: first.Offset, Event: event,
			Attrs: []workspec.Attr{{Key: "owner", Value: "4711"}}})))
	}
	res, err := Reroute(d.request(), d.name)
	d.must(err)
	if len(res.Doubt) != 1 || res.Doubt[0] != first.Address || len(res.Changed) != 1 {
		t.Errorf("got %+v", res)
	}
	if s := d.spec(); s.Groups[0].Recipients[0].Tag != workspec.TagToDo || len(d.copies()) != 1 || strings.Contains(d.copies()[0], first.Address) {
		t.Errorf("tag %q, copies %q", s.Groups[0].Recipients[0].Tag, d.copies())
	}
}

// The copy's bytes, for messages of all shapes.
func TestRerouteCopiesMessagesOfAllShapes(t *testing.T) {
	for name, tt := range map[string]struct{ text, header, body, want string }{
		"plain":            {plainText, plainHeader, "body\n", "Subject: a\nMessage-ID: <made@here>\n\nbody\n"},
		"empty body":       {plainText, plainHeader, "", "Subject: a\nMessage-ID: <made@here>\n\n"},
		"headers alone":    {"to x\nenv-end\nSubject: a\n", plainHeader, "", "Subject: a\nMessage-ID: <made@here>\n"},
		"octets":           {plainText, plainHeader, "\x00\xff\r\nno end", "Subject: a\nMessage-ID: <made@here>\n\n\x00\xff\r\nno end"},
		"no Received":      {plainText, "Subject: a\n", "body\n", "Subject: a\n\nbody\n"},
		"large":            {plainText, plainHeader, strings.Repeat("0123456789abcde\n", 10_000), "Subject: a\nMessage-ID: <made@here>\n\n" + strings.Repeat("0123456789abcde\n", 10_000)},
		"others' Received": {plainText, "Received: by here\nReceived: by there\nSubject: a\n", "body\n", "Received: by there\nSubject: a\n\nbody\n"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, tt.text, tt.header, tt.body)
			res, err := Reroute(d.request(), d.name)
			d.must(err)
			list := d.copies()
			if len(list) != 1 || len(res.Changed) != 2 {
				t.Fatalf("%d copies, %+v", len(list), res)
			}
			m, err := envelope.Read(strings.NewReader(list[0]))
			d.must(err)
			assert.Equal(t, list[0][m.HeaderOffset:], tt.want)
			if m.From != "s@here" || !m.External || len(m.Recipients) != 2 {
				t.Errorf("its envelope: %+v", m.Envelope)
			}
		})
	}
}

// What a user has written into an envelope without being believed is not believed in the
// copy, which is ours.
func TestRerouteBelievesNoMoreThanTheRouterDid(t *testing.T) {
	was := &envelope.Envelope{RcvdFrom: "bank.example", Submitted: "jane", With: "ESMTPS", ErrorMsg: true, BodyType: "8BITMIME"}
	set := []chosen{{group: &workspec.Group{Sender: workspec.Sender{Channel: "local", Address: "user@here"}}, rcpt: &workspec.Recipient{Address: "x@h"}}}
	q := Request{}
	mine := believed(was, 1000, 1000)
	if e := q.envelope(mine, set); e.RcvdFrom != "bank.example" || e.Submitted != "jane" || !e.ErrorMsg {
		t.Errorf("of our own: %+v", e)
	}
	other := believed(was, 1000, 4711)
	if e := q.envelope(other, set); e.RcvdFrom != "" || e.Submitted != "" || e.With != "" || e.ErrorMsg || e.BodyType != "8BITMIME" || e.From != "user@here" {
		t.Errorf("of another user: %+v", e)
	}
}

// A recipient that was removed while an agent had it, and put back, is still the agent's:
// its lock is not taken from it. One whose agent is dead is no one's.
func TestUndoLeavesTheAgentItsLock(t *testing.T) {
	d := newDesk(t, plainText, plainHeader, "body\n")
	owner, err := d.po.Owners.Take("test-agent")
	d.must(err)
	f, err := d.po.Queue.Open(d.name)
	d.must(err)
	defer f.Close()
	d.must(f.SetTag(workspec.LockBytes(owner.Number()), workspec.TagOffset(d.spec().Groups[0].Recipients[0].Offset)))
	res, err := Remove(d.request(), d.name)
	d.must(err)
	if len(res.Busy) != 1 || len(res.Changed) != 1 {
		t.Errorf("removed %+v", res)
	}
	res, err = Undo(d.request(), d.name)
	d.must(err)
	list := d.spec().Groups[0].Recipients
	if len(res.Changed) != 2 || list[0].Tag != workspec.TagLocked || list[0].Owner != owner.Number() || list[1].Tag != workspec.TagToDo {
		t.Errorf("put back %+v: %+v", res, list)
	}
	d.must(owner.Leave())
	_, err = Remove(d.request(), d.name)
	d.must(err)
	_, err = Undo(d.request(), d.name)
	d.must(err)
	if list := d.spec().Groups[0].Recipients; list[0].Tag != workspec.TagToDo {
		t.Errorf("of a dead agent: %+v", list)
	}
}

// A copy went out for a recipient whose agent had died, and the tags were not set any more:
// nothing else may be ordered about it.
func TestNothingIsOrderedBehindACopy(t *testing.T) {
	d := newDesk(t, plainText, plainHeader, "body\n")
	owner, err := d.po.Owners.Take("test-agent")
	d.must(err)
	d.must(owner.Leave())
	_, err = Reroute(d.request(), d.name)
	d.must(err)
	f, err := d.po.Queue.Open(d.name)
	d.must(err)
	defer f.Close()
	for _, r := range d.spec().Groups[0].Recipients {
		d.must(f.SetTag(workspec.LockBytes(owner.Number()), workspec.TagOffset(r.Offset)))
	}
	for name, give := range map[string]func(Request, string) (Result, error){"expire": Expire, "remove": Remove, "retry": Retry} {
		if res, err := give(d.request(), d.name); !errors.Is(err, ErrNothing) {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
}
