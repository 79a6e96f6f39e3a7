package main

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

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/workspec"
)

func historyCommand() *cli.Command {
	return &cli.Command{
		Name:      "history",
		Usage:     "tell everything that happened to a message, in the order of time",
		UsageText: "zmctl history [--json] ID...",
		Description: `Tells each step of a message in words: who brought it, when it was routed, each attempt
that failed and the answer, holds and other orders of a person and who gave them, reports
to the sender. Of a message that is gone, what the ledger still has.

    zmctl history S10117782A2CnLkQ0vB8C

Exit codes: 0 told, 1 there is no such message.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each step"}},
		Action: runHistory,
	}
}

// happened is one step of a message.
type happened struct {
	ID         string    `json:"id"`
	Time       time.Time `json:"time"`
	Event      string    `json:"event"`
	Recipients []string  `json:"recipients,omitempty"`
	Text       string    `json:"text"`
}

func runHistory(c *cli.Context) error {
	ids, err := spoolIDs(c, "zmctl queue")
	if err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	out := newStream(c.App.Writer)
	p := term.For(out)
	var errs []error
	for i, id := range ids {
		list, err := newSpool(po, time.Now()).history(id)
		errs = append(errs, err)
		if c.Bool("json") {
			for j := range list {
				errs = append(errs, jsonLines(out).Encode(&list[j]))
			}
			continue
		}
		if i > 0 && len(list) > 0 {
			fmt.Fprintln(out)
		}
		for j := range list {
			fmt.Fprintf(out, "%s  %s\n", p.Faint(list[j].Time.Format(human.TimeFormat)), p.State(list[j].Event, list[j].Text))
		}
	}
	return quiet(errors.Join(append(errs, out.flush())...))
}

// history tells the steps of a message.
func (s *spool) history(id postoffice.SpoolID) ([]happened, error) {
	m, err := s.locate("history", id)
	list, lerr := s.accountOf(id)
	err = errors.Join(err, lerr)
	if m == nil && len(list) == 0 {
		return nil, errors.Join(err, fmt.Errorf("history %s: no file of that message is here, and the ledger has no line of it; the log may tell", id))
	}
	if m != nil {
		list = append(append(list, s.arrival(m)), s.putAside(m)...)
		if m.parsed != nil {
			list = append(list, steps(m)...)
		}
	}
	for i := range list {
		list[i].ID = id.String()
	}
	// Of the same time they are in the order in which they were found.
	slices.SortStableFunc(list, func(a, b happened) int { return a.Time.Compare(b.Time) })
	return list, err
}

// putAside tells each time that a message was put aside, or taken back, before it was
// routed.
func (s *spool) putAside(m *message) []happened {
	if m.message.Dir == "" {
		return nil
	}
	// What cannot be read is for another person.
	reasons, _ := s.po.Reasons(m.id)
	var list []happened
	for i := range reasons {
		at := reasons[i].Time
		if at.Before(m.Since) && at.Equal(m.Since.Truncate(time.Second)) {
			at = m.Since // it is right to the second
		}
		list = append(list, happened{Time: at, Event: human.Clean(reasons[i].What), Text: reasonWords(&reasons[i])})
	}
	return list
}

// arrival tells who brought a message.
func (s *spool) arrival(m *message) happened {
	if m.envelope == nil && m.message.Dir != "" {
		// What is wrong with the envelope is the router's to tell.
		_ = s.readEnvelope(m)
	}
	h := happened{Time: m.Since, Event: "accepted"}
	text := "accepted from " + m.sender() + ", " + human.Size(m.Size)
	if e := m.envelope; e != nil {
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
	h.Text = text
	return h
}

// steps are the lines of a specification, in words.
func steps(m *message) []happened {
	address := map[int64]string{}
	for gi := range m.parsed.Groups {
		for ri := range m.parsed.Groups[gi].Recipients {
			r := &m.parsed.Groups[gi].Recipients[ri]
			address[r.Offset] = human.Clean(r.Address)
		}
	}
	var list []happened
	before := attempts{}
	for i := range m.parsed.History {
		e := &m.parsed.History[i]
		h := happened{Time: e.Time, Event: human.Clean(e.Event)}
		for r := range m.parsed.About(e) {
			h.Recipients = append(h.Recipients, human.Clean(r.Address))
		}
		h.Text = inWords(e, h.Recipients) + before.leftOut(m.parsed, e)
		list = append(list, h)
	}
	for i := range m.parsed.Diagnostics {
		d := &m.parsed.Diagnostics[i]
		told := "; the sender is to be told"
		if d.Reported {
			told = "; the sender was told, or is not to be"
		}
		list = append(list, happened{Time: d.Time, Event: human.Clean(d.Notary.Action), Recipients: []string{address[d.Of]},
			Text: fmt.Sprintf("%s <%s> %s: %s%s", human.Clean(d.Notary.Action), address[d.Of], human.Clean(d.Notary.Status), human.Clean(answerOf(d)), told)})
	}
	return list
}

// attempts has the number of the last attempt that was printed for each recipient.
type attempts map[int64]int

// leftOut describes the attempts before a deferral that a summary of the history has removed.
func (a attempts) leftOut(spec *workspec.Spec, e *workspec.Event) (text string) {
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

// named names the first of some recipients, and counts the others.
func named(recipients []string) string {
	names := brackets(recipients[:min(len(recipients), 5)])
	if n := len(recipients) - 5; n > 0 {
		names += fmt.Sprintf(" and %d more", n)
	}
	return names
}

// inWords describes an event.
func inWords(e *workspec.Event, recipients []string) string {
	names := named(recipients)
	if names == "" {
		names = "the message"
	}
	by := ""
	if who := e.Get(workspec.KeyWho); who != "" {
		by = " by " + human.Clean(who)
	}
	if text := human.Clean(oneLine(e.Text)); text != "" {
		by += ": " + text
	}
	if o := e.Get("order"); o != "" {
		by += " (order " + human.Clean(o) + ")"
	}
	switch e.Event {
	case workspec.EventSent:
		return "the end of the data is about to be sent for " + names + ", by owner " + human.Clean(e.Get("owner"))
	case workspec.EventDeferred:
		return fmt.Sprintf("attempt %s for %s failed: %s %s; next %s", human.Clean(e.Get("attempt")), names, human.Clean(e.Get("status")), human.Clean(oneLine(e.Text)), milli(e.Get("next")))
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
			return "the policy, " + human.Clean(rule) + ": " + human.Clean(oneLine(e.Text))
		}
		return human.Clean(oneLine(e.Text))
	}
	var attrs strings.Builder
	for _, a := range e.Attrs {
		attrs.WriteString(" " + a.Key + "=" + a.Value)
	}
	return human.Clean(e.Event+attrs.String()) + " " + names + by
}

// milli is a time that is written in milliseconds since 1970.
func milli(s string) string {
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return human.Clean(s)
	}
	return time.UnixMilli(ms).Format(human.TimeFormat)
}

// accountOf are the ledger's lines about a message.
func (s *spool) accountOf(id postoffice.SpoolID) ([]happened, error) {
	files, err := s.list(postoffice.Ledger)
	if err != nil {
		return nil, nil // no ledger is no trouble here
	}
	var list []happened
	seen := map[string]bool{}
	var errs []error
	for _, f := range files {
		errs = append(errs, s.accountIn(f, func(l *ledger.Line) {
			h := happened{Time: time.UnixMilli(l.Time), Event: l.Verb.String(), Text: ledgerWords(l)}
			if l.ID == id && !seen[h.Text] {
				seen[h.Text] = true
				list = append(list, h)
			}
		}))
	}
	return list, errors.Join(errs...)
}

func (s *spool) accountIn(f file, fn func(l *ledger.Line)) error {
	h, err := s.fs.Open(f.path(), os.O_RDONLY, 0)
	if err != nil {
		return nil // folded into base meanwhile, or not for this person
	}
	defer h.Close()
	r := bufio.NewReaderSize(h, 64<<10)
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
			return fmt.Errorf("read %s: %w", f.path(), err)
		}
	}
}

// ledgerWords tells a line of the ledger.
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
		}{{o.Delivered, "delivered"}, {o.Failed, "failed and reported"}, {o.Silent, "failed with nobody to tell"}, {o.Expired, "expired"},
			{o.Removed, "removed"}, {o.Rerouted, "rerouted"}, {o.Gone, "gone"}, {o.Unknown, "unknown"}} {
			if p.n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
			}
		}
		return "done with: " + strings.Join(parts, ", ")
	}
	return l.Verb.String()
}
