package access

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
)

// Options say where the rules are.
type Options struct {
	Path   string        // of the file access; "": there is none. It may be missing
	Dir    string        // relative paths in it start here
	Source table.Options // what tables that are asked have in common
	Keeper config.Keeper // may be nil
	Now    func() time.Time
	Log    *slog.Logger
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
		return parse(name, text, r.sources.set)
	}, config.FileOptions{Keeper: o.Keeper, Now: o.Now, Log: o.Log})
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
	takes := false // a rule that waits may take the recipient
	for _, x := range list {
		if x.kind == kindETRN {
			continue
		}
		a, err := x.holds(ctx, f)
		if err != nil {
			return Decision{}, fmt.Errorf("%s: %w", x.verdict.By, err)
		}
		if a == no {
			continue
		}
		if x.takes() {
			// A rule without to= does not make an open relay.
			if may, err := x.mayTake(ctx, f); err != nil {
				return Decision{}, fmt.Errorf("%s: %w", x.verdict.By, err)
			} else if !may {
				continue
			}
		}
		if a == later {
			d.Pending += strconv.Itoa(x.line) + ","
			takes = takes || x.takes()
			continue
		}
		d.Verdict, d.Rule = x.verdict, x.text
		return d.settle(takes), nil
	}
	d.Verdict = byDefault(f)
	return d.settle(takes), nil
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
