package smtpclient

import (
	"errors"
	"fmt"

	"zmailer/internal/status"
)

var errNeedsUTF8 = errors.New("the address is not ASCII and the server does not offer SMTPUTF8")

// transaction is the sending of one message.
type transaction struct {
	c       *Conn
	m       *Message
	results []Result
	to      []wire  // per recipient; empty path: not asked
	lines   []span  // per recipient: its RCPT in c.cmd
	replies []Reply // per recipient: to RCPT

	mailLine  span
	mail      Reply
	data      Reply
	accepted  int  // recipients with a positive reply
	dataAsked bool // DATA went out
	dotSent   bool
	finals    []Reply // to the final dot: one, or with LMTP one per accepted recipient

	// last is a reply that decided for all who have none of their own: 421, or a
	// refusal in the middle of the message.
	last      Reply
	lastPhase Phase
	err       error // the connection broke, or we gave up
}

// span is a part of Conn.cmd.
type span struct{ from, to int }

// Send performs one transaction and returns a result for each recipient, in order.
// Afterwards the connection serves for another one if Usable says so. The error is
// nil or ErrStale.
func (c *Conn) Send(m *Message) ([]Result, error) {
	t := &transaction{c: c, m: m,
		results: make([]Result, len(m.Recipients)),
		to:      make([]wire, len(m.Recipients)),
		lines:   make([]span, len(m.Recipients)),
		replies: make([]Reply, len(m.Recipients)),
	}
	from, utf8, ok := t.prepare()
	if !ok {
		return t.results, nil
	}
	if c.cmd = c.cmd[:0]; cap(c.cmd) > 8*chunk {
		c.cmd = nil // thousands of recipients: do not keep the memory for a kept connection
	}
	var err error
	if c.ext.Pipelining {
		err = t.askPipelined(from, utf8)
	} else {
		err = t.askInTurn(from, utf8)
	}
	t.err = err
	stale := t.stale()
	if stale {
		c.Close()
	} else if err == nil {
		t.afterQuestions()
	}
	t.decideAll()
	if stale {
		return t.results, ErrStale
	}
	return t.results, nil
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
	utf8 = from.utf8
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

// stale tells a kept connection that the server has closed between two messages:
// it broke, or said 421, before MAIL was answered.
func (t *transaction) stale() bool {
	if t.c.served == 0 {
		return false
	}
	return t.mail.IsZero() && t.err != nil || t.mail.Code == 421
}
