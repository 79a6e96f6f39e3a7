package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
)

// askLimit is how long the scheduler's program may take to answer.
const askLimit = 10 * time.Second

// aged warns of mail that its clause should have expired by now, or that is older
// than the person who asks wants it to be.
func (x *checker) aged() {
	seen := map[thread]bool{}
	var pairs []thread
	for _, m := range x.queues {
		for i := range m.Recipients {
			t := thread{m.Recipients[i].Channel, m.Recipients[i].Host}
			if m.Recipients[i].open() && !seen[t] {
				seen[t] = true
				pairs = append(pairs, t)
			}
		}
	}
	var expiry map[thread]time.Duration
	if x.older <= 0 && len(pairs) > 0 && x.expiry != nil {
		expiry = x.expiry(pairs)
	}
	findings := map[string]*finding{}
	for i := range x.findings {
		findings[x.findings[i].key] = &x.findings[i]
	}
	for _, m := range x.queues {
		if f := findings[m.Name]; f != nil {
			x.agedMessage(f, m, expiry)
		}
	}
}

// agedMessage adds to a finding what is too old in the message.
func (x *checker) agedMessage(f *finding, m *message, expiry map[thread]time.Duration) {
	age := x.now.Sub(m.Since)
	removal := m.parsed.Removal()
	if removal != nil {
		age -= removal.Away
	}
	for i := range m.Recipients {
		p := &m.Recipients[i]
		if !p.open() || p.State == frozen {
			continue
		}
		age := age - m.parsed.Orders().Of(p.offset).Away(m.Since, x.now, removal)
		limit, of := x.older, "as asked"
		if limit <= 0 {
			after, known := expiry[thread{p.Channel, p.Host}]
			// What is due now is expired by the scheduler in a moment.
			switch limit, of = after+x.stuck, "the expiry of its clause in scheduler.conf"; {
			case !known:
				limit, of = defaultOld+x.stuck, "the default expiry"
			case after == 0:
				continue // never
			}
		}
		if age <= limit {
			continue
		}
		r := report{finding: *f}
		r.wrong(tooOld, "")
		*f = r.finding
		f.Text += fmt.Sprintf(" <%s> is open after %s; %s is %s.", p.Address, human.Span(age), of, human.Span(limit))
		return
	}
}

// askExpiry asks the scheduler's program how long mail of these threads is tried by
// the configuration as it is now. What it does not tell is missing in the result.
func askExpiry(ctx context.Context, settings *config.Config, pairs []thread) map[thread]time.Duration {
	path, err := program("scheduler")
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--print-expiry")
	cmd.Env = environment(settings)
	var in, out bytes.Buffer
	for _, t := range pairs {
		fmt.Fprintf(&in, "%s %s\n", t.channel, t.host)
	}
	cmd.Stdin, cmd.Stdout = &in, &out
	if err := cmd.Run(); err != nil {
		return nil // an old one, or the configuration is broken: the default serves
	}
	answers := map[thread]time.Duration{}
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		if d, err := time.ParseDuration(f[2]); err == nil {
			answers[thread{f[0], f[1]}] = d
		}
	}
	return answers
}
