package route

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// Question names a message. Its file is taken as it is, but for the fields that are set
// beside it.
type Question struct {
	// Message is a message file, with or without envelope lines; nil: there is only an
	// envelope.
	Message *SpoolFile
	From    *string  // sender; the message came from outside then, as by smtpserver
	To      []string // recipients; none: those of the message
	Steps   bool     // with the steps
	// Most is how many targets and steps are kept of each recipient, 0: all. The others
	// are counted.
	Most int
}

// SpoolFile is a message file that is looked at.
type SpoolFile struct {
	Name string // as it was asked for
	Info durable.Info
	File durable.File
}

// Explainer explains what the router would do, by the router's own tables and decisions,
// and does nothing: it claims no message, holds no owner number and writes no file. For
// one goroutine.
type Explainer struct {
	en  *Engine
	w   *worker
	dir *durable.OS // nil: there is no postoffice, or none that we may read
}

// NewExplainer reads the tables, for the postoffice in dir. Its errors are *config.Error.
func NewExplainer(c Config, dir string, levels int) (*Explainer, error) {
	c.Log, c.Metrics = nil, nil // nothing is logged or counted
	en, err := New(nil, c)
	if err != nil {
		return nil, err
	}
	// The daemons run as the owner of the postoffice; the caller may be any user.
	if st := (unix.Stat_t{}); unix.Stat(dir, &st) == nil {
		en.self = st.Uid
	}
	en.dryRun = true
	x := &Explainer{en: en, w: en.idle.New().(*worker)}
	if x.dir, err = durable.NewOS(dir); err == nil {
		// For messages that were thawed; a caller who may not read that is shown a freeze.
		en.po, _ = postoffice.Open(postoffice.Config{FS: x.dir, HashLevels: levels})
	}
	return x, nil
}

// Messages is a directory with message files to be explained.
type Messages struct{ dir *durable.OS }

// OpenMessages opens a directory: a postoffice, or any.
func OpenMessages(name string) (*Messages, error) {
	dir, err := durable.NewOS(name)
	return &Messages{dir}, err
}

// Close gives the directory back.
func (d *Messages) Close() error { return d.dir.Close() }

// Message opens a file below the directory or, if its path is absolute, anywhere. It never
// waits, as opening a pipe would.
func (d *Messages) Message(name string) (*SpoolFile, error) {
	info, err := d.dir.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode.IsRegular() {
		return nil, fmt.Errorf("open %s: not a regular file", name)
	}
	f, err := d.dir.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	// Another file may have the name by now.
	if info, err = f.Stat(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &SpoolFile{Name: name, Info: info, File: f}, nil
}

// OpenMessage opens a message file anywhere.
func OpenMessage(name string) (*SpoolFile, error) {
	path, err := filepath.EvalSymlinks(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, err
	}
	dir, err := OpenMessages("/")
	if err != nil {
		return nil, err
	}
	m, err := dir.Message(path)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	m.Name = name
	return m, nil
}

// ReadMessage reads a message that no file holds. It is its reader's own.
func ReadMessage(in io.Reader) (*SpoolFile, error) {
	text, err := io.ReadAll(io.LimitReader(in, envelope.MaxHeader))
	if err != nil {
		return nil, fmt.Errorf("read the message: %w", err)
	}
	info := durable.Info{UID: uint32(os.Geteuid()), ModTime: time.Now(), Size: math.MaxInt64}
	return &SpoolFile{Name: "-", Info: info, File: unsaved{text: bytes.NewReader(text)}}, nil
}

// unsaved is a message that no file holds; it can be read, and nothing else.
type unsaved struct {
	durable.File
	text *bytes.Reader
}

func (u unsaved) ReadAt(b []byte, off int64) (int, error) { return u.text.ReadAt(b, off) }
func (u unsaved) Close() error                            { return nil }

// afresh is a message file that is read from its beginning, however often it was read.
type afresh struct {
	durable.File
	from *io.SectionReader
}

func (a afresh) Read(b []byte) (int, error) { return a.from.Read(b) }

// ExplainFile explains the message in a file, in short.
func (x *Explainer) ExplainFile(ctx context.Context, d *Messages, name string) *Explanation {
	m, err := d.Message(name)
	if err != nil {
		e := &Explanation{File: name, Verdict: VerdictUnreadable, Reason: err.Error()}
		if errors.Is(err, fs.ErrNotExist) {
			e.Verdict, e.Reason = VerdictGone, ""
		}
		return e
	}
	// Opened for reading: close has nothing to lose.
	defer m.File.Close()
	return x.Explain(ctx, Question{Message: m})
}

// Close ends the connections and children of the tables.
func (x *Explainer) Close() error {
	err := x.en.Close()
	if x.dir != nil {
		err = errors.Join(err, x.dir.Close())
	}
	return err
}

// Explain answers a question.
func (x *Explainer) Explain(ctx context.Context, q Question) (e *Explanation) {
	e = &Explanation{UID: uint32(os.Geteuid())}
	msg := message{ctx: ctx, uid: e.UID, claim: &postoffice.Claim{Info: durable.Info{UID: e.UID, ModTime: x.en.c.Now()}}}
	if q.Message != nil {
		e.File, e.UID = q.Message.Name, q.Message.Info.UID
		msg.claim = &postoffice.Claim{ID: postoffice.IDOf(q.Message.Info), Info: q.Message.Info,
			File: afresh{q.Message.File, io.NewSectionReader(q.Message.File, 0, math.MaxInt64)}}
	}
	msg.uid, msg.id = msg.claim.Info.UID, msg.claim.ID.String()
	if msg.claim.ID.Ino != 0 {
		e.ID = msg.id
	}
	defer func() {
		if p := recover(); p != nil {
			// So would it end a router. The worker is not to be used again.
			x.w = x.en.idle.New().(*worker)
			e.Verdict, e.Reason = VerdictUnreadable, fmt.Sprintf("the router panics on it: %v", p)
		}
	}()
	defer msg.release(x.en.c.Log)
	aside, err := x.decide(&msg, q, e)
	x.conclude(e, aside, err)
	return e
}

// decide takes the router's steps up to where it would write something down.
func (x *Explainer) decide(msg *message, q Question, e *Explanation) (aside string, err error) {
	msg.head = &envelope.Message{}
	if q.Message != nil {
		if aside, err = x.w.read(msg); aside != "" || err != nil {
			return aside, err
		}
	}
	e.UID = msg.uid
	if login, err := x.en.logins.of(e.UID); err == nil {
		e.Login = login
	}
	if q.From != nil {
		msg.uid = x.en.self
		msg.head.External, msg.head.HasFrom, msg.head.From = true, true, *q.From
	}
	if len(q.To) > 0 {
		msg.head.Recipients = nil
		for _, to := range q.To {
			msg.head.Recipients = append(msg.head.Recipients, envelope.Recipient{Address: to})
		}
	}
	var said []Step
	if q.Steps {
		msg.trace = func(s rules.Step) { said = append(said, s) }
	}
	if q.Message == nil {
		msg.head.Filtered = true // an address is asked about: where its mail goes in the end
	}
	err = x.w.prepare(msg)
	x.submitted(msg, e)
	if q.Steps {
		e.Steps = append(append(e.Steps, submitter(msg, e)), said...)
	}
	if err != nil {
		return "", err
	}
	return "", x.resolve(msg, q, e)
}

// resolve resolves the recipients and records steps and targets.
func (x *Explainer) resolve(msg *message, q Question, e *Explanation) error {
	var r *ExplainedRecipient
	msg.next = func(to *envelope.Recipient) {
		r = &ExplainedRecipient{Address: human.Mask(to.Address)}
		if m, err := address.Parse(to.Address); err == nil && !m.IsNull() {
			// What goes wrong here, goes wrong again when it is resolved.
			class, err := x.en.rules.Tables().ClassOf(msg.context(), m)
			if err == nil {
				r.Class = string(class)
			}
		}
		e.Recipients = append(e.Recipients, r)
	}
	if q.Steps {
		msg.trace = func(s rules.Step) {
			if q.Most > 0 && len(r.Steps) >= q.Most {
				r.MoreSteps++
				return
			}
			r.Steps = append(r.Steps, s)
		}
	}
	return x.w.resolve(msg, func(g group, to *workspec.Recipient) error {
		if to.Channel == rules.Error {
			r.errors++
		}
		if q.Most > 0 && len(r.Targets) >= q.Most {
			r.More++
			return nil
		}
		uid, _ := strconv.ParseUint(to.Privilege, 10, 32)
		sender := ""
		if from := x.from(msg, g); g.verp || from != x.from(msg, group{}) {
			sender = from
		}
		r.Targets = append(r.Targets, ExplainedTarget{
			Channel: to.Channel, Host: to.Host, User: to.Address, Privilege: uint32(uid),
			Sender: sender, VERP: g.verp, After: len(r.Steps),
		})
		return nil
	})
}

// submitted notes what the router believes of the envelope.
func (x *Explainer) submitted(msg *message, e *Explanation) {
	e.Trusted, e.External, e.Report = msg.trusted, msg.external, msg.report
	e.Sender, e.Claimed = x.from(msg, group{}), msg.claimed
}

// from returns the sender that a group has in the work specification.
func (x *Explainer) from(msg *message, g group) string {
	s := specWriter{w: x.w, msg: msg}
	if from := s.sender(g); from.Address != "<>" {
		return from.Address
	}
	return ""
}

// submitter returns the step that names the submitter, for operators.
func submitter(msg *message, e *Explanation) Step {
	who := "uid " + strconv.FormatUint(uint64(msg.uid), 10)
	if msg.uid == e.UID && e.Login != "" {
		who = e.Login
	}
	s := Step{Table: "sender", Where: "<" + e.Sender + ">", Key: who}
	switch {
	case msg.trusted && msg.head.HasFrom:
		s.Result = "submitted by " + who + ", who is trusted: believed"
	case msg.trusted:
		s.Result = "submitted by " + who + ", who is trusted; no from line"
	case e.Claimed != "":
		s.Result = "submitted by " + who + ", who is not trusted: " + e.Claimed + " is replaced"
	case msg.head.HasFrom:
		s.Result = "submitted by " + who + ", who is not trusted: only the sender is believed"
	default:
		s.Result = "submitted by " + who + ", who is not trusted: privileged envelope lines do not count"
	}
	switch {
	case msg.report:
		s.Result += "; it is a report"
	case msg.external:
		s.Result += "; it came from outside"
	}
	return s
}

// conclude sets the verdict on the message.
func (x *Explainer) conclude(e *Explanation, aside string, err error) {
	trouble, deferred := rules.IsTrouble(err)
	frozen, held := IsFrozen(err)
	switch {
	case held:
		e.Verdict, e.Why, e.Reason = VerdictFrozen, frozen.Cause, frozen.Reason
		if n := len(e.Recipients); n > 0 {
			last := e.Recipients[n-1]
			last.Verdict, last.Reason = VerdictFrozen, frozen.Reason
		}
	case aside != "":
		e.Verdict, e.Reason = VerdictSetAside, aside
	case deferred:
		e.Verdict, e.Why, e.Reason = VerdictDeferred, trouble.Why, err.Error()
		if n := len(e.Recipients); n > 0 {
			last := e.Recipients[n-1]
			last.Verdict, last.Reason = VerdictDeferred, err.Error()
		}
	case errors.Is(err, fs.ErrNotExist):
		e.Verdict = VerdictGone
	case err != nil:
		e.Verdict, e.Reason = VerdictUnreadable, err.Error()
	case len(e.Recipients) == 0:
		e.Verdict, e.Reason = VerdictSetAside, noRecipient
	}
	e.setVerdicts()
}
