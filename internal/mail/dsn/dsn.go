// Package dsn writes delivery status notifications: multipart/report messages of
// RFC 6522, 3464 and 6533, from plain values. It owns no state and no file: the
// caller writes the report under a name that it has recorded (docs/spool.md), so
// that a crash neither loses nor repeats it.
//
//	err := dsn.Write(w, &dsn.Report{ReportingMTA: "mx.example.org", From: "MAILER-DAEMON@mx.example.org", To: sender,
//		Recipients: []dsn.Recipient{{Final: "a@b.example", Action: dsn.Failed, Status: "5.1.1"}}})
//
// Nothing that a remote host sent can leave its field: control characters become blanks,
// and long text is folded and cut.
//
// The human part is made from Texts, templates that a postmaster may replace. For a template
// that fails the built-in one is used, so that no report is lost.
//
// Diagnostics: Write's errors are those of the writer and of Original, or say which
// value of the Report makes no report. A text that cannot be used is a *TextError
// with its line.
package dsn

import (
	"io"
	"slices"
	"time"
)

// Action is RFC 3464 §2.3.3's.
type Action string

const (
	Failed    Action = "failed"
	Delayed   Action = "delayed"
	Delivered Action = "delivered"
	Relayed   Action = "relayed"
	Expanded  Action = "expanded"
)

// actions returns the actions in the order of a report: the worst first.
func actions() []Action { return []Action{Failed, Delayed, Relayed, Expanded, Delivered} }

// Report is one report to one sender.
type Report struct {
	ReportingMTA string // host name
	From         string // address of the sender of reports, for the From header
	To           string // envelope sender of the message reported on
	MessageID    string // with its brackets
	Date         time.Time
	Boundary     string    // must not occur in Original; "": a random one
	EnvID        string    // Original-Envelope-Id, decoded; "" if none
	InReplyTo    string    // Message-ID of the message reported on, with its brackets; "" if none
	ReceivedFrom string    // host that the message came from, "host (comment)"; "" if none
	Arrival      time.Time // of the message reported on; zero: unknown
	SpoolID      string    // of the message reported on
	Recipients   []Recipient
	UTF8         bool // addresses or headers are not ASCII: RFC 6533's types
	// Full: Original is a whole message (message/rfc822), else its header block
	// (text/rfc822-headers). LF line ends. nil: nothing is returned.
	Full     bool
	Original io.Reader
	// Legacy: its header has bytes that are no UTF-8, so that RFC 6533's types do not
	// fit it.
	Legacy bool
	// Encoding of Original: 7bit, 8bit, or quoted-printable for a header block that
	// has lines too long to be copied unchanged. "": 8bit unless it is seen to be ASCII.
	Encoding string
	// Texts and Language are what the human part is written with; nil and "": the
	// built-in English.
	Texts    *Texts
	Language string
	// Trouble gets the error of a text for which a built-in one was used. May be nil.
	Trouble func(language, kind string, err error)
}

// Recipient is one recipient's part.
type Recipient struct {
	Original       string // ORCPT, "rfc822;user@example.org", decoded; "" if none
	Final          string // address
	Action         Action
	Status         string // "5.1.1"
	Remote         string // Remote-MTA with its type, "dns; mx.example.org"; "" if none
	Diagnostic     string // Diagnostic-Code with its type, "smtp; 550 5.1.1 ..."; "" if none
	LastAttempt    time.Time
	WillRetryUntil time.Time // for delayed
	LogID          string    // Final-Log-ID; "" if none
	Text           string    // reply or dialogue, for the human part
}

// worst returns the action for the report's subject.
func (r *Report) worst() Action {
	for _, a := range actions() {
		if r.has(a) {
			return a
		}
	}
	return Failed
}

func (r *Report) has(a Action) bool {
	return slices.ContainsFunc(r.Recipients, func(p Recipient) bool { return p.Action == a })
}
