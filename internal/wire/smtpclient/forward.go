package smtpclient

import (
	"bytes"
	"strings"

	"zmailer/internal/mail/address"
)

// Forward is where a message comes from, for a server that offers Postfix's XFORWARD. What is not
// known is "".
type Forward struct {
	Name, Addr, Port string // of the client; Addr as IPV6:2001:db8::1 or 192.0.2.1
	Helo, Proto      string
	Ident            string // our ID of the message
	Source           string // LOCAL or REMOTE
}

const (
	// maxForward is how long a command may be (RFC 5321 section 4.5.3.1.4). Bytes, without its end.
	maxForward = 510
	// maxForwardValue is how long a value may be. Bytes.
	maxForwardValue = 255
	// unavailable stands for what is not known.
	unavailable = "[UNAVAILABLE]"
)

// appendForward appends XFORWARD commands with each attribute that the server offers: those of the
// message before would remain where one were missing. It returns how many commands these are.
func appendForward(b []byte, offered string, f *Forward) (_ []byte, commands int) {
	length := maxForward
	for _, a := range [...]struct{ name, value string }{
		{"NAME", f.Name}, {"ADDR", f.Addr}, {"PORT", f.Port}, {"PROTO", f.Proto}, {"HELO", f.Helo}, {"IDENT", f.Ident}, {"SOURCE", f.Source},
	} {
		if !hasWord(offered, a.name) {
			continue
		}
		word := " " + a.name + "=" + address.EncodeXText(a.value)
		if a.value == "" || len(a.value) > maxForwardValue || len("XFORWARD")+len(word) > maxForward {
			word = " " + a.name + "=" + unavailable
		}
		if length+len(word) > maxForward {
			if commands++; commands > 1 {
				b = append(b, "\r\n"...)
			}
			b = append(b, "XFORWARD"...)
			length = len("XFORWARD")
		}
		b = append(b, word...)
		length += len(word)
	}
	if commands > 0 {
		b = append(b, "\r\n"...)
	}
	return b, commands
}

// hasWord reports whether a list of words, parted by blanks, has one in any case.
func hasWord(list, word string) bool {
	for w := range strings.FieldsSeq(list) {
		if strings.EqualFold(w, word) {
			return true
		}
	}
	return false
}

// addForward adds the XFORWARD commands of the message, if there are any.
func (t *transaction) addForward() {
	if t.m.Forward != nil && t.c.ext.XForward != "" {
		t.cmd, t.forwards = appendForward(t.cmd, t.c.ext.XForward, t.m.Forward)
	}
}

// forwardInTurn sends the XFORWARD commands of the message one after the other.
func (t *transaction) forwardInTurn() error {
	start := len(t.cmd)
	t.addForward()
	lines := t.cmd[start:]
	for all := t.forwards; all > 0 && t.mail.IsZero(); all-- {
		end := bytes.IndexByte(lines, '\n') + 1
		if err := t.c.write(PhaseMail, lines[:end]); err != nil {
			return err
		}
		lines, t.forwards = lines[end:], 1
		if err := t.readForward(); err != nil {
			return err
		}
	}
	return nil
}

// readForward reads the replies to XFORWARD. A server that refuses it gets the message
// nevertheless, as from Postfix; 421 counts as the reply to MAIL.
func (t *transaction) readForward() error {
	for ; t.forwards > 0; t.forwards-- {
		r, err := t.c.reply(PhaseMail)
		if err != nil {
			return err
		}
		if r.Code == 421 {
			t.mail = r
			return nil
		}
	}
	return nil
}
