package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/wire/mailq"
)

// Explanation is why one message waits.
type Explanation struct {
	ID        string             `json:"id"`
	State     string             `json:"state"`
	Lines     []string           `json:"lines"`
	Message   *Message           `json:"message,omitempty"`
	Scheduler *mailq.MessageInfo `json:"scheduler,omitempty"` // if one answers

	States map[int]string `json:"-"` // of Lines: the state they are about, for colours
}

// Why explains why a message waits, or what became of it.
func (x *Explainer) Why(ctx context.Context, dir string, id postoffice.SpoolID) (*Explanation, error) {
	m, err := x.Spool.locate("why", id)
	if m == nil {
		if err != nil {
			return nil, err
		}
		r := &Explanation{ID: id.String(), State: "gone"}
		r.say("%s is no longer in the postoffice: it was delivered, reported or dropped.", id)
		lines, err := Histories{x.Spool}.account(id)
		for _, l := range lines {
			r.say("By the ledger, %s: %s.", l.Time.Format(human.TimeFormat), l.Text)
		}
		if len(lines) == 0 {
			r.say("The ledger has no entry about it.")
			err = errors.Join(err, fmt.Errorf("why %s: there is no such message", id))
		}
		return r, err
	}
	r := &Explanation{ID: id.String(), State: m.State, Message: m}
	r.say("%s from %s, %s, accepted %s, %s ago, is %s.", id, m.From(), human.Size(m.Size), m.Since.Format(human.TimeFormat), human.Span(x.Spool.Now.Sub(m.Since)), m.State)
	if m.Problem != "" {
		r.sayOf("problem", "PROBLEM: %s", human.Clean(m.Problem))
	}
	if m.State != StateQueued || m.Spec == nil || !m.Spec.Complete {
		for i, line := range x.Next(m) {
			if i == 0 && slices.Contains([]string{StateDeferred, StateFrozen, StateSetAside}, m.State) {
				state := Frozen // it waits for an operator
				if m.State == StateDeferred && x.TriesAgain(m) {
					state = Waiting
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
	x.whyOpen(r, m)
	r.reports(m)
	switch {
	case !x.Spool.Runs("scheduler"):
		r.sayOf("trouble", "No scheduler is running, so nothing is tried: zmctl start starts the daemons.")
	case r.Scheduler == nil:
		r.say("A scheduler is running but did not answer; the above is from the files.")
	}
	return r, nil
}

func (r *Explanation) say(format string, args ...any) {
	r.Lines = append(r.Lines, fmt.Sprintf(format, args...))
}

// sayOf adds a line about a state.
func (r *Explanation) sayOf(state, format string, args ...any) {
	if r.States == nil {
		r.States = map[int]string{}
	}
	r.States[len(r.Lines)] = state
	r.say(format, args...)
}

// settled describes the recipients that are final.
func (r *Explanation) settled(m *Message) {
	n := map[string]int{}
	left := 0
	for i := range m.Recipients {
		n[m.Recipients[i].State]++
		if m.Recipients[i].Open() {
			left++
		}
	}
	var parts []string
	for _, state := range []string{Delivered, Failed, Removed, Rerouted} {
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
		r.say("The scheduler sends the report that is due and removes the files.")
	}
}

// alike are open recipients that wait for the same.
type alike struct {
	Recipient
	addresses []string
}

// whyGroups is how many groups of recipients are described.
const whyGroups = 20

// whyOpen describes the open recipients, those that wait for the same together.
func (x *Explainer) whyOpen(r *Explanation, m *Message) {
	var groups []*alike
	byKey := map[string]*alike{}
	var pairs []Thread
	seen := map[Thread]bool{}
	for i := range m.Recipients {
		p := &m.Recipients[i]
		if !p.Open() {
			continue
		}
		next := int64(0)
		if p.Next != nil {
			next = p.Next.Unix()
		}
		key := fmt.Sprint(p.ThreadName(), p.State, p.Attempts, next, p.Last, p.Order)
		g := byKey[key]
		if g == nil {
			g = &alike{Recipient: *p}
			byKey[key] = g
			groups = append(groups, g)
		}
		g.addresses = append(g.addresses, "<"+p.Address+">")
		if t := (Thread{p.Channel, p.Host}); !seen[t] {
			seen[t] = true
			pairs = append(pairs, t)
		}
	}
	if len(groups) == 0 {
		return
	}
	var expiry map[Thread]time.Duration
	if x.settings != nil {
		expiry = Expiry(x.settings, pairs)
	}
	described := map[Thread]bool{}
	for i, g := range groups {
		if i == whyGroups {
			r.say("And %s that wait for something else.", human.Count(len(groups)-i, "group")+" of recipients")
			break
		}
		t := Thread{g.Channel, g.Host}
		r.whyGroup(x.Spool.Now, g)
		if g.State == Suspended {
			r.say("    It is not given up while it is suspended.")
		} else if g.State != Frozen && g.State != Unserved {
			r.expires(x.Spool.Now, m, g, t, expiry)
		}
		if !described[t] && g.State != Frozen && g.State != Held && g.State != Suspended {
			described[t] = true
			r.live(x.Spool.Now, t)
		}
	}
}

// whyGroup describes recipients that wait for the same, from the files.
func (r *Explanation) whyGroup(now time.Time, g *alike) {
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
		by += fmt.Sprintf(", reason %q", g.Reason)
	}
	if g.Order != "" {
		by += " (order " + g.Order + ")"
	}
	switch g.State {
	case Held:
		until := "until it is released: zmctl release " + r.ID
		if g.Until != nil {
			until = fmt.Sprintf("until %s, for another %s; zmctl release %s ends that", g.Until.Format(human.TimeFormat), human.Span(g.Until.Sub(now)), r.ID)
		}
		r.sayOf(g.State, "%s over %s/%s %s held%s, %s.", names, g.Channel, g.Host, are, by, until)
	case Suspended:
		until := "until zmctl resume " + g.Order
		if g.Until != nil {
			until = fmt.Sprintf("until %s, for another %s; zmctl resume %s ends that", g.Until.Format(human.TimeFormat), human.Span(g.Until.Sub(now)), g.Order)
		}
		r.sayOf(g.State, "%s %s for %s over channel %s: deliveries are suspended%s, %s.", names, human.Plural(len(g.addresses), "waits", "wait"), hostName(g.Host), g.Channel, by, until)
	case Frozen:
		cause := "an operator has frozen them"
		if g.Cause == "expired" {
			cause = "their time for attempts has expired, and the clause has onexpiry=freeze"
		} else if g.Cause != "" {
			cause = "the rule matched: " + g.Cause
		}
		r.sayOf(g.State, "%s over %s/%s %s frozen%s, because %s. An operator must decide: zmctl thaw %s, or zmctl expire %s.", names, g.Channel, g.Host, are, by, cause, r.ID, r.ID)
	case Unserved:
		r.sayOf(g.State, "%s over %s/%s %s not served: %s.", names, g.Channel, g.Host, are, g.Unserved)
	case Delivering:
		r.sayOf(g.State, "%s over %s/%s %s being delivered to by %s at this moment.", names, g.Channel, g.Host, are, g.Owner)
	case Stale:
		r.sayOf(g.State, "%s over %s/%s %s locked by %s; the scheduler gives that back.", names, g.Channel, g.Host, are, g.Owner)
	default:
		if g.Channel == ChannelHold && g.Next == nil {
			r.sayOf(Held, "%s %s routed again when %s holds.", names, are, g.Host)
			break
		}
		r.sayOf(g.State, "%s %s for %s over channel %s.", names, human.Plural(len(g.addresses), "waits", "wait"), hostName(g.Host), g.Channel)
	}
	switch {
	case g.Attempts > 0:
		r.say("    Tried %s; the last answer was: %s", human.Often(g.Attempts), strings.TrimSpace(g.Status+" "+human.Cut(g.Last, 500)))
	case g.State == Waiting, g.State == Suspended:
		r.say("    Not tried yet.")
	}
	if g.State != Waiting || g.Next == nil {
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

// expires describes when recipients are given up.
func (r *Explanation) expires(now time.Time, m *Message, g *alike, t Thread, expiry map[Thread]time.Duration) {
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
	case m.Spec.Orders() != nil || m.Spec.Removal() != nil:
		r.say("    By its clause it is given up %s after it was accepted; time in holds does not count.", human.Span(after))
	default:
		r.say("    By its clause it is given up %s after it was accepted, at %s.", human.Span(after), m.Since.Add(after).Format(human.TimeFormat))
	}
}

// live describes a thread by the answer of the running scheduler.
func (r *Explanation) live(now time.Time, t Thread) {
	if r.Scheduler == nil {
		return
	}
	for i := range r.Scheduler.Why {
		w := &r.Scheduler.Why[i]
		h := &w.Thread
		if h.Channel != t.Channel || h.Host != t.Host {
			continue
		}
		r.say("    The scheduler reports: %s.", strings.TrimSuffix(human.Clean(w.Text), "."))
		state := h.State
		if state == "trouble" {
			state = "in trouble"
		}
		text := fmt.Sprintf("    Thread %s/%s is %s, served by clause %s", t.Channel, t.Host, state, h.Clause)
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

func (r *Explanation) reports(m *Message) {
	for i := range m.Spec.History {
		if e := &m.Spec.History[i]; e.Event == "report" {
			r.say("The sender had a report at %s: %s.", e.Time.Format(human.TimeFormat), human.Clean(e.Get("kind")))
		}
	}
}

// AskPatience is how long a scheduler may take to answer.
const AskPatience = 3 * time.Second

// askMessage asks a running scheduler about a message; nil: it does not answer.
func askMessage(ctx context.Context, dir string, id postoffice.SpoolID) *mailq.MessageInfo {
	a, err := CallScheduler(ctx, dir)
	if err != nil {
		return nil
	}
	defer a.Close()
	if a.Conn.SetDeadline(time.Now().Add(AskPatience)) != nil {
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
