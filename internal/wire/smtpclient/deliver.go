package smtpclient

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
)

const (
	// earlyWait is how long a server that hangs up in the middle of a message may take
	// to be heard out.
	earlyWait = time.Second
	// leaveWait is how long a server may take from 421 to the end of the connection.
	leaveWait = 10 * time.Second
)

// afterQuestions sends the message if at least one recipient wants it and the server is in
// step with us.
func (t *transaction) afterQuestions() {
	c := t.c
	switch {
	case !c.Usable():
		// 421: there is nothing to send.
	case c.unread() > 0 && !t.lastWord():
		// Whose answers the others were is not known any more.
		t.err = c.inStep(PhaseData)
	case t.data.Class() != 3:
		// Refused: there is nothing to send.
	case t.accepted == 0:
		// RFC 2920 §3.1 has an empty message sent here. A server that has lost step may
		// have accepted somebody, who would get it; RFC 2033 §4.2 forbids the case.
		c.Close()
	default:
		t.sendMessage()
	}
}

// lastWord reports whether what the server has said beyond its answers is 421, which may
// come at any time (RFC 5321 §3.8). It leaves the answers before it as they are, and ends
// the connection.
func (t *transaction) lastWord() bool {
	b, _ := t.c.r.Peek(t.c.r.Buffered())
	if t.data.Class() == 3 || len(b) < 3 || string(b[:3]) != "421" {
		return false
	}
	t.c.Close()
	return true
}

// sendMessage sends header, body and final dot and reads what became of it.
func (t *transaction) sendMessage() {
	c := t.c
	w := &c.out
	w.start(c.nc, &c.cfg)
	defer w.rest()
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
	if t.m.Sent != nil {
		if err := t.m.Sent(t.acceptedRecipients()); err != nil {
			t.giveUp(err)
			return
		}
	}
	w.finish()
	if err := w.flush(); err != nil {
		t.refusedMidway(err) // the dot has not left
		return
	}
	t.sent = true
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
// accepted recipient in order (RFC 2033 §4.2). Where one may be no answer to it, the
// recipients from there on are in doubt.
func (t *transaction) readFinals() {
	c := t.c
	n := 1
	if c.cfg.LMTP {
		n = t.accepted
	}
	t.finals = make([]Reply, 0, n)
	c.needReset = false
	for range n {
		r, err := c.reply(PhaseDot)
		if err == nil && r.Class() == 3 {
			err = c.fail(PhaseDot, fmt.Errorf("%w: the final dot answered with %s", ErrNoReply, r))
		}
		if err != nil {
			t.err = err
			return
		}
		if r.Code == 421 {
			if !c.left() {
				t.drew = r
				t.err = c.fail(PhaseDot, fmt.Errorf("%w: the server said that it closes the session, and did not: %s", ErrNoReply, r))
				return
			}
			t.finals = append(t.finals, r)
			t.err = c.fail(PhaseDot, io.ErrUnexpectedEOF) // for those that have no answer
			return
		}
		t.finals = append(t.finals, r)
		// The transaction is over (RFC 5321 §4.1.1.4). Where the message was refused some
		// servers keep it open all the same.
		c.needReset = c.needReset || r.Class() != 2
	}
	t.agreed()
}

// agreed looks at answers beyond the last one. They end the connection, and it is not known
// which of all are about whom: with k of them too many, a recipient's is one of k+1. Where
// these do not say the same he is in doubt. 421 may come at any time (RFC 5321 §3.8).
func (t *transaction) agreed() {
	c, n := t.c, len(t.finals)
	for c.unread() > 0 {
		c.broken.Store(true)
		var r Reply // none: it is half a reply, or nonsense
		if b, _ := c.r.Peek(c.r.Buffered()); wholeReply(b) {
			r, _ = readReply(c.r)
		}
		if r.Code == 421 {
			continue
		}
		if t.finals = append(t.finals, r); r.IsZero() {
			break
		}
	}
	all, first := t.finals, t.finals[0]
	t.finals = all[:n]
	for i := range t.finals {
		for _, r := range all[i+1 : i+1+len(all)-n] {
			if r.Class() != all[i].Class() {
				all[i] = Reply{}
				t.err = c.fail(PhaseDot, fmt.Errorf("%w: %d answers where there should be %d, the first is %s", ErrNoReply, len(all), n, first))
				break
			}
		}
	}
}

// left reports whether a server that said 421 ends the connection. If it goes on, 421 may
// have been a notice, and what it was given may still be taken.
func (c *Conn) left() bool {
	if c.unread() > 0 || c.nc.SetReadDeadline(time.Now().Add(leaveWait)) != nil {
		return false
	}
	_, err := c.r.Peek(1)
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
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
