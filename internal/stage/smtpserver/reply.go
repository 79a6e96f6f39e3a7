package smtpserver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/emersion/go-smtp"
	"golang.org/x/sys/unix"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
)

// lostReply answers content that did not arrive whole. Mostly nobody reads it.
var lostReply = reply(421, "4.4.2", "the connection broke or was silent for too long; nothing was accepted")

// reply is what go-smtp tells the client. Its text is one line, whatever is put in.
func reply(code int, enhanced, text string) *smtp.SMTPError {
	c, ok := status.Parse(enhanced)
	if !ok {
		panic("smtpserver: no enhanced code: " + enhanced)
	}
	return &smtp.SMTPError{
		Code: code, Message: oneLine(text),
		EnhancedCode: smtp.EnhancedCode{int(c.Class), int(c.Subject), int(c.Detail)},
	}
}

// oneLine puts a question mark for every control character.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, text)
}

// refusal is the answer for a message that could not be stored, and logs why. A
// fault of ours is never answered with 5xx (S21): the client keeps the message.
func (s *session) refusal(err error) *smtp.SMTPError {
	if errors.Is(err, errAbandoned) {
		return lostReply // nobody sees it
	}
	if r := (*refusedError)(nil); errors.As(err, &r) {
		code, st, text := r.verdict.Reply()
		s.srv.Log.Info("refused", "from", s.transaction.From, "client", s.client.String(), "status", st.String(), "reply", text, "by", r.verdict.By)
		return reply(code, st.String(), text)
	}
	if errors.Is(err, errTooLarge) {
		s.srv.Log.Info("refused", "from", s.transaction.From, "client", s.client.String(), "status", "5.3.4", "reply", "message too large")
		return reply(552, "5.3.4", fmt.Sprintf("message is larger than %d bytes", s.srv.MaxSize))
	}
	if errors.Is(err, envelope.ErrTooLarge) {
		return reply(452, "4.5.3", "Too many recipients")
	}
	if errors.Is(err, errBareLF) {
		s.srv.Log.Info("refused", "from", s.transaction.From, "client", s.client.String(), "status", "5.6.0", "reply", "bare LF")
		return reply(550, "5.6.0", "a line of the message ends in LF without CR (RFC 5321 section 2.3.8)")
	}
	s.srv.disk.begin(s.srv.Log, "storage-trouble", "reason", err, "client", s.client.String(),
		"advice", "clients are told to try again; df and zmctl check tell more")
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
		if errors.Is(err, full) {
			return reply(452, "4.3.1", "no space for the message now, try again later")
		}
	}
	return reply(451, "4.3.0", "the message cannot be stored now, try again later")
}
