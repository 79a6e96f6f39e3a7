// Package access decides what becomes of clients, senders, recipients and messages.
//
// It owns nothing on disk.
//
// Diagnostics: a rule that cannot be read is a *config.Error that names its line.
package access

import "zmailer/internal/status"

// Action is what is to become of a connection, a recipient or a message.
type Action uint8

const (
	None   Action = iota // nothing was decided
	Accept               // it is taken
	Reject               // it is refused for good, 5xx
	Defer                // it is put off, 4xx
	Freeze               // the message is taken and held in freezer/, whatever its recipients (M13)
)

// Verdict is a decision: of a rule, of a check or of a milter.
type Verdict struct {
	Action Action
	Code   int         // of the reply, 550; 0: that of the action
	Status status.Code // RFC 3463; zero: that of the action
	Text   string      // of the reply, one line
	Cause  string      // with Freeze: what stands behind the inode in freezer/, one word
	By     string      // who decided: "access:12", "milter rspamd", "rcpt-check"; for the log
}
