// Package act changes mail for operators: it holds, releases, freezes, thaws, retries,
// expires, removes and reroutes what a selector finds, or messages in deferred/, freezer/ or postman/,
// keeps a log of these operations, and undoes them.
//
//	sum, err := act.Do(ctx, po, act.Request{Verb: act.Hold, Select: sel, Who: act.Who("")})
//	_, err = (&act.Undoer{PostOffice: po, Who: act.Who("")}).Operation(ctx, sum.Operation)
//
// It owns the files in orders/, the log of operations. What survives a crash: the spool IDs
// of messages are in the file of their operation before the messages are touched, so an
// operation that was cut off is known and can be undone. Changes of a queued message are
// those of package operations.
//
// Diagnostics: ErrAgain: the message is in use at this moment; the same call may succeed
// soon. ErrArgument: the arguments name nothing that exists. ErrComeBack: messages that were
// given to the router failed again, so the others were left alone. Sum has the errors
// about single messages.
package act

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
)

var (
	// ErrAgain means that the call may succeed in a moment.
	ErrAgain = errors.New("try again")
	// ErrArgument means that what was named does not exist.
	ErrArgument = errors.New("no such message")
	// errBusy means that an agent is delivering to some of the recipients.
	errBusy = fmt.Errorf("%w", ErrAgain)
)

// Request is an operation and what it is about.
type Request struct {
	Verb   *Verb
	Select selector.Selector
	// Named: the messages are given by their spool IDs and nothing else.
	Named bool
	// Aside selects messages that are put aside in one directory; nil: Select does.
	Aside *Aside

	Who, Reason string
	Until       time.Time     // end of a hold; zero: none
	Keep        time.Duration // how long the log of operations is kept; 0: for ever
	Pace        int           // messages before a running router at a time; 0: all
	// Flags of single verbs: Silent and Report are about a report to the sender; Failed has
	// retry open failed recipients again, Reported those whose sender has a report, too.
	// Force lets the only copy of a message be discarded.
	Silent, Report, Failed, Reported, Force bool

	// Outcome is called with what was done to a message, or with its error. Step is called
	// once for each message after that; an error of it ends the operation. Either may be nil.
	Outcome func(Outcome)
	Step    func() error
}

// Outcome is what was done to a message.
type Outcome struct {
	ID    string   `json:"id"`
	Text  string   `json:"text,omitempty"`
	Done  []string `json:"done,omitempty"`
	Busy  []string `json:"busy,omitempty"`
	Left  []string `json:"left,omitempty"`
	To    string   `json:"to,omitempty"` // the copy that reroute made
	Error string   `json:"error,omitempty"`
	Order string   `json:"order,omitempty"`

	Message *view.Message `json:"-"` // of one that was put aside
}

// Sum is what was done, or would be.
type Sum struct {
	Operation                           postoffice.OperationID // "": nothing was done
	Messages, Recipients, Busy, Refused int
	GivenBack                           int     // messages that the router has next
	Errors                              []error // the first of them
}

// maxErrors is how many errors a Sum has.
const maxErrors = 20

// Err returns the errors about messages as one; nil if there are none.
func (s *Sum) Err() error {
	if len(s.Errors) == 0 {
		return nil
	}
	err := errors.Join(s.Errors...)
	if n := s.Refused + s.Busy - len(s.Errors); len(s.Errors) == maxErrors && n > 0 {
		err = fmt.Errorf("%w\nand %d more", err, n)
	}
	return err
}

// Temporary reports whether all of the errors are ErrAgain.
func (s *Sum) Temporary() bool {
	if s.Refused == 0 {
		return true
	}
	for _, err := range s.Errors {
		if !errors.Is(err, ErrAgain) {
			return false
		}
	}
	return s.Refused+s.Busy <= maxErrors
}

// chunk is how many messages are noted in the file of an operation at a time.
const chunk = 64

// action is one use of a verb. It loads a message, notes it in the file of the operation,
// acts, and forgets it: its memory does not grow with the mail.
type action struct {
	Request
	ctx     context.Context
	po      *postoffice.PostOffice
	now     time.Time
	file    *postoffice.OperationFile // nil until there is something to do
	met     map[string]bool           // of those named
	made    map[string]bool           // copies that reroute made: they are not selected
	sum     Sum
	next    []*view.Message // loaded, not acted on
	journal *ledger.Journal // nil: nothing was moved to removed/
	away    map[string]bool // directories out of which messages were moved, not synced yet
	pace    *pace
}

func newAction(ctx context.Context, po *postoffice.PostOffice, r Request) *action {
	return &action{Request: r, ctx: ctx, po: po, now: time.Now(), met: map[string]bool{}, made: map[string]bool{}, away: map[string]bool{}}
}

// Preview counts what a request is about, and calls fn, unless it is nil, with each message
// and those of its recipients that would be changed.
func Preview(ctx context.Context, po *postoffice.PostOffice, r Request, fn func(m *view.Message, list []view.Recipient) error) (Sum, error) {
	a := newAction(ctx, po, r)
	err := a.each(func(m *view.Message) error {
		a.meet(m)
		list, ok := a.fit(m)
		if !ok {
			return nil
		}
		a.sum.Messages++
		a.sum.Recipients += max(len(list), 1)
		for i := range list {
			if list[i].State == view.Delivering {
				a.sum.Busy++
			}
		}
		if fn == nil {
			return nil
		}
		return fn(m, list)
	})
	if err != nil || fn == nil {
		return a.sum, err
	}
	return a.sum, a.missing(func(id postoffice.SpoolID) error {
		m, others, err := a.spool().ByID(id)
		if m != nil {
			return fmt.Errorf("%s %s: it is %s", a.Verb.Name, id, m.State)
		}
		return notFound(a.po, id, a.Verb.Name, others, err)
	})
}

// Do executes a request.
func Do(ctx context.Context, po *postoffice.PostOffice, r Request) (Sum, error) {
	a := newAction(ctx, po, r)
	var err error
	if a.Aside != nil {
		if a.pace, err = newPace(po, a.Aside, r.Pace); err != nil {
			return a.sum, err
		}
	}
	err = a.all()
	a.journal.Close()
	if a.file != nil {
		err = errors.Join(err, a.file.Close())
	}
	if a.pace != nil {
		a.sum.GivenBack = a.pace.given
	}
	return a.sum, err
}

func (a *action) spool() *view.Spool { return view.New(a.po, time.Now()) }

// missing calls fn for each message that was named and not met.
func (a *action) missing(fn func(id postoffice.SpoolID) error) error {
	if !a.Named {
		return nil
	}
	ids, _ := a.Select.IDs()
	var errs []error
	for _, text := range ids {
		if a.met[text] {
			continue
		}
		a.met[text] = true
		id, err := postoffice.ParseSpoolID(text)
		if err == nil {
			err = fn(id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// meet remembers a message that was named.
func (a *action) meet(m *view.Message) {
	if a.Named {
		a.met[m.ID] = true
	}
}

// fit returns the recipients of a message that the verb can change; all, if the message is
// not routed. ok is false if it cannot change the message.
func (a *action) fit(m *view.Message) (list []view.Recipient, ok bool) {
	if a.made[m.ID] {
		return nil, false
	}
	if m.State != view.StateQueued {
		_, ok := a.Verb.aside[m.State]
		return m.Recipients, ok
	}
	for i := range m.Recipients {
		// An operation on one directory changes no routed mail.
		if a.Aside == nil && a.Verb.takes != nil && a.Verb.takes(a, &m.Recipients[i]) {
			list = append(list, m.Recipients[i])
		}
	}
	return list, len(list) > 0
}

// each calls fn with every message that is selected.
func (a *action) each(fn func(m *view.Message) error) error {
	if a.Aside != nil {
		return a.Aside.Each(a.ctx, a.po, fn)
	}
	_, err := a.spool().Each(a.ctx, a.Select, fn)
	return err
}

// all acts on every message that is selected.
func (a *action) all() error {
	err := a.each(func(m *view.Message) error {
		a.meet(m)
		if _, ok := a.fit(m); !ok && !a.Named {
			return nil
		}
		m.Spec, m.Raw, m.Envelope = nil, nil, nil // they are read again under the lock
		if a.next = append(a.next, m); len(a.next) < chunk {
			return nil
		}
		return a.actOnNext()
	})
	err = errors.Join(err, a.actOnNext())
	if err != nil && !errors.Is(err, view.ErrListing) {
		return err
	}
	return errors.Join(err, a.missing(func(id postoffice.SpoolID) error {
		s := a.spool()
		m, others, err := s.ByID(id)
		if m == nil {
			a.record(id.String(), notFound(a.po, id, a.Verb.Name, others, err))
			return nil
		}
		m.Choose(a.Select, s.Now)
		a.next = append(a.next, m)
		return a.actOnNext()
	}))
}

// actOnNext notes some messages in the file of the operation and acts on them.
func (a *action) actOnNext() error {
	list := a.next
	a.next = nil
	noted := make([]bool, len(list))
	var lines []byte
	for i, m := range list {
		if _, noted[i] = a.fit(m); noted[i] {
			lines = append(append(lines, m.ID...), '\n')
		}
	}
	if err := a.note(lines); err != nil {
		return err
	}
	for i, m := range list {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		a.record(m.ID, a.message(m, noted[i]))
		err := a.pace.wait(a.ctx)
		if a.Step != nil {
			err = errors.Join(err, a.Step())
		}
		if err != nil {
			return errors.Join(err, a.sync())
		}
	}
	return a.sync()
}

// sync makes durable that messages have left their directories.
func (a *action) sync() error {
	var errs []error
	for dir := range a.away {
		errs = append(errs, a.po.Removed.Sync(dir))
	}
	clear(a.away)
	return errors.Join(errs...)
}

// note writes spool IDs into the file of the operation.
func (a *action) note(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if a.file == nil {
		if err := a.begin(); err != nil {
			return err
		}
	}
	// Crash: messages are named that nothing was done to; an undo finds nothing to undo.
	return a.file.Append(lines)
}

// begin creates the file of the operation.
func (a *action) begin() error {
	o := &Operation{Time: a.now, Who: a.Who, Verb: a.Verb.Name, Selector: a.Select.String(), Reason: a.Reason, Flags: a.flags()}
	if a.Aside != nil {
		o.Selector = a.Aside.String()
	}
	if !a.Until.IsZero() {
		o.Until = a.Until.Format(time.RFC3339)
	}
	file, err := createOperation(a.po, o, a.now, a.Keep)
	a.file, a.sum.Operation = file, o.ID
	return err
}

// createOperation gives an operation its name and creates its file.
func createOperation(po *postoffice.PostOffice, o *Operation, now time.Time, keep time.Duration) (file *postoffice.OperationFile, err error) {
	if keep > 0 {
		if err := po.Operations.Sweep(now, keep); err != nil {
			return nil, err
		}
	}
	head := o.bytes()
	err = fs.ErrExist
	// In containers one pid may begin two operations in a second.
	for late := time.Duration(0); errors.Is(err, fs.ErrExist) && late < time.Minute; late += time.Second {
		o.ID = postoffice.NewOperationID(now.Add(late), o.Verb, os.Getpid())
		file, err = po.Operations.Create(o.ID, head)
	}
	return file, err
}

func (a *action) flags() string {
	var words []string
	for _, f := range []struct {
		word string
		set  bool
	}{{"silent", a.Silent}, {"report", a.Report}, {"failed", a.Failed}, {"told", a.Reported}} {
		if f.set {
			words = append(words, f.word)
		}
	}
	return strings.Join(words, " ")
}

// record counts the error about a message.
func (a *action) record(id string, err error) {
	if err == nil {
		return
	}
	if !errors.Is(err, errBusy) {
		a.sum.Refused++
	}
	if len(a.sum.Errors) < maxErrors {
		a.sum.Errors = append(a.sum.Errors, err)
	}
	a.report(id, Outcome{Error: err.Error()})
}

func (a *action) report(id string, o Outcome) {
	if a.Outcome == nil {
		return
	}
	o.ID, o.Order = id, string(a.sum.Operation)
	a.Outcome(o)
}
