package smtpclient

import (
	"errors"
	"fmt"
	"net"
	"time"

	"zmailer/internal/mail/status"
)

var errNeedsUTF8 = errors.New("the address is not ASCII and the server does not offer SMTPUTF8")

// transaction is the sending of one message.
type transaction struct {
	c       *Conn
	m       *Message
	results []Result
	to      []wire  // per recipient; empty path: not asked
	lines   []span  // per recipient: its RCPT in cmd
	replies []Reply // per recipient: to RCPT
	cmd     []byte  // its commands

	mailLine  span
	mail      Reply
	data      Reply
	accepted  int     // recipients with a positive reply
	dataAsked bool    // DATA went out
	drew      Reply   // 421 to the final dot that did not end the connection
	astray    bool    // which answer belongs to which command is not known
	sent      bool    // the final dot has left: the server may have all of the message
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
// nil or ErrStale.
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
	end := t.run(from, utf8)
	t.decideAll()
	return t.results, end
}

// run performs the transaction.
func (t *transaction) run(from wire, utf8 bool) error {
	c := t.c
	served := c.served > 0
	if !c.Usable() {
		t.err = &ConnError{Phase: PhaseMail, Err: net.ErrClosed}
		return ErrStale
	}
	if c.cfg.MaxTime > 0 {
		c.until = time.Now().Add(c.cfg.MaxTime)
	}
	if c.ext.Pipelining {
		t.err = t.askPipelined(from, utf8)
	} else {
		t.err = t.askInTurn(from, utf8)
	}
	if served && t.stale() {
		c.Close()
		return ErrStale
	}
	if t.err == nil {
		t.afterQuestions()
	}
	t.astray = errors.Is(t.err, ErrNoReply)
	if !c.Usable() {
		c.Close() // also where the server has said that it will
	}
	return nil
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

// stale reports whether the server has done nothing for the transaction, on a connection
// that has served others: it ended before MAIL was answered, or said 421 to that or before.
func (t *transaction) stale() bool {
	return t.mail.IsZero() && t.err != nil || t.mail.Code == 421
}
