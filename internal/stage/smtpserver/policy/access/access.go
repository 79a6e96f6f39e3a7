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
	Now    func() time.Time
	Log    *slog.Logger
}

// Rules are the postmaster's, as the file has them now. Many goroutines may use them.
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
	}, config.FileOptions{Now: o.Now, Log: o.Log})
	if err != nil {
		_ = r.sources.close() // nothing was asked yet
		return nil, err
	}
	return r, nil
}

// Close ends the use of the tables that rules name.
func (r *Rules) Close() error { return r.sources.close() }

// Empty tells that there are no rules now.
func (r *Rules) Empty() bool { return len(r.current()) == 0 }

func (r *Rules) current() []*rule {
	if r.file == nil {
		return nil
	}
	return r.file.Current().rules
}

// Decision is what the rules say of one recipient.
type Decision struct {
	Verdict
	Rule string // as it stands in the file; "": what holds without one
	// Pending names the rules that wait for the content, and what holds if none of them
	// does. Two recipients of a message with the same Pending have the same verdict when
	// the content is known; "": nothing waits, the verdict stands.
	Pending string
}

// ByDefault is who decides when no rule does.
const ByDefault = "default"

// Decide tells what becomes of the recipient in f. The first rule that fits decides.
// While the content is not known the verdict is Accept if a rule may still take the
// recipient that waits for it. An error means that nobody knows now.
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
			// A rule that forgot to say to whom is none that opens a relay.
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

// takes tells the actions that take a message.
func (r *rule) takes() bool {
	return r.kind == kindAccept || r.kind == kindRelay || r.kind == kindFreeze
}

// mayTake tells whether a rule may take the recipient in f.
func (r *rule) mayTake(ctx context.Context, f *Facts) (bool, error) {
	if f.Trusted || f.Local || r.kind == kindRelay {
		return true, nil
	}
	return r.names(ctx, f)
}

// byDefault is what holds without a rule: clients in our networks and those who have
// authenticated send anywhere, all others to our domains.
func byDefault(f *Facts) Verdict {
	if f.Trusted || f.Local {
		return Verdict{Action: Accept, By: ByDefault}
	}
	return Verdict{Action: Reject, Code: 550, Status: status.Code{Class: 5, Subject: 7, Detail: 1}, Text: "Relaying denied", By: ByDefault}
}

// settle ends a decision that rules are pending for.
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

// MayETRN tells whether a rule lets the client in f start the queue of a host: one with
// the action etrn whose to= is the host's, if it has one.
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

// SomeETRN tells whether there are queues that a rule lets the client in f start.
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
