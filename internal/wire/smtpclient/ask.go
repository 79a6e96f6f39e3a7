package smtpclient

import "fmt"

// chunk is how many bytes of commands are sent before their answers are read. It
// must fit into the server's receive buffer while it is busy writing answers, or
// both sides wait for each other for ever (RFC 2920 §3.1).
const chunk = 8 << 10

// askPipelined sends MAIL, every RCPT and DATA in one write and reads the answers in
// order (RFC 2920 §3.1). Very many recipients go in chunks, DATA with the last. Whatever
// the server makes of commands that it should not have got, no content leaves before all
// of their answers.
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
		if err := t.c.write(t.waitingFor(), t.cmd[sent:]); err != nil {
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
// 421: the connection is closed, whether the server does it or not.
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
	if t.c.needReset {
		t.addReset()
		if err := t.c.write(PhaseMail, t.cmd); err != nil {
			return err
		}
		if err := t.readReset(); err != nil || !t.mail.IsZero() {
			return err
		}
	}
	sent := len(t.cmd)
	t.addMail(from, utf8)
	if err := t.c.write(PhaseMail, t.cmd[sent:]); err != nil {
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
		if err := t.c.write(PhaseRcpt, t.cmd[sent:]); err != nil {
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
	if err := t.c.write(PhaseData, t.cmd[sent:]); err != nil {
		return err
	}
	return t.readData()
}

func (t *transaction) addReset() {
	if t.c.needReset {
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

func (t *transaction) readReset() error {
	r, err := t.c.reply(PhaseMail)
	if err != nil {
		return err
	}
	switch {
	case r.Code == 421:
		t.mail = r
	case r.Class() != 2:
		return t.c.fail(PhaseMail, fmt.Errorf("%w: RSET answered with %s", ErrNoReply, r))
	}
	t.c.needReset = false
	return nil
}

func (t *transaction) readMail() (err error) {
	c := t.c
	if c.needReset {
		if err := t.readReset(); err != nil || !t.mail.IsZero() {
			return err
		}
	}
	r, err := c.reply(PhaseMail)
	if err != nil {
		return err
	}
	// On a connection that has served others 503 means that the last transaction still
	// is open there: it says nothing about this message.
	if r.Class() == 3 || r.Code == 503 && c.served > 0 {
		return c.fail(PhaseMail, fmt.Errorf("%w: MAIL answered with %s", ErrNoReply, r))
	}
	t.mail = r
	if r.Code != 421 {
		c.served++
	}
	if r.Class() == 2 {
		c.needReset = true
	}
	return nil
}

func (t *transaction) readRcpt(i int) (err error) {
	if t.to[i].path == "" {
		return nil
	}
	r, err := t.c.reply(PhaseRcpt)
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
	if t.data, err = t.c.reply(PhaseData); err != nil {
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
