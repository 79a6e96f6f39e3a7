package smtpclient

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
)

// Message is one transaction's: a sender, recipients and the bytes to send, with
// LF line ends.
type Message struct {
	From       string // address without brackets; "" is the null sender
	Ret        string // FULL or HDRS, "" if not said (RFC 3461 §4.3)
	EnvID      string // xtext, "" if not said (RFC 3461 §4.4)
	UTF8       bool   // the header needs SMTPUTF8; the server must offer it (RFC 6531 §3.5)
	Size       int64  // stored bytes of header and body, 0 if not known
	Header     []byte // whole lines
	Body       io.Reader
	Recipients []Recipient
	RequireTLS bool // it goes on under TLS alone (RFC 8689 §4.2); said to servers that offer it
	// Forward is where the message comes from, said to servers that offer XFORWARD; nil: it is not
	// said.
	Forward *Forward
	// Sent, if set, is called once by Send, right before the final dot is written, with the
	// indices of the recipients that the server accepted: from then on they may have
	// the message. If it errs the connection is closed without the dot and nothing
	// is delivered.
	Sent func(accepted []int) error
}

// Recipient is one RCPT.
type Recipient struct {
	Address string // without brackets
	Notify  string // NOTIFY's value, "" if not said (RFC 3461 §4.1)
	ORcpt   string // ORCPT's value, "" if not said (RFC 3461 §4.2)
	Brief   bool   // the dialogue is not needed if it is delivered: its Result has no Text
}

// Result is what became of one recipient.
type Result struct {
	Outcome status.Outcome
	Code    status.Code
	Phase   Phase // that decided it
	Reply   Reply // that decided it; zero if none did
	// Accepted: RCPT was answered positively. Another: Reply was 421 to another recipient,
	// and nothing was said against this one.
	Accepted, Another bool
	Err               error  // *ConnError if the connection broke, else a fault of ours
	InDoubt           bool   // the final dot was sent and no reply is certain
	Text              string // the dialogue, lines parted by \n, the first one empty
}

// wire is an address as it is sent.
type wire struct {
	path string
	utf8 bool // needs SMTPUTF8
}

// wireAddress prepares an address for a server that knows SMTPUTF8 or does not. The
// code is that of a failure, zero if there is none.
func wireAddress(s string, smtputf8 bool) (wire, status.Code, error) {
	m, err := address.Parse(s)
	if err != nil {
		return wire{}, status.BadAddress, err
	}
	if m.IsASCII() {
		return wire{path: m.String()}, status.Code{}, nil
	}
	if smtputf8 {
		return wire{path: m.String(), utf8: true}, status.Code{}, nil
	}
	// RFC 6531 §3.2: only the domain has another spelling in ASCII.
	if d, err := m.ASCIIDomain(); err == nil {
		m.Domain = d
		if m.IsASCII() {
			return wire{path: m.String()}, status.Code{}, nil
		}
	}
	return wire{}, status.Code{Class: 5, Subject: 6, Detail: 7}, errNeedsUTF8
}

// appendMail appends the MAIL command without its line end. The order of the
// parameters is ZMailer's.
func (c *Conn) appendMail(b []byte, m *Message, from wire, utf8 bool) []byte {
	b = append(b, "MAIL From:<"...)
	b = append(b, from.path...)
	b = append(b, '>')
	if c.ext.EightBitMIME {
		b = append(b, " BODY=8BITMIME"...)
	}
	if c.ext.Size && m.Size > 0 {
		b = append(b, " SIZE="...)
		b = strconv.AppendInt(b, sentSize(m.Size), 10)
	}
	if c.ext.DSN {
		b = appendParam(b, " ENVID=", m.EnvID, false)
		b = appendParam(b, " RET=", m.Ret, false)
	}
	if utf8 {
		b = append(b, " SMTPUTF8"...)
	}
	if m.RequireTLS && c.ext.RequireTLS {
		b = append(b, " REQUIRETLS"...)
	}
	return b
}

// appendRcpt appends a RCPT command without its line end.
func (c *Conn) appendRcpt(b []byte, r *Recipient, to wire, smtputf8 bool) []byte {
	b = append(b, "RCPT To:<"...)
	b = append(b, to.path...)
	b = append(b, '>')
	if c.ext.DSN {
		b = appendParam(b, " NOTIFY=", r.Notify, false)
		b = appendParam(b, " ORCPT=", orcpt(r.ORcpt, smtputf8), smtputf8)
	}
	return b
}

// orcpt returns an ORCPT of type utf-8 for a transaction without SMTPUTF8:
// \x{HEX} instead of non-ASCII characters (RFC 6533 section 3 utf-8-addr-xtext).
func orcpt(value string, smtputf8 bool) string {
	kind, addr, ok := strings.Cut(value, ";")
	if smtputf8 || !ok || !strings.EqualFold(kind, "utf-8") || !utf8.ValidString(addr) {
		return value
	}
	b := append([]byte(kind), ';')
	for _, r := range addr {
		if r < utf8.RuneSelf {
			b = append(b, byte(r))
			continue
		}
		b = fmt.Appendf(b, `\x{%X}`, r)
	}
	return string(b)
}

// sentSize estimates what stored bytes come to on the line: one byte more per line
// of some thirty, as ZMailer does it. RFC 1870 §5 wants no more than an estimate,
// and counting would cost a reading of the whole message.
func sentSize(stored int64) int64 { return (stored + 1) * 103 / 100 }

// appendParam appends a parameter of MAIL or RCPT. A value that cannot be written on a
// command line is left out: it can only have come from a file that was tampered with.
func appendParam(b []byte, name, value string, utf8 bool) []byte {
	if value == "" || strings.IndexFunc(value, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r > 0x7f && !utf8
	}) >= 0 {
		return b
	}
	b = append(b, name...)
	return append(b, value...)
}

// decideAll gives every recipient that was asked for its result.
func (t *transaction) decideAll() {
	final, accepted := 0, 0
	for i := range t.results {
		if t.to[i].path == "" {
			continue // settled by prepare
		}
		var answer Reply
		if t.mail.Class() == 2 && t.replies[i].Class() == 2 {
			if final < len(t.finals) {
				answer = t.finals[final]
			}
			if t.c.cfg.LMTP {
				final++
			}
		}
		r := t.decide(i, answer)
		r.Accepted = t.replies[i].Class() == 2
		if t.drew.Code != 0 && r.Accepted {
			if r.InDoubt && accepted == len(t.finals) {
				r.Reply = t.drew
			}
			accepted++
		}
		if r.Outcome != status.Delivered || !t.m.Recipients[i].Brief {
			r.Text = t.text(i, answer, r.Err)
		}
		t.results[i] = r
	}
}

// decide finds the reply that a recipient's outcome follows from: the first that
// refused it, else the one to the final dot. Without one it is temporary, and in doubt if
// the dot has left.
func (t *transaction) decide(i int, answer Reply) Result {
	switch {
	case !answer.IsZero():
		return byReply(PhaseDot, answer)
	case t.astray:
		// No reply to the commands before is certain.
	case t.mail.Class() >= 4:
		return byReply(PhaseMail, t.mail)
	case t.replies[i].Class() >= 4:
		return byReply(PhaseRcpt, t.recipientReply(i))
	case t.data.Class() >= 4:
		return byReply(PhaseData, t.data)
	case !t.last.IsZero():
		r := byReply(t.lastPhase, t.last) // the message was not looked at
		r.Another = t.lastPhase == PhaseRcpt
		return r
	}
	r := Result{Code: status.SystemTrouble, Phase: PhaseBody, Err: t.err, InDoubt: t.sent}
	var broke *ConnError
	if errors.As(t.err, &broke) {
		r.Code, r.Phase = status.BadConnection, broke.Phase
	}
	return r
}

// recipientReply returns the reply to a RCPT. RFC 5321 §4.5.3.1.10: 552 from a server
// that has taken enough recipients means 452.
func (t *transaction) recipientReply(i int) Reply {
	r := t.replies[i]
	code := r.Status()
	tooMany := code.Subject == 5 && code.Detail == 3 || code.Subject == 0
	if r.Code == 552 && t.accepted > 0 && tooMany {
		r.Code = 452
	}
	return r
}

// TooMany reports whether a recipient was deferred only because the transaction had
// enough of them (RFC 5321 section 4.5.3.1.10): the next transaction may take it at once.
func (r *Result) TooMany() bool {
	return r.Phase == PhaseRcpt && r.Reply.Code == 452 &&
		(r.Code.Subject == 5 && r.Code.Detail == 3 || r.Code.Subject == 0)
}

// byReply returns the result of a reply: its class decides.
func byReply(p Phase, r Reply) Result {
	res := Result{Phase: p, Reply: r, Code: r.Status()}
	switch r.Class() {
	case 2:
		res.Outcome = status.Delivered
	case 5:
		res.Outcome = status.Failed
	}
	return res
}

// text returns the dialogue as it concerns one recipient.
func (t *transaction) text(i int, answer Reply, err error) string {
	var d dialogue
	rcpt := t.lines[i]
	d.Grow(t.mailLine.to - t.mailLine.from + rcpt.to - rcpt.from + len(t.mail.Text) + len(t.replies[i].Text) +
		len(t.data.Text) + len(answer.Text) + 80)
	if t.mailLine.to > 0 {
		d.said(string(t.cmd[t.mailLine.from:t.mailLine.to]))
		d.answered(t.mail)
	}
	if t.mail.Class() < 4 && rcpt.to > rcpt.from {
		d.said(string(t.cmd[rcpt.from:rcpt.to]))
		d.answered(t.replies[i])
	}
	if t.replies[i].Class() == 2 && t.dataAsked {
		d.said("DATA")
		d.answered(t.data)
		if t.sent {
			d.said(".")
			d.answered(answer)
		}
	}
	if t.replies[i].Class() < 4 && t.lastPhase != PhaseData && answer.IsZero() {
		d.answered(t.last)
	}
	if err != nil {
		d.broke(err)
	}
	return d.String()
}

// Marks of the two sides in a dialogue, as ZMailer's agents write them.
const (
	weSaid   = "\n<<- "
	theySaid = "\n->> "
)

// dialogue is the commands and replies, for the text of a diagnostic: lines separated by \n,
// the first of them empty.
type dialogue struct{ strings.Builder }

// said adds a command without its line end.
func (d *dialogue) said(command string) {
	d.WriteString(weSaid)
	d.WriteString(command)
}

// answered adds a reply, each of its lines as the server sent it.
func (d *dialogue) answered(r Reply) {
	if r.IsZero() {
		return
	}
	code := strconv.Itoa(r.Code)
	for rest := r.Text; ; {
		line, more, found := strings.Cut(rest, "\n")
		d.WriteString(theySaid)
		d.WriteString(code)
		if found {
			d.WriteByte('-')
		} else if line != "" {
			d.WriteByte(' ')
		}
		d.WriteString(line)
		if !found {
			return
		}
		rest = more
	}
}

// remark adds a line that neither side sent.
func (d *dialogue) remark(text string) {
	d.WriteString("\n(")
	d.WriteString(text)
	d.WriteByte(')')
}

// broke adds the end of a connection.
func (d *dialogue) broke(err error) { d.remark(err.Error()) }
