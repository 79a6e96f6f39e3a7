package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy/dnsq"
	"zmailer/internal/table"
)

// Options say where the rules are.
type Options struct {
	Path      string            // of the file access; "": not used. It may be missing
	Dir       string            // relative paths in it start here
	Directory *config.Directory // Dir, for all that look for files there; may be nil
	Source    table.Options     // what tables that are asked have in common
	Keeper    config.Keeper     // may be nil
	// Subaddress are the characters of which one parts user and tag (SUBADDRESS); "": there are no
	// tags.
	Subaddress string
	Now        func() time.Time
	Log        *slog.Logger

	// What restrictions ask; nothing is asked without one.
	DNS      *dnsq.Client
	IsLocal  func(context.Context, address.Mailbox) (bool, error)
	Lists    bool          // there are DNSBL_SITES
	ListTime time.Duration // of a DNS list; 0: DefaultListTime
	// Address finds out whether there is anybody behind an address: by our own tables or, with
	// probe, for addresses elsewhere by asking the next hop. An error means that a table cannot
	// be asked now; nil: it cannot be used.
	Address func(ctx context.Context, f *Facts, m address.Mailbox, probe bool) (Deliverability, error)
	// Greylist decides for the action greylist; nil: it cannot be used.
	Greylist func(context.Context, *Facts) (Verdict, error)
}

func (o *Options) logger() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}

// Rules are the rules as the file has them now. They may be used by many goroutines.
type Rules struct {
	file    *config.File[*ruleset] // nil: there are none
	sources *sources
}

// Open reads the rules. Its errors are *config.Error.
func Open(o Options) (*Rules, error) {
	r := &Rules{sources: &sources{o: o, open: map[string]set{}}}
	if o.Path == "" {
		return r, nil
	}
	var err error
	r.file, err = config.OpenFile(o.Path, func(name string, text []byte) (*ruleset, error) {
		return parse(name, text, r.sources)
	}, config.FileOptions{Directory: o.Directory, Keeper: o.Keeper, Now: o.Now, Log: o.Log})
	if err != nil {
		_ = r.sources.close() // nothing was asked yet
		return nil, err
	}
	return r, nil
}

// Close closes the tables that rules name.
func (r *Rules) Close() error { return r.sources.close() }

// Empty reports whether there are no rules now.
func (r *Rules) Empty() bool { return len(r.current()) == 0 }

// Unchecked returns warnings of rules with results of checks that are not made: made has those that
// are.
func (r *Rules) Unchecked(made map[string]bool) error {
	var list []error
	for _, one := range r.current() {
		for i := range one.conds {
			key := one.conds[i].key
			check := key
			if key == "policy" {
				check = "dmarc"
			}
			if slices.Contains([]string{"spf", "dkim", "dmarc"}, check) && !made[check] {
				list = append(list, &config.Error{File: r.sources.o.Path, Line: one.line, Warning: true,
					Reason: key + "= is the result of a check that is not made: its rule has no effect", Remedy: "add " + check + " to CHECKS (docs/filters.md)"})
				break
			}
		}
	}
	return errors.Join(list...)
}

func (r *Rules) current() []*rule {
	if r.file == nil {
		return nil
	}
	return r.file.Current().rules
}

// Decision is the result of the rules for one recipient.
type Decision struct {
	Verdict
	Rule string // the rule's text in the file; "": the default
	// Pending names the rules that wait for the content, and the verdict if none of them
	// matches. Two recipients of a message with the same Pending have the same verdict when
	// the content is known. "": nothing waits, the verdict is final.
	Pending string
	// Effects and Warnings are of the rules that were looked at.
	Effects  []Effect
	Warnings []Warning
}

// ByDefault is Verdict.By when no rule matches.
const ByDefault = "default"

// Decide decides about the recipient in f: the first rule that matches counts.
// While the content is not known the verdict is Accept if a rule that waits for it may still
// accept the recipient. An error means that a table cannot be asked now.
func (r *Rules) Decide(ctx context.Context, f *Facts) (Decision, error) {
	return decision(ctx, r.current(), f)
}

func decision(ctx context.Context, list []*rule, f *Facts) (Decision, error) {
	var d Decision
	takes := false                 // a rule that waits may take the recipient
	var ifPermit, ifReject Verdict // of DEFER_IF_PERMIT and DEFER_IF_REJECT
	var ruleOf string
	for _, x := range list {
		if x.kind == kindETRN || x.state != "" {
			continue
		}
		a, out, err := x.decide(ctx, f)
		if err != nil {
			return Decision{}, fmt.Errorf("%s: %w", x.verdict.By, err)
		}
		f.trace(x, a, &out)
		if a == no {
			continue
		}
		if a == later {
			d.Pending += strconv.Itoa(x.line) + ","
			takes = takes || x.takes()
			continue
		}
		d.note(x, &out)
		switch v := out.verdict; {
		case v.Action == None:
		case out.ifPermit:
			if ifPermit.Action == None {
				ifPermit, ruleOf = v, x.text
			}
		case out.ifReject:
			if ifReject.Action == None {
				ifReject = v
			}
		default:
			d.Verdict, d.Rule = v, x.text
			return d.conclude(takes, ifPermit, ifReject, ruleOf), nil
		}
	}
	d.Verdict = byDefault(f)
	return d.conclude(takes, ifPermit, ifReject, ruleOf), nil
}

// decide returns whether the rule matches, and what it decides then.
func (r *rule) decide(ctx context.Context, f *Facts) (answer, outcome, error) {
	a, err := r.holds(ctx, f)
	if err != nil || a == no {
		return no, outcome{}, err
	}
	if a == yes && r.test != nil {
		out, err := r.ask(ctx, f)
		if err != nil || out == (outcome{}) {
			return no, outcome{}, err
		}
		if out.verdict.Action == Accept {
			// OK does not make an open relay.
			if may, err := r.mayTake(ctx, f); err != nil || !may {
				return no, outcome{}, err
			}
		}
		return yes, out, nil
	}
	if r.takes() {
		// A rule without to= does not make an open relay.
		if may, err := r.mayTake(ctx, f); err != nil || !may {
			return no, outcome{}, err
		}
	}
	return a, outcome{verdict: r.verdict}, nil
}

// ask asks a restriction, if it was not asked before.
func (r *rule) ask(ctx context.Context, f *Facts) (outcome, error) {
	if r.test.once {
		for _, known := range f.answers {
			if known.line == r.line {
				return known.out, nil
			}
		}
	}
	out, err := r.test.check(ctx, f)
	if err != nil {
		return out, err
	}
	if out.verdict.Action != None {
		out.verdict = r.refusedBy(&out)
	}
	if r.test.once {
		// What it does to the message and to the log it does once.
		f.answers = append(f.answers, answered{r.line, outcome{verdict: out.verdict, ifPermit: out.ifPermit, ifReject: out.ifReject}})
	}
	return out, nil
}

// note takes what a rule does beside deciding.
func (d *Decision) note(r *rule, out *outcome) {
	// As in Postfix DEFER_IF_REJECT counts under warn_if_reject: by itself it refuses nothing.
	if r.warn && !out.ifReject && (out.verdict.Action == Reject || out.verdict.Action == Defer) {
		code, st, text := out.verdict.Reply()
		d.Warnings = append(d.Warnings, Warning{r.verdict.By, fmt.Sprintf("%d %s %s", code, st, text)})
		*out = outcome{}
		return
	}
	if out.warning != "" {
		d.Warnings = append(d.Warnings, Warning{r.verdict.By, out.warning})
	}
	if e := out.effect; e.Kind != 0 {
		e.By = r.verdict.By
		d.Effects = append(d.Effects, e)
	}
}

// OnlyOf leaves out the effects and warnings of rules that are not named in another decision's
// Pending.
func (d *Decision) OnlyOf(pending string) {
	other := func(by string) bool {
		line, _ := strings.CutPrefix(by, "access:")
		return !strings.Contains(","+pending, ","+line+",")
	}
	d.Effects = slices.DeleteFunc(d.Effects, func(e Effect) bool { return other(e.By) })
	d.Warnings = slices.DeleteFunc(d.Warnings, func(w Warning) bool { return other(w.By) })
}

// conclude completes a decision.
func (d Decision) conclude(takes bool, ifPermit, ifReject Verdict, rule string) Decision {
	switch {
	case (d.Action == Accept || d.Action == Freeze) && ifPermit.Action != None:
		d.Verdict, d.Rule, d.Pending = ifPermit, rule, ""
		return d
	case d.Action == Reject && ifReject.Action != None:
		d.Verdict = ifReject
	}
	return d.settle(takes)
}

// Message decides about a message as a whole in a protocol state, DATA or END-OF-MESSAGE.
// None: no rule refuses it.
func (r *Rules) Message(ctx context.Context, f *Facts, state string) (d Decision, err error) {
	var ifPermit Verdict
	for _, x := range r.current() {
		if x.state != state {
			continue
		}
		a, out, err := x.decide(ctx, f)
		if err != nil {
			return Decision{}, fmt.Errorf("%s: %w", x.verdict.By, err)
		}
		f.trace(x, a, &out)
		if a != yes {
			continue
		}
		d.note(x, &out)
		switch {
		case out.ifPermit:
			ifPermit = out.verdict
		case out.ifReject, out.verdict.Action == None:
		case out.verdict.Action == Accept:
			d.Verdict = ifPermit
			return d, nil
		default:
			d.Verdict = out.verdict
			return d, nil
		}
	}
	d.Verdict = ifPermit
	return d, nil
}

// Asks reports whether a rule is looked at in a protocol state.
func (r *Rules) Asks(state string) bool {
	return slices.ContainsFunc(r.current(), func(x *rule) bool { return x.state == state })
}

// HasTests reports whether a rule has a restriction, which may change messages.
func (r *Rules) HasTests() bool {
	return slices.ContainsFunc(r.current(), func(x *rule) bool { return x.test != nil })
}

// trace reports a rule's result to who wants to know.
func (f *Facts) trace(r *rule, a answer, out *outcome) {
	if f.Trace == nil {
		return
	}
	s := Step{Line: r.line, Rule: r.text}
	switch v := out.verdict; {
	case a == no:
		s.Result = "no"
	case a == later:
		s.Result = "waits for the content"
	case v.Action == Reject, v.Action == Defer:
		code, st, text := v.Reply()
		s.Result = fmt.Sprintf("%s: %d %s %s", v.Action, code, st, text)
		if out.ifPermit {
			s.Result += " (if no later rule rejects)"
		}
		if r.warn && !out.ifReject {
			s.Result = "would " + s.Result
		}
	case out.effect.Kind != 0:
		s.Result = out.effect.String()
	case out.warning != "":
		s.Result = "warning: " + out.warning
	default:
		s.Result = v.Action.String()
	}
	f.Trace(s)
}

// takes reports whether the rule accepts a message.
func (r *rule) takes() bool {
	return r.kind == kindAccept || r.kind == kindRelay || r.kind == kindFreeze
}

// mayTake reports whether a rule may accept the recipient in f.
func (r *rule) mayTake(ctx context.Context, f *Facts) (bool, error) {
	if f.Trusted || f.Local || r.kind == kindRelay {
		return true, nil
	}
	return r.names(ctx, f)
}

// byDefault returns the verdict without a rule: clients in our networks and authenticated
// users send anywhere, all others to local domains.
func byDefault(f *Facts) Verdict {
	if f.Trusted || f.Local {
		return Verdict{Action: Accept, By: ByDefault}
	}
	return Verdict{Action: Reject, Code: 550, Status: status.Code{Class: 5, Subject: 7, Detail: 1}, Text: "Relaying denied", By: ByDefault}
}

// settle completes a decision for which rules are pending.
func (d Decision) settle(takes bool) Decision {
	if d.Pending == "" {
		return d
	}
	refused := d.Action == Reject || d.Action == Defer
	if refused && !takes {
		// Whatever the content is.
		d.Pending = ""
		return d
	}
	d.Pending += d.Action.String()
	if refused {
		d.Pending += d.By
	}
	d.Verdict = Verdict{Action: Accept, By: d.By}
	return d
}

// MayETRN reports whether a rule lets the client in f start the queue of a host: one with
// the action etrn and the host in its to=, if it has one.
func (r *Rules) MayETRN(ctx context.Context, f *Facts) (bool, error) {
	for _, x := range r.current() {
		if x.kind != kindETRN {
			continue
		}
		a, err := x.holds(ctx, f)
		if err != nil {
			return false, fmt.Errorf("%s: %w", x.verdict.By, err)
		}
		if a == yes {
			return true, nil
		}
	}
	return false, nil
}

// SomeETRN reports whether a rule lets the client in f start some queue.
func (r *Rules) SomeETRN(ctx context.Context, f *Facts) bool {
	for _, x := range r.current() {
		if x.kind != kindETRN {
			continue
		}
		rest := rule{}
		for _, c := range x.conds {
			if c.key != "to" {
				rest.conds = append(rest.conds, c)
			}
		}
		if a, err := rest.holds(ctx, f); err != nil || a == yes {
			return true
		}
	}
	return false
}
