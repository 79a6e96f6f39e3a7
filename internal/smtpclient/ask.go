package smtpclient

import (
	"fmt"
	"time"
)

// chunk is how many bytes of commands are sent before their answers are read. It
// must fit into the server's receive buffer while it is busy writing answers, or
// both sides wait for each other for ever (RFC 2920 §3.1).
const chunk = 8 << 10

// askPipelined sends MAIL, every RCPT and DATA in one write and reads the answers in
// order (RFC 2920 §3.1). Very many recipients go in chunks, DATA with the last.
func (t *transaction) askPipelined(from wire, utf8 bool) error {
	t.addReset()
	t.addMail(from, utf8)
	sent, answered, next := 0, 0, 0 // bytes of cmd written; recipients
	for {
		for ; next < len(t.to) && len(t.cmd)-sent < chunk; next++ {
			t.addRcpt(next, utf8)
		}
		if next == len(t.to) {
			t.cmd = append(t.cmd, "DATA\r\n"...)
			t.dataAsked = true
		}
		if err := t.say(t.waitingFor(), sent); err != nil {
			return err
		}
		sent = len(t.cmd)
		if err := t.readAnswers(answered, next); err != nil {
			return err
		}
		answered = next
		if t.dataAsked || !t.last.IsZero() || t.mail.Class() != 2 {
			return nil
		}
	}
}

// readAnswers reads the answers to one write: to RSET and MAIL if they are due, to
// recipients from up to but without end, and to DATA if it was asked. It stops at
// 421, after which nothing comes.
func (t *transaction) readAnswers(from, end int) error {
	if t.mail.IsZero() {
		if err := t.readMail(); err != nil || t.mail.Code == 421 {
			return err
		}
	}
	for i := from; i < end && t.last.IsZero(); i++ {
		if err := t.readRcpt(i); err != nil {
			return err
		}
	}
	if t.dataAsked && t.last.IsZero() {
		return t.readData()
	}
	return nil
}

// askInTurn sends one command after the other to a server without PIPELINING, and
// nothing that cannot succeed any more.
func (t *transaction) askInTurn(from wire, utf8 bool) error {
	if t.reset {
		t.addReset()
		if err := t.say(PhaseMail, 0); err != nil {
			return err
		}
		if err := t.readReset(); err != nil || !t.mail.IsZero() {
			return err
		}
	}
	sent := len(t.cmd)
	t.addMail(from, utf8)
	if err := t.say(PhaseMail, sent); err != nil {
		return err
	}
	if err := t.readMail(); err != nil || t.mail.Class() != 2 {
		return err
	}
	for i := range t.to {
		if t.to[i].path == "" {
			continue
		}
		sent := len(t.cmd)
		t.addRcpt(i, utf8)
		if err := t.say(PhaseRcpt, sent); err != nil {
			return err
		}
		if err := t.readRcpt(i); err != nil || !t.last.IsZero() {
			return err
		}
	}
	if t.accepted == 0 {
		return nil
	}
	t.dataAsked = true
	sent = len(t.cmd)
	t.cmd = append(t.cmd, "DATA\r\n"...)
	if err := t.say(PhaseData, sent); err != nil {
		return err
	}
	return t.readData()
}

// say writes the commands from a place on, with what others have left in the buffer, and
// waits for the turn to read their answers.
func (t *transaction) say(p Phase, from int) error {
	c := t.c
	c.out.start(c.nc, c.cfg.Timeouts.Block, true)
	t.since = time.Now()
	err := c.out.put(t.cmd[from:])
	if err == nil {
		err = c.flush(p)
	} else {
		err = c.stop(p, err)
	}
	c.awaitReading(t)
	if err != nil {
		c.nc.Close()
	}
	return err
}

func (t *transaction) addReset() {
	if t.reset {
		t.cmd = append(t.cmd, "RSET\r\n"...)
	}
}

func (t *transaction) addMail(from wire, utf8 bool) {
	start := len(t.cmd)
	t.cmd = t.c.appendMail(t.cmd, t.m, from, utf8)
	t.mailLine = span{start, len(t.cmd)}
	t.cmd = append(t.cmd, "\r\n"...)
}

func (t *transaction) addRcpt(i int, utf8 bool) {
	if t.to[i].path == "" {
		return
	}
	start := len(t.cmd)
	t.cmd = t.c.appendRcpt(t.cmd, &t.m.Recipients[i], t.to[i], utf8)
	t.lines[i] = span{start, len(t.cmd)}
	t.cmd = append(t.cmd, "\r\n"...)
}

// reply is the server's next answer, which is this transaction's.
func (t *transaction) reply(p Phase) (Reply, error) {
	t.c.mu.Lock()
	left, lost, cause := t.c.left, t.c.lost, t.c.cause
	t.c.mu.Unlock()
	switch {
	case left:
		err := errLeft
		if t.sent() && !t.c.keepsWord() {
			err = errGoesOn
		}
		return Reply{}, &ConnError{Phase: p, Err: err}
	case lost:
		return Reply{}, &ConnError{Phase: p, Err: cause.Err}
	}
	return t.c.reply(p)
}

func (t *transaction) readReset() error {
	r, err := t.reply(PhaseMail)
	if err != nil {
		return err
	}
	t.reset = false
	switch {
	case r.Code == 421:
		t.mail = r
	case r.Class() != 2:
		return t.c.fail(PhaseMail, fmt.Errorf("%w: RSET answered with %s", ErrNoReply, r))
	default:
		t.c.standing(false)
	}
	return nil
}

func (t *transaction) readMail() (err error) {
	if t.reset {
		if err := t.readReset(); err != nil || !t.mail.IsZero() {
			return err
		}
	}
	if t.mail, err = t.reply(PhaseMail); err != nil {
		return err
	}
	if t.mail.Class() == 3 {
		return t.c.fail(PhaseMail, fmt.Errorf("%w: MAIL answered with %s", ErrNoReply, t.mail))
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if t.alone {
		t.c.pace.trip(time.Since(t.since))
	}
	if t.mail.Code != 421 {
		t.c.served++
	}
	if t.mail.Class() == 2 {
		t.c.needReset = true
	}
	return nil
}

func (t *transaction) readRcpt(i int) (err error) {
	if t.to[i].path == "" {
		return nil
	}
	r, err := t.reply(PhaseRcpt)
	if err != nil {
		return err
	}
	if r.Class() == 3 {
		return t.c.fail(PhaseRcpt, fmt.Errorf("%w: RCPT answered with %s", ErrNoReply, r))
	}
	t.replies[i] = r
	t.note(PhaseRcpt, r)
	if r.Class() == 2 && t.mail.Class() == 2 {
		t.accepted++
	}
	return nil
}

func (t *transaction) readData() (err error) {
	if t.data, err = t.reply(PhaseData); err != nil {
		return err
	}
	t.note(PhaseData, t.data)
	if t.data.Class() == 2 {
		return t.c.fail(PhaseData, fmt.Errorf("%w: DATA answered with %s", ErrNoReply, t.data))
	}
	return nil
}

// note keeps a 421 for those who get no answer any more.
func (t *transaction) note(p Phase, r Reply) {
	if r.Code == 421 {
		t.last, t.lastPhase = r, p
	}
}

// waitingFor is the phase that a failing write belongs to.
func (t *transaction) waitingFor() Phase {
	if t.mail.IsZero() {
		return PhaseMail
	}
	return PhaseRcpt
}
