package route

import (
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// Bounds of what the history of a message says of the policy; the log has all of it.
const (
	maxDecided = 100 // decisions that differ
	maxNamed   = 5   // recipients of one
)

// decided is a decision of the policy, with the recipients that it was the same for.
type decided struct {
	rule, sentence string
	n              int      // recipients; 0: it is about the message
	named          []string // the first of them
}

// decisions are what is kept for the history of a message.
type decisions struct {
	list []decided
	more int // decisions that are not in the list
}

func (h *decisions) add(rcpt, rule, sentence string) {
	var d *decided
	// Those of one recipient after the other are mostly the same.
	for i := len(h.list) - 1; i >= 0 && d == nil; i-- {
		if have := &h.list[i]; have.rule == rule && have.sentence == sentence && (have.n == 0) == (rcpt == "") {
			d = have
		}
	}
	if d == nil {
		if len(h.list) >= maxDecided {
			h.more++
			return
		}
		h.list = append(h.list, decided{rule: rule, sentence: sentence})
		d = &h.list[len(h.list)-1]
	}
	if rcpt == "" {
		return
	}
	if d.n++; len(d.named) < maxNamed {
		d.named = append(d.named, human.Mask(rcpt))
	}
}

// history appends what the policy decided to a specification that is whole otherwise.
func (s *specWriter) history() error {
	h := &s.msg.history
	if len(h.list) == 0 {
		return nil
	}
	var b []byte
	now := s.w.en.c.Now()
	for i := range h.list {
		d := &h.list[i]
		e := workspec.Event{Time: now, Event: workspec.EventPolicy, Text: d.sentence,
			Attrs: []workspec.Attr{{Key: "rule", Value: d.rule}}}
		if d.n > 0 {
			e.Attrs = append(e.Attrs, workspec.Attr{Key: "count", Value: strconv.Itoa(d.n)})
			e.Text += "; for " + strings.Join(d.named, ", ")
		}
		if more := d.n - len(d.named); more > 0 {
			e.Text += fmt.Sprintf(" and %d more", more)
		}
		b = workspec.AppendEvent(b, &e)
	}
	if h.more > 0 {
		b = workspec.AppendEvent(b, &workspec.Event{Time: now, Event: workspec.EventPolicy,
			Text: fmt.Sprintf("the policy decided %d times more; the log has it", h.more)})
	}
	// Crash: lines behind the z line that are missing or torn say less, and change nothing.
	_, err := s.file.Write(b)
	return err
}
