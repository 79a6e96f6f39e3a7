package text

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

func PrintEvent(w io.Writer, e *view.Event, asJSON bool) error {
	var text string
	switch {
	case !asJSON:
		text = term.Clip(eventLine(e, term.For(w), term.Room(w, 0, 100)), term.Width(w))
	case e.Raw != "":
		text = e.Raw
	default:
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		text = string(b)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// eventLine writes an event as text, with at most answer characters of a reply.
func eventLine(e *view.Event, p term.Paint, answer int) string {
	at := e.Time.Local().Format(time.TimeOnly)
	if e.Event == "lost" {
		return p.Faint(at) + "  " + p.State(e.Event, fmt.Sprintf("lost %d events", e.Count))
	}
	state, thread := e.Event, e.Host
	if e.Bad() {
		state = view.Failed
	}
	if e.Channel != "" {
		thread = e.Channel + "/" + e.Host
	}
	words := []string{p.Faint(at), p.Bold(e.ID), p.State(state, e.Event)}
	for _, word := range []string{e.Rcpt, thread, e.Status, human.Cut(e.Reply, answer), e.Who, human.Cut(e.Reason, answer), e.Why} {
		if word != "" {
			words = append(words, human.Clean(word))
		}
	}
	switch {
	case e.Ends != nil:
		words = append(words, endWords(e.Ends))
	case e.Recipients > 0:
		words = append(words, human.Count(int(e.Recipients), "recipient"))
	}
	return strings.Join(words, "  ")
}

// endWords returns the columns that are not zero.
func endWords(o *ledger.Outcomes) string {
	var words []string
	for _, c := range []struct {
		word string
		n    int64
	}{{"delivered", o.Delivered}, {"failed", o.Failed}, {"failed silently", o.Silent}, {"expired", o.Expired}, {"removed", o.Removed},
		{"rerouted", o.Rerouted}, {"gone", o.Gone}, {"unknown", o.Unknown}} {
		if c.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", c.n, c.word))
		}
	}
	return strings.Join(words, ", ")
}
