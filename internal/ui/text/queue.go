// Package text prints the values of the admin packages: as tables and sentences for people,
// with colours on a terminal, and as JSON for programs. It reads nothing but its arguments
// and keeps nothing.
//
// Diagnostics: errors are those of the writer; Quiet drops that of a closed pipe.
package text

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// QueueView shows messages one way.
type QueueView interface {
	// Add takes a message with its selected recipients.
	Add(m *view.Message) error
	// End prints the rest.
	End(sorted bool) error
}

// Quiet drops the error of a closed pipe: the reader has seen enough.
func Quiet(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// Lines are the messages in JSON, one a line.
type Lines struct{ Encoder *json.Encoder }

// JSONLines writes each value as a line.
func JSONLines(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // addresses are written in < >
	return e
}

func (l *Lines) Add(m *view.Message) error { return l.Encoder.Encode(m) }

func (l *Lines) End(bool) error { return nil }

// Listing is the view for reading.
type Listing struct {
	W   io.Writer
	Now time.Time
	n   int
}

func (l *Listing) Add(m *view.Message) error {
	l.n++
	return PrintMessage(l.W, m, l.Now)
}

func (l *Listing) End(sorted bool) error {
	text := human.Count(l.n, "message")
	if !sorted {
		text += ", in no order"
	}
	_, err := fmt.Fprintln(l.W, text)
	return err
}

// PrintMessage writes a message's lines for the queue listing.
func PrintMessage(w io.Writer, m *view.Message, now time.Time) error {
	id := m.ID
	if id == "" {
		id = m.Name + " (its message file is gone)"
	}
	state := m.State
	if m.Why != "" {
		state += ": " + m.Why
	}
	if m.Owner != nil {
		state += " by " + m.Owner.String()
	}
	p := term.For(w)
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s  %s  %s\n", p.Bold(id), human.Span(now.Sub(m.Since)), human.Size(m.Size), m.From(), painted(p, m, state))
	if m.Problem != "" {
		fmt.Fprintf(&b, "    %s\n", p.Red("PROBLEM: "+human.Clean(m.Problem)))
	}
	if m.Reason != "" && m.Reason != view.OneLine(human.Clean(m.Problem)) {
		fmt.Fprintf(&b, "    why: %s\n", human.Cut(m.Reason, 500))
	}
	for i := range m.Recipients {
		r := &m.Recipients[i]
		b.WriteString("    " + r.ThreadName() + r.Address + "  " + p.State(r.State, r.Words(now)))
		if r.Last != "" {
			b.WriteString(":\n        " + human.Cut(r.Last, term.Room(w, 8, longAnswer)))
		}
		b.WriteByte('\n')
	}
	if m.Hidden > 0 {
		b.WriteString("    and " + human.Count(m.Hidden, "recipient") + " that " + map[bool]string{true: "does", false: "do"}[m.Hidden == 1] + " not match\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// longAnswer is how much of an answer is shown where there is no terminal.
const longAnswer = 300

// painted colours the state of a message by the one who must act.
func painted(p term.Paint, m *view.Message, state string) string {
	switch m.State {
	case view.StateDeferred, view.StateFrozen, view.StateSetAside:
		return p.Red(state) // for an operator
	case view.StateCopy, view.StateRemoved:
		return p.Faint(state)
	}
	return state
}
