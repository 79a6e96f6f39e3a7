package smtpclient

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
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

	forwards  int // XFORWARD commands without a reply
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
// Afterwards another transaction may follow if the connection is Usable. The error is
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
	t.addForward()
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
	if err := t.forwardInTurn(); err != nil || !t.mail.IsZero() {
		return err
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
	if err := t.readForward(); err != nil || !t.mail.IsZero() {
		return err
	}
	r, err := c.reply(PhaseMail)
	if err != nil {
		return err
	}
	// On a connection that has served others 503 means that the last transaction still
	// is open there: it is no reply to this message.
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

// waitingFor returns the phase that a failing write belongs to.
func (t *transaction) waitingFor() Phase {
	if t.mail.IsZero() {
		return PhaseMail
	}
	return PhaseRcpt
}

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
