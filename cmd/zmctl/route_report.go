package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// clauseService is what the scheduler's program says of a channel and host.
type clauseService struct {
	Channel string `json:"channel"`
	Host    string `json:"host"`
	Served  bool   `json:"served"`
	Text    string `json:"text"`
}

// askServices asks the scheduler's program who serves some channels and hosts by a
// configuration. What is wrong with that it says itself.
func askServices(ctx context.Context, env []string, stderr io.Writer, pairs []view.Thread) (map[view.Thread]clauseService, error) {
	path, err := service.Program("scheduler")
	if err != nil {
		return nil, cli.Exit(err, config.ExitOSErr)
	}
	var in, out bytes.Buffer
	for _, t := range pairs {
		fmt.Fprintf(&in, "%s %s\n", t.Channel, t.Host)
	}
	cmd := exec.CommandContext(ctx, path, "--print-services")
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return nil, cli.Exit("", exit.ExitCode())
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	all := map[view.Thread]clauseService{}
	for line := range strings.Lines(out.String()) {
		var s clauseService
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			return nil, fmt.Errorf("read what scheduler --print-services says: %w", err)
		}
		all[view.Thread{Channel: s.Channel, Host: s.Host}] = s
	}
	return all, nil
}

// report prints what was found; listing is what could not be listed.
func (x *whatIf) report(c *cli.Context, candidate []string, listing error) error {
	x.sum.settle()
	services, err := askServices(c.Context, candidate, c.App.ErrWriter, x.sum.pairs())
	if err != nil {
		return err
	}
	for _, g := range x.sum.Groups {
		if s, known := services[g.pair]; known && !g.mixed && !s.Served {
			g.NotServed = s.Text
		}
	}
	if c.Bool("json") {
		err = printJSON(c.App.Writer, x.sum)
	} else {
		err = x.sum.print(c.App.Writer, c.Bool("all"))
	}
	code := 0
	switch {
	case x.sum.Unread > 0 || listing != nil:
		code = exitPartial
	case x.sum.Differ > 0:
		code = exitDiffers
	}
	if err == nil && code > 0 {
		text := ""
		if listing != nil {
			text = listing.Error()
		}
		return cli.Exit(text, code)
	}
	return err
}

// heading says what the groups of a kind have in common.
func heading(kind string) string {
	switch kind {
	case wouldFail:
		return "would fail, and the sender get a report"
	case wouldAside:
		return "would be set aside in postman/"
	case wouldFreeze:
		return "would be frozen until a person thaws them"
	case wouldDefer:
		return "would wait in deferred/: a lookup fails"
	case wouldDrop:
		return "would get nothing"
	case wouldAdd:
		return "would get the mail besides"
	case wouldExpand:
		return "would be others: an alias, list or .forward leads elsewhere"
	case wouldMove:
		return "would go another way"
	case wouldAct:
		return "would be delivered with another privilege"
	case wouldReport:
		return "would have reports go to another sender"
	case wouldWork:
		return "would go out"
	}
	return "cannot be told"
}

// stateOf is the state in which a recipient would be whose mail goes otherwise: by it the
// heading is coloured.
func stateOf(kind string) string {
	switch kind {
	case wouldFail, wouldDrop:
		return view.Failed
	case wouldAside, wouldFreeze, wouldUnknown:
		return view.Frozen
	case wouldDefer:
		return view.Waiting
	case wouldWork:
		return view.Delivered
	}
	return ""
}

// shownGroups is how many groups of a kind are printed without --all.
const shownGroups = 20

func (s *routeSum) print(w io.Writer, all bool) error {
	p := term.For(w)
	var b strings.Builder
	fmt.Fprintf(&b, "%s with %s: %d as they are, %d would differ", human.Count(s.Messages, "message"), human.Count(s.Recipients, "open recipient"), s.Same, s.Differ)
	if s.Already > 0 {
		fmt.Fprintf(&b, ", %d by the present configuration as well", s.Already)
	}
	b.WriteString("\n")
	if s.Moved > 0 {
		fmt.Fprintf(&b, "%s moved on meanwhile\n", human.Count(s.Moved, "message"))
	}
	if s.Unread > 0 {
		b.WriteString(p.Red(human.Count(s.Unread, "message") + " could not be read: zmctl check tells which\n"))
	}
	last, printed, left := routeKey{}, 0, 0
	more := func() {
		if left > 0 {
			fmt.Fprintf(&b, "  and %s; --all shows them\n", human.Count(left, "more group"))
		}
		printed, left = 0, 0
	}
	for _, g := range s.Groups {
		if key := (routeKey{kind: g.Kind, present: g.Already}); key != last {
			more()
			if g.Already && !last.present {
				b.WriteString("\nBy the present configuration as well: it has changed since they were routed, or they were rerouted\n")
			}
			fmt.Fprintf(&b, "\n%s\n", p.State(stateOf(g.Kind), heading(g.Kind)))
			last = key
		}
		if printed >= shownGroups && !all {
			left++
			continue
		}
		printed++
		g.print(&b, p)
	}
	more()
	_, err := io.WriteString(w, b.String())
	return err
}

func (g *routeGroup) print(b *strings.Builder, p term.Paint) {
	in := ""
	if g.Dir != "" {
		in = " in " + g.Dir + "/"
	}
	of := ""
	if g.Of != "" {
		of = "<" + g.Of + ">: "
	}
	fmt.Fprintf(b, "  %s%s → %s   %s in %s%s\n", of, g.From, g.To, human.Count(g.Recipients, "recipient"), human.Count(g.Messages, "message"), in)
	if g.NotServed != "" {
		fmt.Fprintf(b, "    %s\n", p.Red("NOT SERVED: "+g.NotServed))
	}
	var parts []string
	left := g.More
	for i, d := range g.Domains {
		if i >= shownDomains {
			left += d.Recipients
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %d", human.Clean(d.Domain), d.Recipients))
	}
	if left > 0 {
		parts = append(parts, fmt.Sprintf("other domains %d", left))
	}
	fmt.Fprintf(b, "    %s\n", strings.Join(parts, ", "))
	for _, e := range g.Examples {
		fmt.Fprintf(b, "    %s  <%s>", p.Bold(e.ID), e.Address)
		if e.Detail != "" {
			fmt.Fprintf(b, "  %s", e.Detail)
		}
		b.WriteByte('\n')
	}
}

// shownDomains is how many domains of a group are named.
const shownDomains = 5
