package session

import (
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/mail/status"
)

// The replies that the loop gives by itself; the Handler's are its own. Texts that name the
// server begin with its host name.
var (
	replyGreeting     = &Reply{Code: 220, Text: "ESMTP Service ready", named: true}
	replyLMTPGreeting = &Reply{Code: 220, Text: "LMTP Service ready", named: true}
	replyBye          = &Reply{Code: 221, Status: status.OK, Text: "Bye", Last: true}
	replyTLS          = NewReply(220, "2.0.0", "Ready to start TLS")
	replyOK           = NewReply(250, "2.0.0", "Ok")
	replyMailOK       = NewReply(250, "2.1.0", "Ok")
	replyRcptOK       = NewReply(250, "2.1.5", "Ok")
	replyVRFY         = NewReply(252, "2.0.0", "Cannot VRFY user, but will accept message and attempt delivery")
	replyData         = &Reply{Code: 354, Text: "End data with <CR><LF>.<CR><LF>"}

	replyStopping = named(421, "4.3.2", "Service shutting down")
	replyEvicted  = named(421, "4.3.2", "Error: server busy, closing idle connection")
	replyInternal = named(421, "4.3.0", "Error: internal error")
	replyTimeout  = named(421, "4.4.2", "Error: timeout exceeded")
	replyLost     = named(421, "4.4.2", "Error: connection lost or timeout during content")
	replyErrors   = named(421, "4.7.0", "Error: too many errors")

	replyUnknown    = NewReply(500, "5.5.2", "Error: command not recognized")
	replyCharacters = NewReply(501, "5.5.2", "Error: control character in command")
	replyLong       = NewReply(500, "5.5.2", "Error: line too long")
	replyAuthLong   = NewReply(500, "5.5.6", "Error: authentication exchange line is too long") // RFC 4954 section 4
	replyIsLMTP     = NewReply(500, "5.5.1", "Error: this is LMTP, send LHLO")
	replyIsSMTP     = NewReply(500, "5.5.1", "Error: this is SMTP, send EHLO")

	replyHelloSyntax = &Reply{Code: 501, Text: "Syntax: EHLO hostname"} // RFC 2034 section 4: without enhanced code
	replyMailSyntax  = NewReply(501, "5.5.4", "Syntax: MAIL FROM:<address>")
	replyRcptSyntax  = NewReply(501, "5.5.4", "Syntax: RCPT TO:<address>")
	replyVRFYSyntax  = NewReply(501, "5.5.4", "Syntax: VRFY address")
	replyBDATSyntax  = NewReply(501, "5.5.4", "Syntax: BDAT count [LAST]")
	replyTLSData     = &Reply{Code: 501, Status: status.Code{Class: 5, Subject: 5, Detail: 1}, Text: "Error: data after STARTTLS", Last: true}

	replyNotImplemented = NewReply(502, "5.5.1", "Error: command not implemented")
	replyHelloFirst     = NewReply(503, "5.5.1", "Error: send HELO/EHLO first")
	replyNested         = NewReply(503, "5.5.1", "Error: nested MAIL command")
	replyNeedMail       = NewReply(503, "5.5.1", "Error: need MAIL command")
	replyNeedRcpt       = NewReply(503, "5.5.1", "Error: need RCPT command")
	replyInTransaction  = NewReply(503, "5.5.1", "Error: MAIL transaction in progress")
	replyInBDAT         = NewReply(503, "5.5.1", "Error: command not allowed during BDAT")
	replyHasTLS         = NewReply(503, "5.5.1", "Error: TLS already active")
	replyNoRecipients   = NewReply(554, "5.5.1", "Error: no valid recipients")

	replyTooManyRefused = NewReply(452, "4.5.3", "Error: too many recipients refused, send the message to those accepted")
	replyTooLarge       = NewReply(552, "5.3.4", "Message size exceeds fixed limit")
	replyNeedUTF8       = NewReply(553, "5.6.7", "Must declare SMTPUTF8 to send unicode address")
	replyNeedTLS        = NewReply(530, "5.7.10", "REQUIRETLS needs TLS on this connection") // RFC 8689 section 2
	replyXCLIENT        = NewReply(550, "5.7.0", "Error: insufficient authorization")
)

func named(code int, enhanced, text string) *Reply {
	r := NewReply(code, enhanced, text)
	r.named = true
	return r
}

// octetsReceived returns the reply to a chunk that is not the last.
func octetsReceived(n int64) *Reply {
	return NewReply(250, "2.0.0", fmt.Sprintf("Ok: %d octets received", n))
}

// append appends the reply's lines.
func (r *Reply) append(out []byte, host string) []byte {
	out = r.begin(out, r.More == "")
	if r.named {
		out = append(append(out, host...), ' ')
	}
	out = append(append(out, OneLine(r.Text)...), '\r', '\n')
	for text, rest, more := "", r.More, r.More != ""; more; {
		text, rest, more = strings.Cut(rest, "\n")
		out = append(append(r.begin(out, !more), OneLine(text)...), '\r', '\n')
	}
	return out
}

// begin appends what a line of the reply begins with: code, and the status as in all its lines
// (RFC 2034 section 4).
func (r *Reply) begin(out []byte, last bool) []byte {
	out = strconv.AppendInt(out, int64(r.Code), 10)
	if last {
		out = append(out, ' ')
	} else {
		out = append(out, '-')
	}
	if !r.Status.IsZero() {
		out = strconv.AppendUint(out, uint64(r.Status.Class), 10)
		out = strconv.AppendUint(append(out, '.'), uint64(r.Status.Subject), 10)
		out = strconv.AppendUint(append(out, '.'), uint64(r.Status.Detail), 10)
		out = append(out, ' ')
	}
	return out
}
