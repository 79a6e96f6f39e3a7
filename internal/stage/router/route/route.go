package route

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/workspec"
)

// maxReceived is how many Received fields a message may come with; more are a loop
// (RFC 5321 §6.3).
const maxReceived = 50

// letter is a message while it is routed.
type letter struct {
	ctx      context.Context // of its lookups; nil: nothing ends them
	batch    *table.Batch    // its lookups; nil: each is made by itself
	claim    *postoffice.Claim
	id       string // spool ID
	head     *envelope.Message
	header   header
	uid      uint32 // who submitted it: the file's owner, or the user whose file it was copied from
	trusted  bool   // its privileged envelope lines are believed
	external bool   // came from outside
	report   bool   // is a report: another default route may hold

	sender    address.Mailbox // null: reports go nowhere
	senderIs  string          // see senderText
	claimed   string          // what the envelope said instead; "" if it is believed
	author    address.Mailbox // sender before it was masqueraded
	masked    map[int][]byte  // fields of the header with masqueraded addresses, by place
	judged    bool            // its sender is known
	last      bool            // if it cannot be routed now it is given up
	givenUp   string          // what its sender is told then
	fromLines bool            // the recipients, to, were taken from the header
	rcpts     int             // that its specification has
	to        []envelope.Recipient
	policy    counsel
	decided   []decided      // by the policy, for the history
	undecided int            // decisions that are not in it
	variants  []variant      // what the policy changes; 0 is the whole message's; none: nothing
	varied    map[string]int // places in variants
	forwards  int            // variants that name an address that they were forwarded for

	// Told of each recipient of the envelope, and how it is resolved; nil: nobody wants to
	// know.
	next  func(*envelope.Recipient)
	trace func(rules.Step)
}

// senderText is the sender as text, once nobody changes it any more.
func (l *letter) senderText() string {
	if l.senderIs == "" {
		l.senderIs = l.sender.String()
	}
	return l.senderIs
}

// Busy and Waits are called before what takes about a millisecond and before a wait.
func (l *letter) Busy() {
	if l.batch != nil {
		l.batch.Busy()
	}
}

// Waits implements table.Waiter.
func (l *letter) Waits() {
	if l.batch != nil {
		l.batch.Waits()
	}
}

// context is that of its lookups.
func (l *letter) context() context.Context {
	if l.ctx == nil {
		return context.Background()
	}
	return l.ctx
}

// worker is what one message at a time is routed with; its buffers are kept.
type worker struct {
	en     *Engine
	spec   workspec.Writer
	header []byte
	kept   []kept
	seen   seen
	batch  table.Batch
}

// Result is what routing a message came to: one of Err, Aside, Panic, or a specification of
// Recipients recipients.
type Result struct {
	Err        error
	Aside      string // why the message is set aside: it cannot be routed
	Panic      any
	Sender     string // the envelope sender
	Recipients int
	Report     bool // it is a report, or from outside: see ledger.Journal.Routed
}

// Route decides where a claimed message goes and writes its work specification beside the
// claim. It moves nothing. With last, an error of a lookup fails the message's recipients.
// Waits of its lookups are announced to waiter; they end with ctx.
func (en *Engine) Route(ctx context.Context, waiter table.Waiter, c *postoffice.Claim, last bool) (r Result) {
	w := en.idle.Get().(*worker)
	w.batch.Begin(ctx, waiter, en.permits)
	l := letter{ctx: ctx, batch: &w.batch, claim: c, id: c.ID.String(), uid: c.Info.UID, last: last}
	defer func() {
		w.batch.End()
		if p := recover(); p != nil {
			en.c.Log.Error("crash", "id", l.id, "name", c.Name(), "reason", fmt.Sprint(p), "stack", string(debug.Stack()))
			r = Result{Panic: p} // the worker is not used again
			return
		}
		en.idle.Put(w)
	}()
	r.Aside, r.Err = w.steps(&l)
	r.Sender, r.Recipients, r.Report = l.senderText(), l.rcpts, l.external || l.trusted && l.head.ErrorMsg
	return r
}

// steps are those of routing, one after the other.
func (w *worker) steps(l *letter) (aside string, err error) {
	defer l.release(w.en.c.Log)
	if aside, err = w.read(l); aside != "" || err != nil {
		return aside, err
	}
	if len(l.head.Recipients) > manyRecipients || len(l.head.Header) > largeHeader {
		l.Busy()
	}
	if err = w.prepare(l); err == nil {
		l.rcpts, err = w.specify(l)
	}
	if why, ok := Defers(err); ok && l.last && l.judged && l.context().Err() == nil {
		l.rcpts, err = w.giveUp(l, why, err)
	}
	if err == nil && l.rcpts == 0 {
		return noRecipient, nil
	}
	if err == nil {
		w.copies(l)
	}
	return "", err
}

// What takes about a millisecond: another worker looks after the messages that come
// meanwhile.
const (
	manyRecipients = 100
	largeHeader    = 128 << 10 // bytes
)

// noRecipient is why a message is set aside that has none.
const noRecipient = "neither a to line nor To, Cc or Bcc in the header names a recipient"

// read reads the head of a message file. aside: it cannot be routed, and why.
func (w *worker) read(l *letter) (aside string, err error) {
	l.head, err = envelope.Read(l.claim.File)
	if broken := (*envelope.SyntaxError)(nil); errors.As(err, &broken) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	if l.head.Octets > l.claim.Info.Size {
		return fmt.Sprintf("%d bytes, its first line says %d; drop that line if you cut the file yourself", l.claim.Info.Size, l.head.Octets), nil
	}
	if s := l.head.Submitter; s != nil && w.en.isDaemon(l.claim.Info.UID) {
		l.uid = s.UID
	}
	l.header.look(l.head.Header)
	if len(l.head.Unknown) > 0 {
		w.en.c.Log.Warn("unknown-keyword", "id", l.id, "keywords", l.head.Unknown)
	}
	return "", nil
}

// prepare decides what concerns the whole message: who it is from and to, what becomes of
// its header, and what the policy says of it. It acts on nothing.
func (w *worker) prepare(l *letter) error {
	if err := w.en.judge(l); err != nil {
		return err
	}
	l.judged = true
	if err := w.en.dress(l); err != nil {
		return err
	}
	if l.to = l.head.Recipients; len(l.to) == 0 {
		l.to, l.fromLines = fromHeader(l.header.fields), true
	}
	return w.en.consult(l)
}

// copies leaves the postmaster a copy of what is odd, if that is wanted (M12). One
// that cannot be made is no reason to stop the message.
func (w *worker) copies(l *letter) {
	if !w.en.c.PostmanCopy {
		return
	}
	why, reason := "header", l.header.fault()
	if l.header.received > maxReceived {
		why, reason = "loop", fmt.Sprintf("%d Received fields, %d are the most", l.header.received, maxReceived)
	}
	if reason == "" {
		return
	}
	if err := l.claim.SoftCopy(why); err != nil {
		w.en.c.Log.Warn("no-copy", "id", l.id, "why", why, "reason", err)
		return
	}
	w.en.NoteReason(postoffice.Postman, l.claim.ID, postoffice.WasCopied, why+": "+reason)
	w.en.c.Log.Warn("soft-copy", "id", l.id, "name", fmt.Sprintf("%s/%d_%s", postoffice.Postman, l.claim.ID.Ino, why), "reason", reason)
}
