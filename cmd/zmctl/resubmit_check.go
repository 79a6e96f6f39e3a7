package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/admin/whatif"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/ui/text"
)

// targetsShown is how many targets of a recipient are told.
const targetsShown = 5

// checkAside asks the router what would become of each message now, and moves nothing.
func checkAside(c *cli.Context, from *act.Aside) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	list, err := from.Find(c.Context, view.New(po, time.Now()))
	if err == nil {
		err = asUsage(from.Missing("resubmit"))
	}
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(c.App.Writer, "nothing in "+from.Dir()+"/ matches")
		return nil
	}
	engine, err := whatif.Open(settings)
	if err != nil {
		return err
	}
	defer engine.Close() // it wrote nothing
	out := text.NewStream(c.App.Writer)
	lines := text.JSONLines(out)
	bar := newProgress(c, "check", len(list))
	sum := map[string]int{}
	for _, f := range list {
		var v *route.Explanation
		if v, err = engine.ExplainFile(c.Context, settings.PostOffice(), from.Dir()+"/"+f.Name); err != nil {
			break
		}
		sum[v.Verdict]++
		bar.Step()
		switch {
		case c.Bool("json"):
			err = lines.Encode(v)
		case !c.Bool("quiet") && !bar.Alone(c.App.Writer):
			err = printVerdict(out, v, f)
		}
		if err = errors.Join(err, out.Tick()); err != nil {
			break
		}
	}
	bar.End()
	if err == nil && !c.Bool("json") {
		printVerdicts(out, sum)
	}
	if err = text.Quiet(errors.Join(err, out.Flush())); err == nil && sum[route.VerdictRouted] < len(list) {
		return cli.Exit("", 1)
	}
	return err
}

func printVerdicts(w io.Writer, sum map[string]int) {
	var parts []string
	n := 0
	for _, word := range slices.Sorted(maps.Keys(sum)) {
		parts = append(parts, fmt.Sprintf("%d %s", sum[word], human.Clean(word)))
		n += sum[word]
	}
	// Trouble of the writer is met when it is flushed.
	fmt.Fprintf(w, "of %s now: %s; nothing was moved\n", human.Count(n, "message"), strings.Join(parts, ", "))
}

func printVerdict(w io.Writer, v *route.Explanation, f act.AsideMessage) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s", f.Name, f.ID, human.Clean(v.Verdict))
	if v.Why != "" {
		b.WriteString(" (" + human.Clean(v.Why) + ")")
	}
	if v.Reason != "" {
		b.WriteString(": " + human.Cut(human.Clean(view.OneLine(v.Reason)), 500))
	}
	b.WriteByte('\n')
	for i := range v.Recipients {
		r := v.Recipients[i]
		fmt.Fprintf(&b, "    <%s>", human.Clean(r.Address))
		if r.Verdict != "" && r.Verdict != v.Verdict {
			b.WriteString("  " + human.Clean(r.Verdict))
		}
		if r.Reason != "" && r.Reason != v.Reason {
			b.WriteString(": " + human.Cut(human.Clean(view.OneLine(r.Reason)), 300))
		}
		for k, t := range r.Targets[:min(len(r.Targets), targetsShown)] {
			sep := "  to "
			if k > 0 {
				sep = ", "
			}
			b.WriteString(sep + human.Clean(t.Channel+"/"+t.Host+" "+t.User))
		}
		if n := len(r.Targets) - targetsShown; n > 0 {
			fmt.Fprintf(&b, " and %d more", n)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
