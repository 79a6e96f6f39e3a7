package smtpclient

import (
	"errors"
	"fmt"
	"time"
)

// earlyWait is how long a server that hangs up in the middle of a message may take
// to be heard out.
const earlyWait = time.Second

// afterQuestions sends the message if at least one recipient wants it.
func (t *transaction) afterQuestions() {
	switch {
	case !t.last.IsZero() || t.mail.Code == 421 || t.data.Class() != 3:
		// Refused, or 421: there is nothing to send.
	case t.accepted == 0:
		t.abort()
	default:
		t.sendMessage()
	}
}

// abort ends a transaction whose DATA was sent before it was known that no
// recipient is left: an empty message, which the server must not deliver (RFC 2920
// §3.1). The outcome is known already, whatever comes back.
func (t *transaction) abort() {
	c := t.c
	if c.cfg.LMTP {
		// RFC 2033 §4.2 forbids 354 here, and how many replies would follow the
		// dot is not defined.
		c.Close()
		return
	}
	c.out.start(c.nc, c.cfg.Timeouts.Block, false)
	c.out.finish()
	c.standing(false)
	if c.passWriting(t) != nil {
		c.nc.Close()
		return
	}
	_, _ = t.reply(PhaseDot)
}

// sendMessage sends header, body and final dot and reads what became of it. No other
// transaction is on the way: those before have been answered, or DATA would not be.
func (t *transaction) sendMessage() {
	c := t.c
	w := &c.out
	w.start(c.nc, c.cfg.Timeouts.Block, false)
	if _, err := w.Write(t.m.Header); err != nil {
		t.refusedMidway(err)
		return
	}
	readErr, err := w.readBody(t.m.Body)
	if err != nil {
		t.refusedMidway(err)
		return
	}
	if readErr != nil {
		t.giveUp(fmt.Errorf("read the message: %w", readErr))
		return
	}
	if t.answeredEarly() {
		return
	}
	if t.m.Sent != nil {
		if err := t.m.Sent(t.acceptedRecipients()); err != nil {
			t.giveUp(err)
			return
		}
	}
	w.finish()
	t.ends, t.since = w.total, time.Now()
	c.standing(false) // whatever is answered to the dot, the transaction is over (RFC 5321 §4.1.1.4)
	if err := c.passWriting(t); err != nil {
		t.refusedMidway(errors.Unwrap(err))
		return
	}
	if !c.awaitGone(t) {
		t.refusedMidway(errors.Unwrap(c.why(PhaseBody))) // there is no answer to wait for
		return
	}
	t.readFinals()
}

func (t *transaction) acceptedRecipients() []int {
	accepted := make([]int, 0, t.accepted)
	for i := range t.replies {
		if t.replies[i].Class() == 2 {
			accepted = append(accepted, i)
		}
	}
	return accepted
}

// readFinals reads the answers to the final dot: one, or with LMTP one for each
// accepted recipient in order (RFC 2033 §4.2).
func (t *transaction) readFinals() {
	c := t.c
	n := 1
	if c.cfg.LMTP {
		n = t.accepted
	}
	t.finals = make([]Reply, 0, n)
	for range n {
		r, err := t.reply(PhaseDot)
		if err == nil && r.Class() == 3 {
			err = c.fail(PhaseDot, fmt.Errorf("%w: the final dot answered with %s", ErrNoReply, r))
		}
		if err != nil {
			t.err = err
			return
		}
		t.finals = append(t.finals, r)
		if t.note(PhaseDot, r); r.Code == 421 {
			return
		}
	}
	c.finished(t.since)
}

// answeredEarly ends a transaction that the server has answered before the final dot: by a
// refusal, or out of step.
func (t *transaction) answeredEarly() bool {
	c := t.c
	if c.r.Buffered() == 0 {
		return false
	}
	r, err := t.reply(PhaseBody)
	switch {
	case err != nil:
		t.err = err
	case r.Class() >= 4 && !c.cfg.LMTP:
		t.last, t.lastPhase = r, PhaseBody
		c.Close()
	default:
		t.err = c.fail(PhaseBody, fmt.Errorf("%w: %s before the end of the message", ErrNoReply, r))
	}
	return true
}

// giveUp closes the connection without the dot, for a reason of ours: the server
// discards what it got (RFC 5321 §4.1.1.4).
func (t *transaction) giveUp(err error) {
	t.c.Close()
	t.err = err
}

// refusedMidway closes a connection that took no more of the message. A server that
// wants no more may have said so before it hung up.
func (t *transaction) refusedMidway(err error) {
	c := t.c
	broke := &ConnError{Phase: PhaseBody, Err: err}
	if !broke.Timeout() && !c.cfg.LMTP && c.nc.SetReadDeadline(time.Now().Add(earlyWait)) == nil {
		if r, rerr := readReply(c.r); rerr == nil && r.Class() >= 4 {
			t.last, t.lastPhase = r, PhaseBody
		}
	}
	t.err = c.fail(PhaseBody, err)
}
