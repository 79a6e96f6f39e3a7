package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table/text"
)

// policyState is what router.star decided about a message. Without a policy it is the
// zero value: nothing.
type policyState struct {
	program *policy.Program
	session *policy.Session
	fate    policy.Action // of all recipients; None: each is asked about
	copies  []string      // addresses that get the message too
	filter  *text.Route   // where all of it goes first; nil: it is filtered, or is not to be
}

// Frozen is the decision of a policy that an operator is to look at the message first.
type Frozen struct{ Cause, Reason string }

func (f *Frozen) Error() string { return f.Reason }

func policyConfig(c Config) policy.Config {
	out := policy.Config{Dir: c.Rules.Dir, Hostname: c.Hostname, Steps: c.PolicySteps, Time: c.PolicyTime, Keeper: c.Keeper, Now: c.Now, Log: c.Log}
	out.Source.Timeout, out.Source.Keep, out.Source.Parallel = c.LookupTimeout, c.LookupKeep, c.LookupParallel
	return out
}

// askPolicy asks the policy about the message as a whole. Its error is a *Frozen, or a
// *rules.Trouble: nothing is decided then.
func (en *Engine) askPolicy(msg *message) error {
	if len(msg.to) == 0 {
		return nil
	}
	p := &msg.policy
	var err error
	if p.fate, p.copies, err = en.followRules(msg); err != nil {
		return err
	}
	if p.fate.Fate == policy.None && msg.trusted && msg.head.Filter != "" && !msg.head.Filtered {
		p.fate = policy.Action{Fate: policy.Route}
		p.fate.Channel, p.fate.Host, _ = strings.Cut(msg.head.Filter, "!")
		msg.history.add("", "access", "filter "+msg.head.Filter)
		return nil // it overrides CONTENTFILTER, as in Postfix
	}
	if en.filters(msg) {
		p.filter = en.c.ContentFilter
		return en.filterLoop(msg) // the program is asked when the message comes back
	}
	if p.fate.Fate != policy.None {
		return nil // the program is for what no rule decides
	}
	if p.program = en.policy.Current(); p.program == nil {
		return nil
	}
	msg.Busy() // it may take its time
	m, err := en.describe(msg)
	if err != nil {
		return err
	}
	p.session = en.policy.Begin(p.program, en.policyEnv(msg), m)
	d, err := p.session.Message(msg.context())
	if p.fate, err = en.applyDecision(msg, "", d, err); err != nil {
		return err
	}
	p.copies = append(p.copies, d.Copies...)
	msg.variants = variants{list: []variant{changes(d.Edits)}}
	return nil
}

// filters reports whether a message has to pass the content filter. Reports of this mail system
// do not: nobody would read a report about a report that the filter refuses.
func (en *Engine) filters(msg *message) bool {
	return en.c.ContentFilter != nil && !(msg.trusted && msg.head.Filtered) && msg.origin() != contentrules.Report
}

func (msg *message) release(log *slog.Logger) {
	if err := msg.policy.program.Release(); err != nil {
		log.Warn("policy-tables", "reason", err)
	}
	msg.policy = policyState{}
}

// applyDecision notes what was decided and gives the fate of the recipients that it is about. A
// decision about the whole message is the error.
func (en *Engine) applyDecision(msg *message, rcpt string, d policy.Decision, err error) (policy.Action, error) {
	if err != nil {
		return policy.Action{}, &rules.Trouble{Why: "policy", Err: err}
	}
	for _, a := range d.Actions {
		en.c.Log.LogAttrs(context.Background(), slog.LevelInfo, "policy", slog.String("id", msg.id), slog.String("rcpt", rcpt),
			slog.String("decision", a.Sentence()), slog.String("rule", a.Rule()))
		msg.traceDecision(rcpt, a, a.Sentence())
		if a.Fate != d.Fate.Fate {
			msg.history.add(rcpt, a.Rule(), a.Sentence())
		}
	}
	f := d.Fate
	if msg.origin() == contentrules.Report && withholds(f.Fate) {
		en.c.Log.Warn("policy-passed-over", "id", msg.id, "rcpt", rcpt, "decision", f.Sentence(), "rule", f.Rule(), "reason", ownReport)
		msg.traceDecision(rcpt, &f, ownReport)
		msg.history.add(rcpt, f.Rule(), f.Sentence()+"; not followed: "+ownReport)
		return policy.Action{}, nil
	}
	switch f.Fate {
	case policy.Defer:
		return f, &rules.Trouble{Why: "policy", Err: fmt.Errorf("%s: %s", f.Rule(), f.Text)}
	case policy.Freeze:
		if !en.isThawed(msg.claim.ID) {
			return f, &Frozen{f.Cause, f.Rule() + ": " + f.Text}
		}
		msg.traceDecision(rcpt, &f, thawedBefore)
		msg.history.add(rcpt, f.Rule(), f.Sentence()+"; not followed: "+thawedBefore)
		return policy.Action{}, nil
	}
	if f.Fate != policy.None {
		msg.history.add(rcpt, f.Rule(), f.Sentence())
	}
	return f, nil
}

// thawedBefore is why a message is not frozen again.
const thawedBefore = "an operator has thawed the message"

// ownReport is why such a decision does not count: the recipient of a failure report must
// not depend on rules that were made for other mail.
const ownReport = "it is a report of this mail system: the tables decide"

// withholds reports whether a decision keeps mail from a recipient.
func withholds(f policy.Fate) bool {
	return f == policy.Reject || f == policy.Freeze || f == policy.Defer || f == policy.Drop
}

func (msg *message) traceDecision(rcpt string, a *policy.Action, result string) {
	if msg.trace != nil {
		msg.trace(rules.Step{Address: rcpt, Table: policy.File, Where: a.Where(), Result: result})
	}
}

// policyEnv returns what the program may ask the tables.
func (en *Engine) policyEnv(msg *message) *policy.Env {
	return &policy.Env{
		Play: en.dryRun, Waiter: msg,
		IsLocal: func(ctx context.Context, domain string) (bool, error) {
			return en.rules.Tables().IsLocal(ctx, address.Mailbox{Local: "x", Domain: domain})
		},
		Resolve: func(ctx context.Context, to string, give func(channel, host, user string) error) error {
			m, err := address.Parse(to)
			if err != nil {
				return err
			}
			return en.rules.Tables().Resolve(ctx, rules.Query{Recipient: m, Report: msg.report}, func(t rules.Target) error {
				return give(t.Channel, t.Host, t.User)
			})
		},
	}
}

// describe returns the message as the program sees it: what is believed of its envelope, and
// its header as it came.
func (en *Engine) describe(msg *message) (*policy.Message, error) {
	e := &msg.head.Envelope
	m := &policy.Message{
		ID: msg.id, Sender: msg.sender, External: msg.external, Report: msg.report, UID: msg.uid,
		Accepted: msg.claim.ID.Time(), Size: msg.claim.Info.Size - msg.head.HeaderOffset, Header: msg.header.fields,
	}
	if msg.claim.Info.Size == math.MaxInt64 { // its body was not read
		m.Size = msg.head.BodyOffset - msg.head.HeaderOffset
	}
	if msg.trusted {
		m.RcvdFrom, m.Protocol, m.Ident = e.RcvdFrom, e.With, e.IdentInfo
	}
	if msg.user != "-" {
		m.User = msg.user
	}
	if !msg.external {
		login, err := en.logins.of(m.UID)
		if err != nil {
			return nil, &rules.Trouble{Why: "users", Err: err}
		}
		m.Login = login
	}
	m.Recipients = make([]string, len(msg.to))
	for i := range msg.to {
		m.Recipients[i] = msg.to[i].Address
	}
	return m, nil
}

// changes makes a variant of a program's edits.
func changes(edits []*policy.Action) variant {
	var v variant
	for _, a := range edits {
		switch a.Fate {
		case policy.AddHeader:
			v.header = append(v.header, contentrules.Add(a.Name, a.Value))
		case policy.RemoveHeader:
			v.header = append(v.header, contentrules.Remove(a.Name))
		case policy.SetSender:
			// It was parsed when it was made.
			m, _ := address.Parse(a.Name)
			v.sender = &m
		case policy.Split:
			v.split = a.Name
		}
	}
	return v
}

// place gives the targets of one recipient, as the policy or the tables have it, and then
// who gets a copy.
func (w *worker) place(msg *message, to *envelope.Recipient, m address.Mailbox, tables *rules.Tables, a *expansion) error {
	fate, copies, err := w.fateOf(msg, to, m, tables, a)
	if err != nil {
		return err
	}
	if err := w.follow(&fate, msg, m, tables, a); err != nil {
		return err
	}
	if err := a.end(); err != nil {
		return err
	}
	return w.archive(msg, copies, a.variant, tables, a.give)
}

// fateOf asks the policy about a recipient, unless it has decided about all.
func (w *worker) fateOf(msg *message, to *envelope.Recipient, m address.Mailbox, tables *rules.Tables, a *expansion) (policy.Action, []string, error) {
	if msg.policy.fate.Fate != policy.None || msg.policy.session == nil || m.Local == "" {
		return msg.policy.fate, nil, nil
	}
	ctx := msg.context()
	local, err := tables.IsLocal(ctx, m)
	if err != nil {
		return policy.Action{}, nil, err
	}
	r := &policy.Recipient{Address: m, Domain: strings.ToLower(w.en.c.Hostname), Local: local, DSN: to.DSN}
	if d, err := m.ASCIIDomain(); err == nil && d != "" {
		r.Domain = d
	} else if m.Domain != "" {
		return policy.Action{}, nil, nil // the tables know what to do with a domain that is none
	}
	d, err := msg.policy.session.Recipient(ctx, r)
	fate, err := w.en.applyDecision(msg, m.String(), d, err)
	if err != nil {
		return fate, nil, err
	}
	a.variant = msg.variants.of(changes(d.Edits))
	return fate, d.Copies, nil
}

// follow gives the targets that a recipient has by its fate.
func (w *worker) follow(f *policy.Action, msg *message, m address.Mailbox, tables *rules.Tables, a *expansion) error {
	switch f.Fate {
	case policy.Route:
		return a.take(tables.Routed(m, f.Channel, f.Host))
	case policy.Reject:
		return a.take(rules.Target{Channel: rules.Error, Host: rules.ErrorHost(f.Code, f.Text), User: m.String(), Privilege: rules.Nobody})
	case policy.Drop:
		return a.take(rules.Target{Channel: rules.Bitbucket, Host: "-", User: m.String(), Privilege: rules.Nobody})
	case policy.Redirect:
		for _, other := range f.Addresses {
			// A report names the recipient that the sender knows.
			if err := w.resolveFor(msg, other, tables, func(t rules.Target) error {
				t.Via = append([]string{m.String()}, t.Via...)
				return a.take(t)
			}); err != nil {
				return err
			}
		}
		return nil
	}
	return w.targets(msg, m, tables, a.take)
}

// targets gives those of an address: the content filter, or what the tables have.
func (w *worker) targets(msg *message, m address.Mailbox, tables *rules.Tables, give func(rules.Target) error) error {
	if f := msg.policy.filter; f != nil {
		if msg.trace != nil {
			msg.trace(rules.Step{Address: m.String(), Table: "CONTENTFILTER", Result: f.Channel + "!" + f.Host})
		}
		return give(tables.Routed(m, f.Channel, f.Host))
	}
	return tables.Resolve(msg.context(), rules.Query{Recipient: m, Batch: msg.batch, Report: msg.report, Trace: msg.trace}, give)
}

// resolveFor has the tables resolve an address that a program gave.
func (w *worker) resolveFor(msg *message, to string, tables *rules.Tables, give func(rules.Target) error) error {
	m, err := address.Parse(to)
	if err != nil {
		return &rules.Trouble{Why: "policy", Err: err} // it was parsed when it was made
	}
	return w.targets(msg, m, tables, give)
}

// archive gives the message to further addresses. Its sender has not named them, and does
// not hear of them.
func (w *worker) archive(msg *message, list []string, variant int, tables *rules.Tables, give addFunc) error {
	for _, other := range list {
		to := &envelope.Recipient{Address: other, DSN: "NOTIFY=NEVER"}
		if msg.next != nil {
			msg.next(to)
		}
		a := newExpansion(msg, to, address.Mailbox{}, give)
		a.variant, a.keep = variant, true
		if err := w.resolveFor(msg, other, tables, a.take); err != nil {
			return err
		}
		if err := a.end(); err != nil {
			return err
		}
	}
	return nil
}

// IsFrozen returns the *Frozen in an error.
func IsFrozen(err error) (*Frozen, bool) {
	f := (*Frozen)(nil)
	return f, errors.As(err, &f)
}
