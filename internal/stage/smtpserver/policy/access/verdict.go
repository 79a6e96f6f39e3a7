// Package access decides about clients, senders, recipients and messages, by the rules in
// the file access (docs/access.md).
//
// It owns nothing on disk. The file, and the lists that it names, are read again when
// they change; a version with an error is logged once, and the one before stays in use.
//
// Diagnostics: a rule that cannot be read is a *config.Error that names its line. An
// error of Decide means that a table which a rule names cannot be asked now: the client has
// to be deferred.
package access

import "zmailer/internal/mail/status"

// Action is a decision about a recipient or a message.
type Action uint8

const (
	None Action = iota // no decision
	Accept
	Reject // for good, 5xx
	Defer  // 4xx
	Freeze // the message is accepted and held in freezer/, with all its recipients (M13)
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
	More   string      // further lines of the reply, separated by LF; a filter may give some
	Cause  string      // with Freeze: the word behind the inode in the file's name in freezer/
	By     string      // the rule or part that decided: "access:12", "milter rspamd", "rcpt-check"; for the log
}

// Reply returns the reply of a Reject or a Defer, with defaults for what is zero.
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
		text = map[int]string{4: "Try again later", 5: "Access denied"}[class]
	}
	return code, s, text
}

// RefusedError is a message whose content a rule, a check or a filter refuses.
type RefusedError struct{ Verdict }

func (e *RefusedError) Error() string { return e.By + ": " + e.Text }
