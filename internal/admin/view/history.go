package view

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// Step is one step of a message.
type Step struct {
	ID         string    `json:"id"`
	Time       time.Time `json:"time"`
	Event      string    `json:"event"`
	Recipients []string  `json:"recipients,omitempty"`
	Text       string    `json:"text"`
}

// Histories puts together what happened to messages, from their specifications, the reasons
// beside those that are put aside, and the ledger.
type Histories struct{ Spool *Spool }

// Of returns the steps of a message in the order of time.
func (h Histories) Of(id postoffice.SpoolID) ([]Step, error) {
	m, err := h.Spool.locate("history", id)
	list, lerr := h.account(id)
	err = errors.Join(err, lerr)
	if m == nil && len(list) == 0 {
		return nil, errors.Join(err, fmt.Errorf("history %s: no such message in the postoffice or the ledger; the log may have it", id))
	}
	if m != nil {
		list = append(append(list, h.arrival(m)), h.putAside(m)...)
		if m.Spec != nil {
			list = append(list, steps(m)...)
		}
	}
	for i := range list {
		list[i].ID = id.String()
	}
	// Of the same time they are in the order in which they were found.
	slices.SortStableFunc(list, func(a, b Step) int { return a.Time.Compare(b.Time) })
	return list, err
}

// putAside returns each time that a message was put aside, or taken back, before it was
// routed.
func (h Histories) putAside(m *Message) []Step {
	if m.File.Dir == "" {
		return nil
	}
	// An operator without permission sees none.
	reasons, _ := h.Spool.PO.Aside.Reasons(m.SpoolID)
	var list []Step
	for i := range reasons {
		at := reasons[i].Time
		if at.Before(m.Since) && at.Equal(m.Since.Truncate(time.Second)) {
			at = m.Since // it is right to the second
		}
		list = append(list, Step{Time: at, Event: human.Clean(reasons[i].What), Text: ReasonWords(&reasons[i])})
	}
	return list
}

// arrival returns the step in which a message was accepted.
func (h Histories) arrival(m *Message) Step {
	if m.Envelope == nil && m.File.Dir != "" {
		// The router reports errors of the envelope.
		_ = h.Spool.readEnvelope(m)
	}
	step := Step{Time: m.Since, Event: "accepted"}
	text := "accepted from " + m.From() + ", " + human.Size(m.Size)
	if e := m.Envelope; e != nil {
		if e.RcvdFrom != "" {
			text += ", from host " + human.Clean(e.RcvdFrom)
		}
		if e.With != "" {
			text += " with " + human.Clean(e.With)
		}
		if n := len(e.Recipients); n > 0 {
			text += fmt.Sprintf(", to %s in the envelope", human.Count(n, "recipient"))
		}
	}
	step.Text = text
	return step
}

// steps returns the lines of a specification, in words.
func steps(m *Message) []Step {
	address := map[int64]string{}
	for gi := range m.Spec.Groups {
		for ri := range m.Spec.Groups[gi].Recipients {
			r := &m.Spec.Groups[gi].Recipients[ri]
			address[r.Offset] = human.Clean(r.Address)
		}
	}
	var list []Step
	before := Attempts{}
	for i := range m.Spec.History {
		e := &m.Spec.History[i]
		h := Step{Time: e.Time, Event: human.Clean(e.Event)}
		for r := range m.Spec.About(e) {
			h.Recipients = append(h.Recipients, human.Clean(r.Address))
		}
		h.Text = EventText(e, h.Recipients) + before.LeftOut(m.Spec, e)
		list = append(list, h)
	}
	for i := range m.Spec.Diagnostics {
		d := &m.Spec.Diagnostics[i]
		report := "; a report to the sender is due"
		if d.Reported {
			report = "; the sender has a report, or wants none"
		}
		list = append(list, Step{Time: d.Time, Event: human.Clean(d.Notary.Action), Recipients: []string{address[d.Of]},
			Text: fmt.Sprintf("%s <%s> %s: %s%s", human.Clean(d.Notary.Action), address[d.Of], human.Clean(d.Notary.Status), human.Clean(AnswerOf(d)), report)})
	}
	return list
}

// Attempts has the number of the last attempt that was printed for each recipient.
type Attempts map[int64]int

// LeftOut describes the attempts before a deferral that a summary of the history has removed.
func (a Attempts) LeftOut(spec *workspec.Spec, e *workspec.Event) (text string) {
	if e.Event != workspec.EventDeferred {
		return ""
	}
	n, _ := strconv.Atoi(e.Get("attempt"))
	for r := range spec.About(e) {
		if was := a[r.Offset]; text == "" && was > 0 && was+1 == n-1 {
			text = fmt.Sprintf("; attempt %d before it is not listed", n-1)
		} else if text == "" && was > 0 && was+1 < n {
			text = fmt.Sprintf("; attempts %d to %d before it are not listed", was+1, n-1)
		}
		a[r.Offset] = n
	}
	return text
}

// Named names the first of some recipients, and counts the others.
func Named(recipients []string) string {
	names := human.Addresses(recipients[:min(len(recipients), 5)])
	if n := len(recipients) - 5; n > 0 {
		names += fmt.Sprintf(" and %d more", n)
	}
	return names
}

// EventText describes an event.
func EventText(e *workspec.Event, recipients []string) string {
	names := Named(recipients)
	if names == "" {
		names = "the message"
	}
	by := ""
	if who := e.Get(workspec.KeyWho); who != "" {
		by = " by " + human.Clean(who)
	}
	if text := human.Clean(OneLine(e.Text)); text != "" {
		by += ": " + text
	}
	if o := e.Get("order"); o != "" {
		by += " (order " + human.Clean(o) + ")"
	}
	switch e.Event {
	case workspec.EventSent:
		return "the end of the data is about to be sent for " + names + ", by owner " + human.Clean(e.Get("owner"))
	case workspec.EventDeferred:
		return fmt.Sprintf("attempt %s for %s failed: %s %s; next %s", human.Clean(e.Get("attempt")), names, human.Clean(e.Get("status")), human.Clean(OneLine(e.Text)), milli(e.Get("next")))
	case workspec.EventSummarised:
		if n := e.Get("lines"); n != "0" {
			return "the history was summarised: " + human.Clean(n) + " lines about attempts that ended as the one before them are left out"
		}
		return "the history cannot be summarised further"
	case workspec.EventSuperseded:
		return "the history was about to be summarised"
	case workspec.EventInDoubt:
		return "whether " + names + " got it is in doubt, the agent died behind the end of the data; it is tried again"
	case workspec.EventUnlocked:
		return names + " was given back: the agent with owner number " + human.Clean(e.Get("owner")) + " is dead or does not know"
	case workspec.EventReport:
		return fmt.Sprintf("a report that it is %s is prepared for the sender, about %s", human.Clean(e.Get("kind")), names)
	case workspec.EventExpired:
		if e.Get(workspec.KeyWho) == "" {
			return names + " is given up: its time is over" + by
		}
		return names + " is given up" + by
	case workspec.EventUnserved:
		return "nothing serves " + names + by
	case workspec.EventServed:
		return names + " is served again"
	case workspec.EventRemoved:
		return "removed " + names + by
	case workspec.EventRestored:
		return "put back " + names + by
	case workspec.EventHold:
		until := ""
		if u := e.Get("until"); u != "" {
			until = " until " + milli(u)
		}
		return "held " + names + until + by
	case workspec.EventRelease:
		return "released " + names + by
	case workspec.EventFrozen:
		return "frozen " + names + ", cause " + human.Clean(e.Get(workspec.KeyCause)) + by
	case workspec.EventThawed:
		return "thawed " + names + by
	case workspec.EventRetry:
		return "to be tried now: " + names + by
	case workspec.EventRerouted:
		return "routed again as another message: " + names + by
	case workspec.EventPolicy:
		if rule := e.Get("rule"); rule != "" {
			return "the policy, " + human.Clean(rule) + ": " + human.Clean(OneLine(e.Text))
		}
		return human.Clean(OneLine(e.Text))
	}
	var attrs strings.Builder
	for _, a := range e.Attrs {
		attrs.WriteString(" " + a.Key + "=" + a.Value)
	}
	return human.Clean(e.Event+attrs.String()) + " " + names + by
}

// milli returns a time that is written in milliseconds since 1970.
func milli(s string) string {
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return human.Clean(s)
	}
	return time.UnixMilli(ms).Format(human.TimeFormat)
}

// account returns the ledger's lines about a message.
func (h Histories) account(id postoffice.SpoolID) ([]Step, error) {
	files, err := h.Spool.List(postoffice.Ledger)
	if err != nil {
		return nil, nil // no ledger is no trouble here
	}
	var list []Step
	seen := map[string]bool{}
	var errs []error
	for _, f := range files {
		errs = append(errs, h.accountIn(f, func(l *ledger.Line) {
			step := Step{Time: time.UnixMilli(l.Time), Event: l.Verb.String(), Text: ledgerWords(l)}
			if l.ID == id && !seen[step.Text] {
				seen[step.Text] = true
				list = append(list, step)
			}
		}))
	}
	return list, errors.Join(errs...)
}

func (h Histories) accountIn(f File, fn func(l *ledger.Line)) error {
	file, err := h.Spool.FS.Open(f.Path(), os.O_RDONLY, 0)
	if err != nil {
		return nil // folded into base meanwhile, or no permission
	}
	defer file.Close()
	r := bufio.NewReaderSize(file, 64<<10)
	for {
		line, err := r.ReadSlice('\n')
		if n := len(line); n > 0 && err == nil {
			if l, ok := ledger.ParseLine(line[:n-1]); ok {
				fn(&l)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, bufio.ErrBufferFull), err == nil:
		default:
			return fmt.Errorf("read %s: %w", f.Path(), err)
		}
	}
}

func ledgerWords(l *ledger.Line) string {
	n := human.Count(int(l.N), "recipient")
	switch l.Verb {
	case ledger.In:
		return "entered into the ledger with " + n
	case ledger.Routed:
		return "routed to " + n
	case ledger.Found:
		return "found in the queue with " + n + ", " + human.Clean(l.Why)
	case ledger.Moved:
		return fmt.Sprintf("got this spool ID; before it had inode number %d", l.From)
	case ledger.Gone:
		return "left with " + n + ": " + human.Clean(l.Why)
	case ledger.Unknown:
		return "lost sight of in a loss of power, with " + n
	case ledger.Done, ledger.Half:
		o := l.End
		var parts []string
		for _, p := range []struct {
			n    int64
			what string
		}{{o.Delivered, "delivered"}, {o.Failed, "failed and reported"}, {o.Silent, "failed without a report"}, {o.Expired, "expired"},
			{o.Removed, "removed"}, {o.Rerouted, "rerouted"}, {o.Gone, "gone"}, {o.Unknown, "unknown"}} {
			if p.n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
			}
		}
		return "done with: " + strings.Join(parts, ", ")
	}
	return l.Verb.String()
}
