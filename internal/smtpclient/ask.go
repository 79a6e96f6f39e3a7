package smtpclient

import "fmt"

// chunk is how many bytes of commands are sent before their answers are read. It
// must fit into the server's receive buffer while it is busy writing answers, or
// both sides wait for each other for ever (RFC 2920 §3.1).
const chunk = 8 << 10

// askPipelined sends MAIL, every RCPT and DATA in one write and reads the answers in
// order (RFC 2920 §3.1). Very many recipients go in chunks, DATA with the last.
func (t *transaction) askPipelined(from wire, utf8 bool) error {
	c := t.c
	reset := c.needReset
	if reset {
		c.cmd = append(c.cmd, "RSET\r\n"...)
	}
	t.addMail(from, utf8)
	sent, answered, next := 0, 0, 0 // bytes of c.cmd written; recipients
	for {
		for ; next < len(t.to) && len(c.cmd)-sent < chunk; next++ {
			t.addRcpt(next, utf8)
		}
		if next == len(t.to) {
			c.cmd = append(c.cmd, "DATA\r\n"...)
			t.dataAsked = true
		}
		if err := c.write(t.waitingFor(), c.cmd[sent:]); err != nil {
			return err
		}
		sent = len(c.cmd)
		if err := t.readAnswers(reset, answered, next); err != nil {
			return err
		}
		reset, answered = false, next
		if t.dataAsked || c.broken || t.mail.Class() != 2 {
			return nil
		}
	}
}

// readAnswers reads the answers to one write: to RSET and MAIL if they are due, to
// recipients from up to but without end, and to DATA if it was asked. It stops at
// 421, after which nothing comes.
func (t *transaction) readAnswers(reset bool, from, end int) error {
	if reset {
		if err := t.readReset(); err != nil {
			return err
		}
	}
	if t.mail.IsZero() {
		if err := t.readMail(); err != nil {
			return err
		}
	}
	for i := from; i < end && !t.c.broken; i++ {
		if err := t.readRcpt(i); err != nil {
			return err
		}
	}
	if t.dataAsked && !t.c.broken {
		return t.readData()
	}
	return nil
}

// askInTurn sends one command after the other to a server without PIPELINING, and
// nothing that cannot succeed any more.
func (t *transaction) askInTurn(from wire, utf8 bool) error {
	c := t.c
	if c.needReset {
		if err := c.write(PhaseMail, []byte("RSET\r\n")); err != nil {
			return err
		}
		if err := t.readReset(); err != nil || c.broken {
			return err
		}
	}
	t.addMail(from, utf8)
	if err := c.write(PhaseMail, c.cmd); err != nil {
		return err
	}
	if err := t.readMail(); err != nil || t.mail.Class() != 2 {
		return err
	}
	for i := range t.to {
		if t.to[i].path == "" {
			continue
		}
		sent := len(c.cmd)
		t.addRcpt(i, utf8)
		if err := c.write(PhaseRcpt, c.cmd[sent:]); err != nil {
			return err
		}
		if err := t.readRcpt(i); err != nil || c.broken {
			return err
		}
	}
	if t.accepted == 0 {
		return nil
	}
	t.dataAsked = true
	if err := c.write(PhaseData, []byte("DATA\r\n")); err != nil {
		return err
	}
	return t.readData()
}

func (t *transaction) addMail(from wire, utf8 bool) {
	c := t.c
	start := len(c.cmd)
	c.cmd = c.appendMail(c.cmd, t.m, from, utf8)
	t.mailLine = span{start, len(c.cmd)}
	c.cmd = append(c.cmd, "\r\n"...)
}

func (t *transaction) addRcpt(i int, utf8 bool) {
	if t.to[i].path == "" {
		return
	}
	c := t.c
	start := len(c.cmd)
	c.cmd = c.appendRcpt(c.cmd, &t.m.Recipients[i], t.to[i], utf8)
	t.lines[i] = span{start, len(c.cmd)}
	c.cmd = append(c.cmd, "\r\n"...)
}

func (t *transaction) readReset() error {
	r, err := t.c.reply(PhaseMail)
	if err != nil {
		return err
	}
	t.c.needReset = false
	if r.Class() != 2 && r.Code != 421 {
		return t.c.fail(PhaseMail, fmt.Errorf("%w: RSET answered with %s", ErrNoReply, r))
	}
	if r.Code == 421 {
		t.mail = r
	}
	return nil
}

func (t *transaction) readMail() (err error) {
	if t.mail, err = t.c.reply(PhaseMail); err != nil {
		return err
	}
	switch t.mail.Class() {
	case 2:
		t.c.served++
		t.c.needReset = true
	case 3:
		return t.c.fail(PhaseMail, fmt.Errorf("%w: MAIL answered with %s", ErrNoReply, t.mail))
	default:
		if t.mail.Code != 421 {
			t.c.served++
		}
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
