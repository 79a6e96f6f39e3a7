package smtpclient

import (
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
	Brief   bool   // nobody reads the dialogue if it is delivered: its Result has no Text
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
	InDoubt           bool   // the final dot was sent, and no answer says for certain what became of the message
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

// orcpt is an ORCPT of type utf-8 as a server can take it that is not told SMTPUTF8:
// \x{HEX} instead of what is not ASCII (RFC 6533 §3 utf-8-addr-xtext).
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

// appendParam appends a parameter of MAIL or RCPT. A value that cannot stand on a
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
