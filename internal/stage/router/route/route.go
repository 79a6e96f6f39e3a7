package route

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/workspec"
)

// maxReceived is how many Received fields a message may come with; more are a loop
// (RFC 5321 §6.3).
const maxReceived = 50

// message is a message while it is routed.
type message struct {
	ctx      context.Context // of its lookups; nil: nothing ends them
	batch    *table.Batch    // its lookups; nil: each is made by itself
	claim    *postoffice.Claim
	id       string // spool ID
	head     *envelope.Message
	header   header
	uid      uint32 // who submitted it: the file's owner, or the user whose file it was copied from
	trusted  bool   // its privileged envelope lines are believed
	external bool   // came by SMTP: from outside, or from one of our users who submitted it there
	user     string // the user who did; "-": a client without a name that may; "": from outside
	report   bool   // is a report: another default route may hold

	srs           string // see forwardedFrom
	srsDone       bool
	sender        address.Mailbox // null: reports go nowhere
	senderIs      string          // see senderText
	claimed       string          // what the envelope said instead; "" if it is believed
	author        address.Mailbox // sender before it was masqueraded
	masked        map[int][]byte  // fields of the header with masqueraded addresses, by place
	senderChecked bool            // its sender is known
	last          bool            // if it cannot be routed now it is given up
	expiredText   string          // text of the sender's report then
	fromLines     bool            // the recipients, to, were taken from the header
	rcpts         int             // that its specification has
	ident         string          // Message-ID that its specification has, or the spool ID
	to            []envelope.Recipient
	rules         contentrules.Rules // about header and body, as they were when it was read
	policy        policyState
	history       decisions // of the policy
	variants      variants  // what the policy changes

	// Called for each recipient of the envelope, and how it is resolved; nil: not
	// reported.
	next  func(*envelope.Recipient)
	trace func(rules.Step)
}

// senderText returns the sender as text, once it is final.
func (msg *message) senderText() string {
	if msg.senderIs == "" {
		msg.senderIs = msg.sender.String()
	}
	return msg.senderIs
}

// Busy and Waits are called before what takes about a millisecond and before a wait.
func (msg *message) Busy() {
	if msg.batch != nil {
		msg.batch.Busy()
	}
}

// Waits implements table.Waiter.
func (msg *message) Waits() {
	if msg.batch != nil {
		msg.batch.Waits()
	}
}

func (msg *message) context() context.Context {
	if msg.ctx == nil {
		return context.Background()
	}
	return msg.ctx
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
	MessageID  string // of the header that is sent; "": it has none that fits on a line
	Before     string // the spool ID on the way to the content filter, which has given it back
	Recipients int
	Report     bool   // it is a report, or from outside: see ledger.Journal.Routed
	OwnReport  bool   // it is a report
	Local      bool   // a user or a program of this machine submitted it
	UID        uint32 // as whom; of Local
}

// Route decides where a claimed message goes and writes its work specification beside the
// claim. It moves nothing. With last, an error of a lookup fails the message's recipients.
// Waits of its lookups are announced to waiter; they end with ctx.
func (en *Engine) Route(ctx context.Context, waiter table.Waiter, c *postoffice.Claim, last bool) (r Result) {
	w := en.idle.Get().(*worker)
	w.batch.Begin(ctx, waiter, en.permits)
	msg := message{ctx: ctx, batch: &w.batch, claim: c, id: c.ID.String(), uid: c.Info.UID, last: last}
	defer func() {
		w.batch.End()
		if p := recover(); p != nil {
			en.c.Log.Error("crash", "id", msg.id, "name", c.Name(), "reason", fmt.Sprint(p), "stack", string(debug.Stack()))
			r = Result{Panic: p} // the worker is not used again
			return
		}
		en.idle.Put(w)
	}()
	r.Aside, r.Err = w.steps(&msg)
	r.Sender, r.Recipients, r.Report = msg.senderText(), msg.rcpts, msg.external || msg.trusted && msg.head.ErrorMsg
	r.Local, r.OwnReport, r.UID = !r.Report, r.Report && !msg.external, msg.uid
	if msg.head != nil {
		r.Before = en.beforeFilter(&msg)
	}
	if msg.ident != msg.id {
		r.MessageID = msg.ident
	}
	return r
}

// steps returns those of routing, one after the other.
func (w *worker) steps(msg *message) (aside string, err error) {
	defer msg.release(w.en.c.Log)
	if aside, err = w.read(msg); aside != "" || err != nil {
		return aside, err
	}
	if len(msg.head.Recipients) > manyRecipients || len(msg.head.Header) > largeHeader {
		msg.Busy()
	}
	if err = w.prepare(msg); err == nil {
		msg.rcpts, err = w.specify(msg)
	}
	if why, ok := Defers(err); ok && msg.last && msg.senderChecked && msg.context().Err() == nil {
		msg.rcpts, err = w.giveUp(msg, why, err)
	}
	if err == nil && msg.rcpts == 0 {
		return noRecipient, nil
	}
	if err == nil {
		w.copies(msg)
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
func (w *worker) read(msg *message) (aside string, err error) {
	msg.head, err = envelope.Read(msg.claim.File)
	if broken := (*envelope.SyntaxError)(nil); errors.As(err, &broken) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	if msg.head.Octets > msg.claim.Info.Size {
		return fmt.Sprintf("%d bytes, its first line has %d; remove that line if you cut the file yourself", msg.claim.Info.Size, msg.head.Octets), nil
	}
	if s := msg.head.Submitter; s != nil && w.en.isDaemon(msg.claim.Info.UID) {
		msg.uid = s.UID
	}
	msg.header.look(msg.head.Header)
	if len(msg.head.Unknown) > 0 {
		w.en.c.Log.Warn("unknown-keyword", "id", msg.id, "keywords", msg.head.Unknown)
	}
	return "", nil
}

// prepare decides what concerns the whole message: the sender and the recipients, changes
// of the header, and the policy's decision. It has no side effects.
func (w *worker) prepare(msg *message) error {
	msg.rules = w.en.contentRules.Current()
	if err := w.en.checkSender(msg); err != nil {
		return err
	}
	msg.senderChecked = true
	if err := w.en.rewriteHeader(msg); err != nil {
		return err
	}
	if msg.to = msg.head.Recipients; len(msg.to) == 0 {
		msg.to, msg.fromLines = fromHeader(msg.header.fields), true
	}
	return w.en.askPolicy(msg)
}

// copies leaves the postmaster a copy of what is odd, if that is wanted (M12). One
// that cannot be made is no reason to stop the message.
func (w *worker) copies(msg *message) {
	if !w.en.c.PostmanCopy {
		return
	}
	why, reason := "header", msg.header.fault()
	if msg.header.received > maxReceived {
		why, reason = "loop", fmt.Sprintf("%d Received fields, %d are the most", msg.header.received, maxReceived)
	}
	if reason == "" {
		return
	}
	if err := msg.claim.SoftCopy(why); err != nil {
		w.en.c.Log.Warn("no-copy", "id", msg.id, "why", why, "reason", err)
		return
	}
	w.en.NoteReason(postoffice.Postman, msg.claim.ID, postoffice.WasCopied, why+": "+reason)
	w.en.c.Log.Warn("soft-copy", "id", msg.id, "name", fmt.Sprintf("%s/%d_%s", postoffice.Postman, msg.claim.ID.Ino, why), "reason", reason)
}
