package report

import (
	"strings"

	"zmailer/internal/mail/status"
	"zmailer/internal/workspec"
)

// attrRemote of a deferral: the host that has answered, as "dns;mx.example.org". Without
// it no remote host has.
const attrRemote = "remote"

// RemoteAttr is what a deferral keeps of the host that has answered: its name or address,
// and not the ports of the connection, which are others each time.
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
