// Package submit is the stage behind the sendmail-compatible command: a message on
// standard input becomes a file in public/, is fsynced, and moves to router/ by one
// rename. It runs under any uid and needs write access to those two directories
// only; the file's owner is the sender, so it writes no privileged
// line but `from`, and that one only for -f.
//
// The message is stored as it was written, but for what sendmail's callers expect to be
// mended (readText): mbox lines at the top go, and text without a header gets an empty line
// before it. The router adds the header fields that are missing. Without -i a line with a
// single dot ends the message; with -t its Bcc fields are left out; lines that end in CRLF
// end in LF.
//
// What survives a crash: a message whose submitter exited 0 is a synced file in
// public/ or router/. Everything else is a file without execute bit in public/, or
// nothing.
//
// Diagnostics: every error of Run is an *Error with an exit code of sysexits(3). 75:
// nothing was accepted, trying again may help.
package submit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/fenced"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
)

// Config is one submission.
type Config struct {
	PostOffice string     // directory
	Strict     bool       // sync=strict: directories are synced too
	FS         durable.FS // nil: the real file system below PostOffice

	Recipients []string // arguments: an address each, or a list
	FromHeader bool     // -t: recipients from To, Cc and Bcc too
	IgnoreDots bool     // -i
	HasFrom    bool     // -f was given
	From       string   // its address; "" or "<>": the null sender
	FullName   string   // -F
	Notify     string   // -N: never, or some of success, failure, delay
	Return     string   // -R: full or hdrs
	EnvelopeID string   // -V, as plain text
	BodyType   string   // -B: 7bit or 8bitmime
	MaxSize    int64    // bytes of a message file; 0: no limit
	// PerRecipient has each recipient get a message of its own whose sender names the
	// recipient (-XV): two characters as VERP has them, "+=" by custom; "": no.
	PerRecipient string
	Priority     string   // -P: a number; 0 or "" is router/, more a further directory
	RouterDirs   []string // the setting ROUTERDIRS

	In  io.Reader
	Out io.Writer // gets the spool ID if Verbose or PrintID
	// Verbose reports each step on Err.
	Verbose bool
	PrintID bool
	// Follow has Run return when the message is gone or ctx is done, and report its progress
	// on Err.
	Follow bool
	Err    io.Writer   // gets warnings, too; may be nil unless Verbose
	Lease  *lease.Page // of this machine in a cluster; nil: it is in none
}

// copyBuffer is how much of the message is held at once. Bytes.
const copyBuffer = 32 << 10

// Run submits one message. When it returns nil the message is in router/ and on the
// disk.
func Run(ctx context.Context, c Config) error {
	s := submission{Config: c}
	if err := s.prepare(); err != nil {
		return failure(err)
	}
	var err error
	in := newContent(&lineEnds{r: newInterruptible(ctx, c.In)}, !c.IgnoreDots)
	if s.text, err = readText(in); err != nil {
		return failure(err)
	}
	if c.FromHeader {
		if err := s.text.withoutEnd(); err != nil {
			return &Error{Code: exitDataErr, Err: fmt.Errorf("-t: %w", err)}
		}
		s.readHeader()
	}
	if err := s.reportBad(c.FromHeader); err != nil {
		return failure(err)
	}
	if c.PerRecipient != "" {
		return failure(s.submitEach(ctx))
	}
	return failure(s.submit(ctx))
}

// submission is one message on its way.
type submission struct {
	Config
	env  envelope.Envelope
	seen map[string]bool // recipients so far
	bad  []badAddress    // what could not be read
	dsn  string          // todsn line of each
	text *text
	dir  string // the router directory that it is for
}

// submit writes the message to public/ and moves it to router/.
func (s *submission) submit(ctx context.Context) error {
	po, err := s.open()
	if err != nil {
		return err
	}
	draft, err := s.write(po)
	if err != nil {
		return err
	}
	var l *listener
	var why string
	if s.Follow {
		l, why = s.listen(ctx)
	}
	a, err := s.commit(draft)
	if err != nil {
		if l != nil {
			l.stop()
		}
		return err
	}
	if s.Follow {
		s.follow(ctx, l, why, po, a)
	}
	return nil
}

// errNotAccepting means that operators have new mail refused.
var errNotAccepting = errors.New("this host accepts no mail at the moment")

// refused returns an error while operators have new mail refused. A list that cannot be read
// refuses nothing: the scheduler raises an alarm about it.
func refused(po *postoffice.PostOffice) error {
	list, err := suspension.Read(po)
	if err != nil {
		return nil
	}
	now := time.Now()
	if s := list.Accepting(now); s != nil {
		return &Error{Code: config.ExitTempFail, Err: fmt.Errorf("%w: it was stopped %s", errNotAccepting, s.Details(now)),
			Advice: "nothing was accepted; zmctl start --accepting ends that"}
	}
	return nil
}

// write stores the message in public/; commit or Abort follows.
func (s *submission) write(po *postoffice.PostOffice) (*postoffice.Draft, error) {
	lines, err := envelope.Append(nil, &s.env)
	if err != nil {
		return nil, &Error{Code: exitDataErr, Err: err}
	}
	err = refused(po)
	if err == nil {
		err = s.Lease.Check(lease.Step)
	}
	if err != nil {
		return nil, err
	}
	draft, err := po.Submissions.NewDraft("submit")
	if err != nil {
		return nil, err
	}
	draft.Into(s.dir)
	s.say("writing %s/%s", postoffice.Public, draft.Name())
	for _, part := range [][]byte{lines, s.text.header, s.text.end} {
		if err == nil {
			_, err = draft.Write(part)
		}
	}
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{draft}, s.limited(draft.Size()), make([]byte, copyBuffer))
	}
	if err == nil && s.MaxSize > 0 && draft.Size() > s.MaxSize {
		err = &Error{Code: exitDataErr, Err: fmt.Errorf("message is larger than %d bytes", s.MaxSize), Advice: "the setting MAXSIZE allows no more"}
	}
	if err != nil {
		return nil, errors.Join(err, draft.Abort())
	}
	return draft, nil
}

// limited reads the rest of the message up to a byte more than MaxSize allows.
func (s *submission) limited(written int64) io.Reader {
	if s.MaxSize <= 0 {
		return struct{ io.Reader }{s.text.rest}
	}
	return io.LimitReader(s.text.rest, max(s.MaxSize-written, 0)+1)
}

// commit moves the message to router/ and reports that.
func (s *submission) commit(draft *postoffice.Draft) (a postoffice.Accepted, err error) {
	defer func() { err = errors.Join(err, draft.Abort()) }()
	a, err = s.handIn(draft)
	if err != nil {
		return a, err
	}
	if dir := path.Dir(a.Name); dir != s.dir && dir != postoffice.Public {
		s.say("%s/ does not exist: zmctl init makes it", s.dir)
	}
	if s.Verbose || s.PrintID {
		s.say("accepted as %s, %d bytes", a.Name, a.Size)
		// The message is accepted, also if the output was closed.
		_, _ = fmt.Fprintln(s.Out, a.ID)
	}
	return a, nil
}

// handIn makes the draft a message, under this machine's lease if it is in a cluster. A message that
// was stored when that ended is delivered by the machine that serves the postoffice next; the submitter
// is asked to try again, as after every lost reply.
func (s *submission) handIn(draft *postoffice.Draft) (postoffice.Accepted, error) {
	if err := s.Lease.Check(lease.Step); err != nil {
		return postoffice.Accepted{}, err
	}
	a, err := draft.Commit()
	if err == nil {
		err = s.Lease.Check(0)
	}
	return a, err
}

func (s *submission) open() (*postoffice.PostOffice, error) {
	if s.FS != nil {
		return postoffice.Open(postoffice.Config{FS: s.FS, Strict: s.Strict})
	}
	return postoffice.OpenLeased(s.PostOffice, 0, s.Strict, s.Lease, fenced.Names)
}

// say reports a step for -v.
func (s *submission) say(format string, args ...any) {
	if s.Verbose {
		// As in submit.
		_, _ = fmt.Fprintf(s.Err, "submit: "+format+"\n", args...)
	}
}

// warn reports something that the mail does not fail for.
func (s *submission) warn(format string, args ...any) {
	if s.Err != nil {
		// As in submit.
		_, _ = fmt.Fprintf(s.Err, "submit: warning: "+format+"\n", args...)
	}
}
