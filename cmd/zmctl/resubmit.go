package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/admin/whatif"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/ui/text"
)

func resubmitCommand() *cli.Command {
	return &cli.Command{
		Name:      "resubmit",
		Usage:     "return deferred messages to the router",
		UsageText: "zmctl resubmit [flags] --all | NAME... | ID... | CAUSE...\n   zmctl resubmit [flags] --from|--to|--cause|--older|... VALUE, or --where EXPRESSION\n   zmctl resubmit --check ...\n   zmctl resubmit",
		Description: `Moves messages from deferred/ to the router, where they are routed from the start; if the
cause still exists they come back. Routers do this automatically at intervals (RESUBMIT in
zmailer.conf); this command does it at once. NAME is the name of a file in deferred/, like
10117782.users; ID is a spool ID; CAUSE is the part of the name after the dot, and may contain *
and ?. Without arguments the command lists the messages, with the reasons.

    zmctl resubmit
    zmctl resubmit --check users
    zmctl resubmit users
    zmctl resubmit --from @shop.example --older 1h
    zmctl resubmit --all

With --check the router reports the result for each message, and nothing is moved.

Messages keep their age, so they are older than new mail, and routers take the oldest first. So
that new mail does not have to wait, at most --pace messages wait for a running router at a
time, and if ROUTERDIRS names further directories, messages that were not named by NAME or ID go
to the last of them. If as many as --pace have come back in a row, the cause still exists: the
command stops and prints the reason.

Exit codes: 0 done, 1 some messages were not moved, and are printed, 64 no such message, and none
was moved, 75 stopped because messages come back. With --check: 0 all would be routed, 1 some
would not.
` + selectorHelp,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "check", Usage: "print the routing of each, and move nothing"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "print which messages would be moved, and move nothing"},
			paceFlag(),
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the totals only"},
			&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
			reasonFlag(),
			allFlag(),
		}, selectorFlags()...),
		Action: runResubmit,
	}
}

func runResubmit(c *cli.Context) error {
	from, err := newAside(c, postoffice.Deferred)
	if err != nil {
		return err
	}
	if c.Int("pace") < 0 {
		return cli.Exit("zmctl resubmit --pace: it must not be negative", config.ExitUsage)
	}
	if from.Empty() && !c.Bool("check") {
		n, err := listAside(c, from)
		if err == nil && !c.Bool("json") && n > 0 {
			fmt.Fprintln(c.App.Writer, "to resubmit them, name them, or use --all")
		}
		return err
	}
	if c.Bool("check") {
		return checkAside(c, from)
	}
	return actAside(c, act.Resubmit, from, false)
}

// checkAside asks the router what would become of each message now, and moves nothing.
func checkAside(c *cli.Context, from *act.Aside) error {
	settings, err := lastgood.Accepted(c)
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
			err = text.PrintVerdict(out, v, f)
		}
		if err = errors.Join(err, out.Tick()); err != nil {
			break
		}
	}
	bar.End()
	if err == nil && !c.Bool("json") {
		text.PrintVerdicts(out, sum)
	}
	if err = text.Quiet(errors.Join(err, out.Flush())); err == nil && sum[route.VerdictRouted] < len(list) {
		return cli.Exit("", 1)
	}
	return err
}
