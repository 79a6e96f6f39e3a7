package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/wire/mailq"
)

func whyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "tell why a message waits, with names and times",
		UsageText: "zmctl why [--json] ID...",
		Description: `Tells in sentences what a message waits for: which host, since when it is in trouble and
what it said, when it is tried next and until when, who holds it, which clause of
scheduler.conf serves it and which limits there are, and if nobody is there to do it.
What the files say is always told; what only a running scheduler knows, if it answers.

    zmctl why S10117782A2CnLkQ0vB8C

Exit codes: 0 told, 1 there is no such message.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}},
		Action: runWhy,
	}
}

// because is why one message waits.
type because struct {
	ID        string             `json:"id"`
	State     string             `json:"state"`
	Lines     []string           `json:"lines"`
	Message   *message           `json:"message,omitempty"`
	Scheduler *mailq.MessageInfo `json:"scheduler,omitempty"` // if one answers

	states map[int]string // of Lines: what they tell of, where that has a colour
}

func runWhy(c *cli.Context) error {
	ids, err := spoolIDs(c, "zmctl queue")
	if err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	var errs []error
	for i, id := range ids {
		s := newSpool(po, time.Now()).by(settings)
		r, err := s.why(c.Context, settings, dir, id)
		errs = append(errs, err)
		switch {
		case r == nil:
		case c.Bool("json"):
			errs = append(errs, jsonLines(c.App.Writer).Encode(r))
		default:
			if i > 0 {
				fmt.Fprintln(c.App.Writer)
			}
			r.print(c.App.Writer)
		}
	}
	return errors.Join(errs...)
}

// locate finds a message wherever it is.
func (s *spool) locate(verb string, id postoffice.SpoolID) (*message, error) {
	m, others, err := s.byID(id)
	if m == nil && err == nil {
		// It may have moved against the order in which we looked.
		m, others, err = s.byID(id)
	}
	if m == nil && err == nil {
		m = s.removedByID(id)
	}
	if m != nil {
		return m, nil
	}
	for _, o := range others {
		err = errors.Join(err, fmt.Errorf("%s %s: inode %d belongs to another message now, %s, written %s", verb, id, o.Ino, o, o.Time().Format(human.TimeFormat)))
	}
	return nil, err
}

func (s *spool) why(ctx context.Context, settings *config.Config, dir string, id postoffice.SpoolID) (*because, error) {
	m, err := s.locate("why", id)
	if m == nil {
		if err != nil {
			return nil, err
		}
		r := &because{ID: id.String(), State: "gone"}
		r.say("%s is not here: it was delivered, reported or dropped.", id)
		lines, err := s.accountOf(id)
		for _, l := range lines {
			r.say("The ledger says, %s: %s.", l.Time.Format(human.TimeFormat), l.Text)
		}
		if len(lines) == 0 {
			r.say("The ledger has no line of it any more.")
			err = errors.Join(err, fmt.Errorf("why %s: there is no such message", id))
		}
		return r, err
	}
	r := &because{ID: id.String(), State: m.State, Message: m}
	r.say("%s from %s, %s, accepted %s, %s ago, is %s.", id, m.sender(), human.Size(m.Size), m.Since.Format(human.TimeFormat), human.Span(s.now.Sub(m.Since)), m.State)
	if m.Problem != "" {
		r.sayOf("problem", "PROBLEM: %s", human.Clean(m.Problem))
	}
	if m.State != stateQueued || m.parsed == nil || !m.parsed.Complete {
		for i, line := range s.next(m) {
			if i == 0 && slices.Contains([]string{stateDeferred, stateFrozen, stateSetAside}, m.State) {
				state := frozen // it waits for a person
				if m.State == stateDeferred && s.triesAgain(m) {
					state = waiting
				}
				r.sayOf(state, "%s", line)
				continue
			}
			r.say("%s", line)
		}
		return r, nil
	}
	r.Scheduler = askMessage(ctx, dir, id)
	r.settled(m)
	s.whyOpen(ctx, settings, r, m)
	r.reports(m)
	switch {
	case !s.runs("scheduler"):
		r.sayOf("trouble", "No scheduler runs, so nothing is tried: zmctl start starts the daemons.")
	case r.Scheduler == nil:
		r.say("A scheduler runs, but does not tell what it knows of this message; the above is what the files say.")
	}
	return r, nil
}

func (r *because) say(format string, args ...any) {
	r.Lines = append(r.Lines, fmt.Sprintf(format, args...))
}

// sayOf says something about what is in a state.
func (r *because) sayOf(state, format string, args ...any) {
	if r.states == nil {
		r.states = map[int]string{}
	}
	r.states[len(r.Lines)] = state
	r.say(format, args...)
}

// print tells it to a person. Trouble of the writer is met by the next command.
func (r *because) print(w io.Writer) {
	p := term.For(w)
	for i, line := range r.Lines {
		if painted := p.State(r.states[i], line); painted != line {
			line = painted
		} else {
			line = strings.ReplaceAll(line, r.ID, p.Bold(r.ID))
		}
		fmt.Fprintln(w, line)
	}
}

// settled tells of the recipients that nobody waits for.
func (r *because) settled(m *message) {
	n := map[string]int{}
	left := 0
	for i := range m.Recipients {
		n[m.Recipients[i].State]++
		if m.Recipients[i].open() {
			left++
		}
	}
	var parts []string
	for _, state := range []string{delivered, failed, removed, rerouted} {
		if n[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[state], state))
		}
	}
	text := fmt.Sprintf("Of %s, %d %s open", human.Count(len(m.Recipients), "recipient"), left, human.Plural(left, "is", "are"))
	if len(parts) > 0 {
		text += "; " + strings.Join(parts, ", ")
	}
	r.say("%s.", text)
	if left == 0 {
		r.say("The scheduler reports what is owed to the sender and removes the files.")
	}
}

// alike are open recipients that wait for the same.
type alike struct {
	recipient
	addresses []string
}

// whyGroups bounds how many groups of recipients are told.
const whyGroups = 20

// whyOpen tells of the open recipients, those together that wait for the same.
func (s *spool) whyOpen(ctx context.Context, settings *config.Config, r *because, m *message) {
	var groups []*alike
	byKey := map[string]*alike{}
	var pairs []thread
	seen := map[thread]bool{}
	for i := range m.Recipients {
		p := &m.Recipients[i]
		if !p.open() {
			continue
		}
		next := int64(0)
		if p.Next != nil {
			next = p.Next.Unix()
		}
		key := fmt.Sprint(p.thread(), p.State, p.Attempts, next, p.Last, p.Order)
		g := byKey[key]
		if g == nil {
			g = &alike{recipient: *p}
			byKey[key] = g
			groups = append(groups, g)
		}
		g.addresses = append(g.addresses, "<"+p.Address+">")
		if t := (thread{p.Channel, p.Host}); !seen[t] {
			seen[t] = true
			pairs = append(pairs, t)
		}
	}
	if len(groups) == 0 {
		return
	}
	expiry := askExpiry(ctx, settings, pairs)
	told := map[thread]bool{}
	for i, g := range groups {
		if i == whyGroups {
			r.say("And %s that wait for something else.", human.Count(len(groups)-i, "group")+" of recipients")
			break
		}
		t := thread{g.Channel, g.Host}
		r.whyGroup(s.now, g)
		if g.State != frozen && g.State != noClause {
			r.expires(s.now, m, g, t, expiry)
		}
		if !told[t] && g.State != frozen && g.State != held {
			told[t] = true
			r.live(s.now, t)
		}
	}
}

// whyGroup tells what the files say of recipients that wait for the same.
func (r *because) whyGroup(now time.Time, g *alike) {
	names := strings.Join(g.addresses[:min(len(g.addresses), 3)], ", ")
	if n := len(g.addresses) - 3; n > 0 {
		names += fmt.Sprintf(" and %d more", n)
	}
	are := human.Plural(len(g.addresses), "is", "are")
	by := ""
	if g.By != "" {
		by = " by " + g.By
	}
	if g.Ordered != nil {
		by += fmt.Sprintf(" since %s, %s ago", g.Ordered.Format(human.TimeFormat), human.Span(now.Sub(*g.Ordered)))
	}
	if g.Reason != "" {
		by += fmt.Sprintf(", saying %q", g.Reason)
	}
	if g.Order != "" {
		by += " (order " + g.Order + ")"
	}
	switch g.State {
	case held:
		until := "until it is released: zmctl release " + r.ID
		if g.Until != nil {
			until = fmt.Sprintf("until %s, for another %s; zmctl release %s ends that", g.Until.Format(human.TimeFormat), human.Span(g.Until.Sub(now)), r.ID)
		}
		r.sayOf(g.State, "%s over %s/%s %s held%s, %s.", names, g.Channel, g.Host, are, by, until)
	case frozen:
		cause := "a person has said so"
		if g.Cause == "expired" {
			cause = "the time for attempts was over, and its clause has onexpiry=freeze"
		} else if g.Cause != "" {
			cause = "of the rule " + g.Cause
		}
		r.sayOf(g.State, "%s over %s/%s %s frozen%s, because %s. It waits for a person: zmctl thaw %s, or zmctl expire %s.", names, g.Channel, g.Host, are, by, cause, r.ID, r.ID)
	case noClause:
		r.sayOf(g.State, "%s over %s/%s %s not served: %s.", names, g.Channel, g.Host, are, g.Unserved)
	case delivering:
		r.sayOf(g.State, "%s over %s/%s %s being delivered to by %s at this moment.", names, g.Channel, g.Host, are, g.Owner)
	case stale:
		r.sayOf(g.State, "%s over %s/%s %s locked by %s; the scheduler gives that back.", names, g.Channel, g.Host, are, g.Owner)
	default:
		if g.Channel == channelHold && g.Next == nil {
			r.sayOf(held, "%s %s routed again when %s holds.", names, are, g.Host)
			break
		}
		r.sayOf(g.State, "%s %s for %s over channel %s.", names, human.Plural(len(g.addresses), "waits", "wait"), hostName(g.Host), g.Channel)
	}
	switch {
	case g.Attempts > 0:
		r.say("    Tried %s; the last answer was: %s", human.Often(g.Attempts), strings.TrimSpace(g.Status+" "+human.Cut(g.Last, 500)))
	case g.State == waiting:
		r.say("    Not tried yet.")
	}
	if g.State != waiting || g.Next == nil {
		return
	}
	if g.Next.After(now) {
		r.say("    The next attempt is at %s, in %s; zmctl retry %s does not wait for that.", g.Next.Format(human.TimeFormat), human.Span(g.Next.Sub(now)), r.ID)
	} else {
		r.say("    It is due since %s, %s ago, and waits for its turn.", g.Next.Format(human.TimeFormat), human.Span(now.Sub(*g.Next)))
	}
}

func hostName(host string) string {
	if host == "" {
		return "its channel"
	}
	return "host " + host
}

// expires tells when recipients are given up.
func (r *because) expires(now time.Time, m *message, g *alike, t thread, expiry map[thread]time.Duration) {
	if r.Scheduler != nil {
		for i := range r.Scheduler.Recipients {
			w := &r.Scheduler.Recipients[i]
			if "<"+human.Clean(w.Rcpt)+">" == g.addresses[0] && !w.Expires.IsZero() {
				r.say("    It is given up at %s, in %s.", w.Expires.Local().Format(human.TimeFormat), human.Span(w.Expires.Sub(now)))
				return
			}
		}
	}
	after, known := expiry[t]
	switch {
	case !known:
	case after == 0:
		r.say("    By its clause of scheduler.conf it is never given up.")
	case m.parsed.Orders() != nil || m.parsed.Removal() != nil:
		r.say("    By its clause it is given up %s after it was accepted; time in holds does not count.", human.Span(after))
	default:
		r.say("    By its clause it is given up %s after it was accepted, at %s.", human.Span(after), m.Since.Add(after).Format(human.TimeFormat))
	}
}

// live tells what the running scheduler knows of a thread.
func (r *because) live(now time.Time, t thread) {
	if r.Scheduler == nil {
		return
	}
	for i := range r.Scheduler.Why {
		w := &r.Scheduler.Why[i]
		h := &w.Thread
		if h.Channel != t.channel || h.Host != t.host {
			continue
		}
		r.say("    The scheduler says: %s.", strings.TrimSuffix(human.Clean(w.Text), "."))
		state := h.State
		if state == "trouble" {
			state = "in trouble"
		}
		text := fmt.Sprintf("    Thread %s/%s is %s, served by clause %s", t.channel, t.host, state, h.Clause)
		if h.Trouble != "" {
			text += fmt.Sprintf("; the host failed %s: %s", human.InRow(h.Tries), human.Clean(h.Trouble))
		}
		if h.Until.After(now) {
			text += "; the next attempt there is at " + h.Until.Local().Format(human.TimeFormat)
		}
		limit := "no limit"
		if h.Limit > 0 {
			limit = fmt.Sprintf("a limit of %d", h.Limit)
		}
		r.sayOf(h.State, "%s. %s %s there, %d %s being delivered, with %s.", text, human.Count(h.Recipients, "recipient"), human.Plural(h.Recipients, "waits", "wait"), h.Running, human.Plural(h.Running, "is", "are"), limit)
		return
	}
}

// reports tells what the sender was told.
func (r *because) reports(m *message) {
	for i := range m.parsed.History {
		if e := &m.parsed.History[i]; e.Event == "report" {
			r.say("The sender had a report at %s: %s.", e.Time.Format(human.TimeFormat), human.Clean(e.Get("kind")))
		}
	}
}

// askPatience is how long a scheduler may take to answer.
const askPatience = 3 * time.Second

// askMessage asks a running scheduler about a message; nil: it does not answer.
func askMessage(ctx context.Context, dir string, id postoffice.SpoolID) *mailq.MessageInfo {
	a, err := callScheduler(ctx, dir)
	if err != nil {
		return nil
	}
	defer a.close()
	if a.conn.SetDeadline(time.Now().Add(askPatience)) != nil {
		return nil
	}
	var info *mailq.MessageInfo
	_, err = a.Ask(mailq.Request{Kind: mailq.JSONMessage, ID: id.String()}, func(line string) error {
		info = &mailq.MessageInfo{}
		return json.Unmarshal([]byte(line), info)
	})
	if err != nil {
		return nil
	}
	return info
}
