// Package access decides what becomes of clients, senders, recipients and messages, by
// the postmaster's rules in the file access (docs/access.md).
//
// It owns nothing on disk. The file, and the lists that it names, are read again when
// they change; one that turned bad is refused, once, and what was read before stays.
//
// Diagnostics: a rule that cannot be read is a *config.Error that names its line. An
// error of Decide means that a table which a rule names cannot tell now: nothing is
// known, and the client is to be told to try again.
package access

import "zmailer/internal/mail/status"

// Action is what is to become of a connection, a recipient or a message.
type Action uint8

const (
	None   Action = iota // nothing was decided
	Accept               // it is taken
	Reject               // it is refused for good, 5xx
	Defer                // it is put off, 4xx
	Freeze               // the message is taken and held in freezer/, whatever its recipients (M13)
)

func (a Action) String() string {
	switch a {
	case Accept:
		return "accept"
	case Reject:
		return "reject"
	case Defer:
		return "defer"
	case Freeze:
		return "freeze"
	}
	return "none"
}

// Verdict is a decision: of a rule, of a check or of a milter.
type Verdict struct {
	Action Action
	Code   int         // of the reply, 550; 0: that of the action
	Status status.Code // RFC 3463; zero: that of the action
	Text   string      // of the reply, one line
	Cause  string      // with Freeze: what stands behind the inode in freezer/, one word
	By     string      // who decided: "access:12", "milter rspamd", "rcpt-check"; for the log
}

// Reply is what the client is told of a Reject or a Defer, whatever was left open.
func (v Verdict) Reply() (code int, s status.Code, text string) {
	code, s, text = v.Code, v.Status, v.Text
	class := 5
	if v.Action == Defer {
		class = 4
	}
	if code/100 != class {
		code = map[int]int{4: 450, 5: 550}[class]
	}
	if int(s.Class) != class {
		s = status.Code{Class: uint16(class), Subject: 7, Detail: 1}
	}
	if text == "" {
		text = map[int]string{4: "not now, try again later", 5: "refused by the rules of this host"}[class]
	}
	return code, s, text
}

// RefusedError is a message whose content a rule, a check or a filter refuses.
type RefusedError struct{ Verdict }

func (e *RefusedError) Error() string { return e.By + ": " + e.Text }
