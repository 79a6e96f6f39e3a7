package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

func queueCommand() *cli.Command {
	return &cli.Command{
		Name:      "queue",
		Usage:     "show the mail that waits: as list, tree, counts, ages",
		UsageText: "zmctl queue [--tree|--counts|--ages|--summary] [--json] [selecting flags] [ID...]",
		Description: `Lists every message that is not yet delivered: those in router/ and queue/, those
that were set aside in deferred/ and freezer/, and the only copies in postman/. For each
recipient it tells the channel and host, how often it was tried, when it is tried next,
and what the other side said last.

    S10117782A2CnLkQ0vB8C  12m  4.1k  <sender@client.example.net>  queued
        smtp/c.example.com  defer1@c.example.com  waiting, 2 attempts, next in 1m:
            451 4.3.0 try again later
        smtp/c.example.com  ok@c.example.com  delivered

    zmctl queue --host c.example.com --state waiting
    zmctl queue --tree --older 1d
    zmctl queue --counts
    zmctl queue --ages
    zmctl queue --json --reply greylist | jq -r .id

Up to 10000 messages come oldest first; more come as the directories have them, the
first at once. It takes no lock and holds nobody up. zmctl show ID tells everything about
one message, zmctl why ID why it waits.
` + selectorHelp,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "tree", Usage: "by channel and host, the fullest first, with their oldest messages"},
			&cli.BoolFlag{Name: "counts", Usage: "recipients per state, channel, host and sender"},
			&cli.BoolFlag{Name: "ages", Usage: "table of hosts and ages"},
			&cli.BoolFlag{Name: "summary", Usage: "a few lines about all of it"},
			&cli.IntFlag{Name: "top", Value: 10, Usage: "`N` lines of each kind in tree, counts and ages; 0 for all"},
			&cli.BoolFlag{Name: "readable", Usage: "list what you may read; what you may not is no error, as for mailq"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON: of the list one object a line, of other views one object"},
		}, selectorFlags()...),
		Action: runQueue,
	}
}

// queueView shows messages one way.
type queueView interface {
	// add takes a message with the recipients that were selected.
	add(m *view.Message) error
	// end prints what is left to print.
	end(sorted bool) error
}

func runQueue(c *cli.Context) error {
	sel, err := chosen(c)
	if err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := view.New(po, time.Now())
	out := newStream(c.App.Writer)
	v, err := chooseView(c, out, s.Now)
	if err != nil {
		return err
	}
	sorted, err := s.Each(c.Context, sel, func(m *view.Message) error {
		if err := v.add(m); err != nil {
			return err
		}
		return out.tick()
	})
	hidden := c.Bool("readable") && err != nil && onlyPermission(err)
	if hidden {
		err = nil
	}
	if err == nil || errors.Is(err, view.ErrListing) {
		err = errors.Join(err, v.end(sorted))
	}
	if err = quiet(errors.Join(err, out.flush())); err == nil && hidden {
		fmt.Fprintln(c.App.ErrWriter, "zmctl: this is the part of the queue that you may read; root and the postoffice's owner see all of it")
	}
	return err
}

// onlyPermission reports whether all that an error consists of is missing permission.
func onlyPermission(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || slices.Contains(joined.Unwrap(), view.ErrListing) {
		return errors.Is(err, fs.ErrPermission)
	}
	return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !onlyPermission(e) })
}

// quiet forgives a reader that has seen enough.
func quiet(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

func chooseView(c *cli.Context, w io.Writer, now time.Time) (queueView, error) {
	var views []queueView
	top := c.Int("top")
	if top < 0 {
		return nil, cli.Exit("zmctl queue --top: less than nothing", config.ExitUsage)
	}
	asJSON := c.Bool("json")
	if c.Bool("tree") {
		views = append(views, newTree(w, now, top, asJSON))
	}
	if c.Bool("counts") {
		views = append(views, newCounts(w, now, top, asJSON))
	}
	if c.Bool("ages") {
		views = append(views, newAges(w, now, top, asJSON))
	}
	if c.Bool("summary") {
		views = append(views, newSummary(w, now, asJSON))
	}
	switch {
	case len(views) > 1:
		return nil, cli.Exit("zmctl queue: one of --tree, --counts, --ages and --summary", config.ExitUsage)
	case len(views) == 1:
		return views[0], nil
	case asJSON:
		return &lines{jsonLines(w)}, nil
	}
	return &listing{w: w, now: now}, nil
}

// lines are the messages in JSON, one a line.
type lines struct{ e *json.Encoder }

// jsonLines writes each value as a line.
func jsonLines(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // addresses stand in < >
	return e
}

func (l *lines) add(m *view.Message) error { return l.e.Encode(m) }
func (l *lines) end(bool) error            { return nil }

// listing is the view for reading.
type listing struct {
	w   io.Writer
	now time.Time
	n   int
}

func (l *listing) add(m *view.Message) error {
	l.n++
	return printMessage(l.w, m, l.now)
}

func (l *listing) end(sorted bool) error {
	text := human.Count(l.n, "message")
	if !sorted {
		text += ", in no order"
	}
	_, err := fmt.Fprintln(l.w, text)
	return err
}

// printMessage writes a message's lines for the queue listing.
func printMessage(w io.Writer, m *view.Message, now time.Time) error {
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

// painted colours the state of a message by what it waits for.
func painted(p term.Paint, m *view.Message, state string) string {
	switch m.State {
	case view.StateDeferred, view.StateFrozen, view.StateSetAside:
		return p.Red(state) // for a person
	case view.StateCopy, view.StateRemoved:
		return p.Faint(state)
	}
	return state
}
