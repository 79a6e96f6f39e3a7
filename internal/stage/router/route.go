package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/machine"
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
	r      *Router
	spec   workspec.Writer
	header []byte
	kept   []kept
	seen   seen
	batch  table.Batch
}

// RouteOne claims router/name and routes it. See the package's Diagnostics.
func (r *Router) RouteOne(name string) error { return r.routeOne(context.Background(), name, false) }

// routeOne is RouteOne; tried: the message has ended routers before. The message is given
// back if ctx is done while it waits for a lookup.
func (r *Router) routeOne(ctx context.Context, name string, tried bool) error {
	return r.routeFor(ctx, table.NoWaiter{}, name, tried)
}

// routeFor is routeOne with a Waiter.
func (r *Router) routeFor(ctx context.Context, waiter table.Waiter, name string, tried bool) error {
	c, err := r.po.Router.Claim(r.owner, name)
	if err != nil {
		if c != nil {
			r.hold(c)
		}
		if disbelief := (*postoffice.UntrustedError)(nil); errors.As(err, &disbelief) {
			return r.disbelieve(postoffice.RouterPath(name), disbelief)
		}
		return err
	}
	if tried {
		c.Tried()
	}
	return r.routeClaim(ctx, waiter, c, false)
}

// routeClaim routes a claimed message; last: for the last time.
func (r *Router) routeClaim(ctx context.Context, waiter table.Waiter, c *postoffice.Claim, last bool) error {
	w := r.idle.Get().(*worker)
	w.batch.Begin(ctx, waiter, r.permits)
	ok, err := w.route(ctx, c, last)
	if ok {
		r.idle.Put(w)
	}
	machine.Worked()
	return err
}

// RouteAll routes what is in router/, oldest first unless Unsorted, and tells how
// many messages have left it. It goes on after an error, unless the router stops.
func (r *Router) RouteAll() (int, error) {
	list, err := r.po.Router.List(!r.c.Unsorted, r.c.Now())
	if err != nil {
		return 0, err
	}
	n := 0
	for _, p := range list {
		if r.base.Err() != nil {
			break
		}
		e := r.routeOne(r.base, p.Name, p.Tries > 0)
		if errors.Is(e, postoffice.ErrSubmission) {
			// Of an earlier version's router directory, or put aside by one.
			var taken postoffice.PickedUp
			if taken, e = r.PickUp(postoffice.RouterPath(p.Name)); e == nil && taken.Accepted.Name != "" {
				e = r.routeOne(r.base, taken.Accepted.Name, false)
			}
		}
		switch {
		case e == nil:
			n++
		case !errors.Is(e, postoffice.ErrGone) && !errors.Is(e, errStopped):
			err = errors.Join(err, e)
		}
	}
	return n, err
}

// route routes a claimed message. ok is false if it made the router panic: the
// worker is not to be used again.
func (w *worker) route(ctx context.Context, c *postoffice.Claim, last bool) (ok bool, err error) {
	start := w.r.c.Now()
	l := letter{ctx: ctx, batch: &w.batch, claim: c, id: c.ID.String(), uid: c.Info.UID, last: last}
	defer w.batch.End()
	defer func() {
		if p := recover(); p != nil {
			w.r.c.Log.Error("crash", "id", l.id, "name", c.Name(), "reason", fmt.Sprint(p), "stack", string(debug.Stack()))
			ok, err = false, w.r.panicked(&l, p)
		}
	}()
	name, err := w.steps(&l)
	if err != nil || name == "" {
		return true, err
	}
	w.r.meters.routed(&l, start, w.r.c.Now)
	if log := w.r.c.Log; log.Enabled(ctx, slog.LevelInfo) {
		log.LogAttrs(ctx, slog.LevelInfo, "routed", slog.String("id", l.id), slog.String("name", name),
			slog.String("from", l.senderText()), slog.Int("rcpts", l.rcpts), slog.Int64("size", c.Info.Size),
			slog.Duration("took", w.r.c.Now().Sub(start)))
	}
	return true, nil
}

// steps does one after the other what routing is. name: handed over under it; "":
// the message went another way.
func (w *worker) steps(l *letter) (name string, err error) {
	defer l.release(w.r.c.Log)
	aside, err := w.read(l)
	if err == nil && aside == "" {
		if len(l.head.Recipients) > manyRecipients || len(l.head.Header) > largeHeader {
			l.Busy()
		}
		err = w.prepare(l)
	}
	if err == nil && aside == "" {
		l.rcpts, err = w.specify(l)
	}
	if why, ok := putsOff(err); ok && l.last && l.judged && l.context().Err() == nil {
		l.rcpts, err = w.giveUp(l, why, err)
	}
	switch {
	case err != nil:
		return "", w.r.failed(l, err)
	case aside == "" && l.rcpts == 0:
		aside = noRecipient
	}
	if aside != "" {
		return "", w.r.setAside(l, aside)
	}
	w.copies(l)
	return w.r.handOver(l, l.rcpts)
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
	if s := l.head.Submitter; s != nil && w.r.isDaemon(l.claim.Info.UID) {
		l.uid = s.UID
	}
	l.header.look(l.head.Header)
	if len(l.head.Unknown) > 0 {
		w.r.c.Log.Warn("unknown-keyword", "id", l.id, "keywords", l.head.Unknown)
	}
	return "", nil
}

// prepare decides what concerns the whole message: who it is from and to, what becomes of
// its header, and what the policy says of it. It acts on nothing.
func (w *worker) prepare(l *letter) error {
	if err := w.r.judge(l); err != nil {
		return err
	}
	l.judged = true
	if err := w.r.dress(l); err != nil {
		return err
	}
	if l.to = l.head.Recipients; len(l.to) == 0 {
		l.to, l.fromLines = fromHeader(l.header.fields), true
	}
	return w.r.consult(l)
}

// copies leaves the postmaster a copy of what is odd, if that is wanted (M12). One
// that cannot be made is no reason to stop the message.
func (w *worker) copies(l *letter) {
	if !w.r.c.PostmanCopy {
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
		w.r.c.Log.Warn("no-copy", "id", l.id, "why", why, "reason", err)
		return
	}
	w.r.explain(postoffice.Postman, l.claim.ID, postoffice.WasCopied, why+": "+reason)
	w.r.c.Log.Warn("soft-copy", "id", l.id, "name", fmt.Sprintf("%s/%d_%s", postoffice.Postman, l.claim.ID.Ino, why), "reason", reason)
}
