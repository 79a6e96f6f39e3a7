package smtpclient

import (
	"errors"
	"fmt"
	"time"

	"zmailer/internal/status"
)

var errNeedsUTF8 = errors.New("the address is not ASCII and the server does not offer SMTPUTF8")

// errLeft is what a transaction gets instead of an answer behind 421.
var errLeft = errors.New("the server had closed the session before")

// errGoesOn is what it gets if the server did not close it.
var errGoesOn = fmt.Errorf("%w: the server said that it closes the session, and did not", ErrNoReply)

// transaction is the sending of one message.
type transaction struct {
	c       *Conn
	m       *Message
	results []Result
	to      []wire  // per recipient; empty path: not asked
	lines   []span  // per recipient: its RCPT in cmd
	replies []Reply // per recipient: to RCPT
	cmd     []byte  // its commands

	place  *place    // in the line
	passed bool      // its turn to write is over
	alone  bool      // nothing else was on the way when it began to write
	reset  bool      // RSET goes before MAIL
	size   int64     // bytes of the message on the way beside others
	ends   int64     // where its last byte stands in all that the connection was given; 0: it was not
	since  time.Time // when something was written last

	chunk     *chunkBuffer // the message, if it goes by BDAT
	chunkLine span
	mailLine  span
	mail      Reply
	data      Reply
	accepted  int     // recipients with a positive reply
	dataAsked bool    // DATA went out
	finals    []Reply // to the message: one, or with LMTP one per accepted recipient

	// last is a reply that decided for all who have none of their own: 421, or a
	// refusal in the middle of the message.
	last      Reply
	lastPhase Phase
	err       error // the connection broke, or we gave up
}

// span is a part of transaction.cmd.
type span struct{ from, to int }

// Send performs one transaction and returns a result for each recipient, in order.
// Afterwards the connection serves for another one if Usable says so. The error is
// nil, ErrStale or ErrNoChunks. While others are on the way it waits for room.
func (c *Conn) Send(m *Message) ([]Result, error) {
	t := &transaction{c: c, m: m,
		results: make([]Result, len(m.Recipients)),
		to:      make([]wire, len(m.Recipients)),
		lines:   make([]span, len(m.Recipients)),
		replies: make([]Reply, len(m.Recipients)),
		cmd:     make([]byte, 0, 128+64*min(len(m.Recipients), 100)),
	}
	from, utf8, ok := t.prepare()
	if !ok {
		return t.results, nil
	}
	t.err = t.load()
	defer t.unload()
	var end error
	if t.err == nil {
		end = t.run(from, utf8)
	}
	t.decideAll()
	return t.results, end
}

// run sends the message in its turn.
func (t *transaction) run(from wire, utf8 bool) error {
	c := t.c
	if t.chunk != nil && t.m.Sent != nil {
		// Who will be accepted is not known yet, so that all of them may get it.
		if t.err = t.m.Sent(t.asked()); t.err != nil {
			return nil
		}
	}
	if !c.enter(t) {
		return t.notBegun()
	}
	defer c.leave(t)
	if !c.awaitWriting(t) || t.alone && c.gone(t.chunk != nil) {
		return t.notBegun()
	}
	c.mu.Lock()
	t.reset = c.needReset || c.unsure > 0
	served := c.served > 0
	c.mu.Unlock()
	switch {
	case t.chunk != nil:
		t.sendChunk(from, utf8)
	case c.ext.Pipelining:
		t.err = t.askPipelined(from, utf8)
	default:
		t.err = t.askInTurn(from, utf8)
	}
	if served && t.stale() {
		if !c.hasLeft() {
			c.Close() // else the next one looks whether the server does
		}
		return ErrStale
	}
	if t.unknownChunk() {
		c.Close() // its answers to the message's lines would be taken for the next one's
		if t.accepted > 0 {
			return ErrNoChunks
		}
	}
	if t.chunk == nil && t.err == nil {
		t.afterQuestions()
	}
	return nil
}

// notBegun is the end of a transaction that found the connection broken.
func (t *transaction) notBegun() error {
	t.err = t.c.why(PhaseMail)
	return ErrStale
}

// asked is the recipients with an address.
func (t *transaction) asked() []int {
	var asked []int
	for i := range t.to {
		if t.to[i].path != "" {
			asked = append(asked, i)
		}
	}
	return asked
}

// sent tells whether the server may have all of the message: its last byte was given to
// be written.
func (t *transaction) sent() bool { return t.ends > 0 && t.c.out.gone.Load() >= t.ends }

// phase is the one that a failing write belongs to.
func (t *transaction) phase() Phase {
	if t.ends > 0 {
		return PhaseBody
	}
	return t.waitingFor()
}

// prepare gives the addresses the form that this server can take and settles the
// recipients that have none. ok is false if nothing is left to send.
func (t *transaction) prepare() (from wire, utf8, ok bool) {
	smtputf8 := t.c.ext.SMTPUTF8
	from, code, err := wireAddress(t.m.From, smtputf8)
	if err != nil {
		for i := range t.results {
			t.results[i] = Result{Outcome: status.Failed, Code: code, Phase: PhaseMail, Err: fmt.Errorf("sender: %w", err)}
		}
		return from, false, false
	}
	utf8 = from.utf8 || t.m.UTF8
	for i := range t.m.Recipients {
		to, code, err := wireAddress(t.m.Recipients[i].Address, smtputf8)
		if err == nil && to.path == "" {
			code, err = status.BadAddress, errors.New("the null address is no recipient")
		}
		if err != nil {
			t.results[i] = Result{Outcome: status.Failed, Code: code, Phase: PhaseRcpt, Err: err}
			continue
		}
		t.to[i] = to
		utf8 = utf8 || to.utf8
		ok = true
	}
	return from, utf8, ok
}

// stale tells a transaction of which the server has done nothing, on a connection that
// has served others: it broke before MAIL was answered and before all of a message was
// written, or said 421 to that or before.
func (t *transaction) stale() bool {
	if t.mail.IsZero() && t.err != nil {
		return !t.sent() || t.behindLeave()
	}
	return t.mail.Code == 421
}

// behindLeave tells that the server had said 421, after which it does nothing more
// (RFC 5321 §3.8), before it came to this transaction.
func (t *transaction) behindLeave() bool { return errors.Is(t.err, errLeft) }
