// Package report writes delivery status notifications from values: which recipients a
// sender asked to hear of, what the reports say, and which part of the message they return.
//
// It owns the choice of words, language and returned part; internal/mail/dsn writes the
// MIME message. When a report is due, and that it is sent once, the store decides.
//
// What survives a crash: nothing; it writes into a file that the caller has made.
//
// Diagnostics: Write's errors are the writer's, or those of reading the message. A template
// that fails is passed to Report.Trouble and the built-in one is used.
package report

import (
	"cmp"
	"io"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/workspec"
)

// Report is a report on recipients of one message, to one address and of one kind.
type Report struct {
	Kind       string
	Head       dsn.Report // ReportingMTA, From, To, MessageID, Date, Arrival, SpoolID
	Recipients []dsn.Recipient
	Header     []byte // of the message, as it is delivered
	EnvID, Ret string // as the sender gave them
	Returned   bool   // an earlier report has returned the message
	Conf       *conf.Reports
	Open       func() (*Message, error) // opens the message; nil and no error: it is gone
	Trouble    func(language, kind string, err error)
}

// Write writes the report as a message.
func (r *Report) Write(w io.Writer) error {
	rep := r.Head
	r.describe(&rep)
	for _, p := range r.Recipients {
		rep.UTF8 = rep.UTF8 || strings.ContainsFunc(p.Final, func(c rune) bool { return c >= utf8.RuneSelf })
		p.LogID = rep.SpoolID
		rep.Recipients = append(rep.Recipients, p)
	}
	done, err := r.original(&rep)
	if err != nil {
		return err
	}
	defer done()
	return dsn.Write(w, &rep)
}

// describe sets what the report says of the message as a whole.
func (r *Report) describe(rep *dsn.Report) {
	if id, err := address.DecodeXText(r.EnvID); err == nil {
		rep.EnvID = id
	}
	var accept, content string
	received := false
	for _, field := range envelope.Fields(r.Header) {
		switch strings.ToLower(field.Name) {
		case "received":
			if !received { // the first one is the router's
				rep.ReceivedFrom = receivedFrom(field.Value())
			}
			received = true
		case "message-id":
			rep.InReplyTo = field.Value()
		case "accept-language":
			accept = field.Value()
		case "content-language":
			content = field.Value()
		}
	}
	if texts := r.Conf.Texts; texts != nil {
		rep.Texts, rep.Language, rep.Trouble = texts, texts.Choose(accept, content), r.Trouble
	}
}

// Final returns a recipient that has failed or was delivered, by its diagnostic.
func Final(r *workspec.Recipient, d *workspec.Diagnostic) dsn.Recipient {
	n := &d.Notary
	p := dsn.Recipient{Final: r.Address, Original: Requested(r.Notary, address.DecodeXText).Original,
		Action: dsn.Action(strings.ToLower(n.Action)), Remote: n.Remote, Diagnostic: n.Diagnostic, Status: n.Status, LastAttempt: d.Time, Text: d.Text}
	if KindOf(d) == Failed {
		p.Action = dsn.Failed
	}
	return p
}

// Delay returns a recipient that waits: last is its last deferral, nil if there was none,
// said the answer that its host gave to others.
func Delay(r *workspec.Recipient, last *workspec.Event, said string) dsn.Recipient {
	p := dsn.Recipient{Final: r.Address, Original: Requested(r.Notary, address.DecodeXText).Original,
		Action: dsn.Delayed, Text: cmp.Or(said, "It has not been tried yet.")}
	n := workspec.Notary{Status: status.Code{Class: 4}.String()}
	if last != nil {
		n.Status = cmp.Or(last.Get("status"), n.Status)
		p.Text, p.LastAttempt = last.Text, last.Time
	}
	LastAnswer(&n, last, p.Text)
	p.Status, p.Remote, p.Diagnostic = n.Status, n.Remote, n.Diagnostic
	return p
}

// receivedFrom returns the host that a Received field names, with its comment (RFC 3464
// §2.2.4).
func receivedFrom(value string) string {
	rest, ok := strings.CutPrefix(value, "from ")
	if !ok {
		return ""
	}
	host, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
	host, _, _ = strings.Cut(host, "\t")
	rest = strings.TrimLeft(rest, " \t")
	if !strings.HasPrefix(rest, "(") {
		return host
	}
	depth := 0
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			return host + " " + rest[:i+1]
		}
	}
	return host
}

// attrRemote of a deferral: the host that has answered, as "dns;mx.example.org". Without
// it no remote host has.
const attrRemote = "remote"

// RemoteAttr returns what a deferral keeps of the host that has answered: its name or
// address, and not the ports of the connection, which are others each time.
func RemoteAttr(n *workspec.Notary) []workspec.Attr {
	remote, _, _ := strings.Cut(n.Remote, " (")
	kind, name, ok := strings.Cut(remote, ";")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return nil
	}
	return []workspec.Attr{{Key: attrRemote, Value: strings.TrimSpace(kind) + ";" + name}}
}

// LastAnswer puts the result of the last attempt into the status part of a failure or delay:
// the reply of a remote host with its status (RFC 3464 sections 2.3.4 to 2.3.6), or our own
// text. last is the last deferral, nil if there was none.
func LastAnswer(n *workspec.Notary, last *workspec.Event, text string) {
	n.Diagnostic = "x-local; " + text
	if !IsReply(text) {
		return
	}
	n.Diagnostic = "smtp; " + text
	code := ""
	if last != nil {
		n.Remote, code = last.Get(attrRemote), last.Get("status")
	}
	c, ok := status.Parse(code)
	if !ok || c.Subject == 0 && c.Detail == 0 { // the agent has said no more than its kind
		c = status.OfReply(int(text[0]-'0')*100, text[4:])
	}
	n.Status = c.String()
}

// IsReply reports whether a text is an SMTP reply: RFC 5321 section 4.2.
func IsReply(text string) bool {
	return len(text) > 4 && text[0] >= '2' && text[0] <= '5' && text[1] >= '0' && text[1] <= '9' && text[2] >= '0' && text[2] <= '9' &&
		(text[3] == ' ' || text[3] == '-')
}
