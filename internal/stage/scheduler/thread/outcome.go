package thread

import (
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/workspec"
)

// Outcome is what one attempt came to for one recipient, as far as the scheduler
// has to write it down.
type Outcome struct {
	Offset  int64
	Address string // "": not checked
	Result  Result
	Notary  workspec.Notary
	Text    string // the reply
	// Of a deferral:
	Attempt   int       // number of this attempt, from 1
	Next      time.Time // of the next one
	HostTries int       // failures of the host in a row, if the whole thread waits
}

// Code is the outcome's status, "X.0.0" of its kind if the agent gave none.
func (o *Outcome) Code() status.Code {
	word, _, _ := strings.Cut(o.Notary.Status, " ")
	if c, ok := status.Parse(word); ok {
		return c
	}
	switch o.Result {
	case Delivered:
		return status.OK
	case Failed:
		return status.Code{Class: 5}
	}
	return status.Code{Class: 4}
}

// LastLine is the last line of a dialogue that is not empty, without the marks of the
// two sides.
func LastLine(text string) string {
	end := len(text)
	for end > 0 {
		start := end
		for start > 0 && text[start-1] != '\n' {
			start--
		}
		line := trimDialogue(text[start:end])
		if line != "" {
			return line
		}
		end = start - 1
	}
	return ""
}

func trimDialogue(line string) string {
	line = strings.TrimLeft(line, " \t")
	for _, mark := range []string{"->> ", "<<- "} {
		line = strings.TrimPrefix(line, mark)
	}
	return strings.TrimRight(line, " \t")
}
