package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

func resubmitCommand() *cli.Command {
	return &cli.Command{
		Name:      "resubmit",
		Usage:     "give messages that the router put off back to it",
		UsageText: "zmctl resubmit [flags] all | NAME... | ID... | CAUSE...\n   zmctl resubmit [flags] --from|--to|--cause|--older|... VALUE, or --where EXPRESSION\n   zmctl resubmit --check ...\n   zmctl resubmit",
		Description: `Moves messages from deferred/ to the router, where they are routed from the start; if the
trouble is still there they come back. Routers do so by themselves after a while (RESUBMIT
in zmailer.conf); this does it at once. NAME is a file's name in deferred/, like
10117782.users; ID is a spool ID; CAUSE is what stands behind the dot, and may have * and
?. Without arguments it lists what could be moved, with the reasons.

    zmctl resubmit
    zmctl resubmit --check users
    zmctl resubmit users
    zmctl resubmit --from @shop.example --older 1h
    zmctl resubmit all

With --check the router says of each what would become of it now, and nothing is moved.

Messages keep their time, so they are older than new mail, and routers take the oldest
first. So that new mail does not wait for them no more than --pace lie before a running
router at a time, and when ROUTERDIRS names further directories what was not named by NAME
or ID goes to the last of them. When all of a pace have come back in a row nothing is
mended: it stops, and says why they came back.

Exit codes: 0 done, 1 some were not moved, and each is told, 64 there is no such message,
and none was moved, 75 it stopped because they come back. With --check: 0 all would be
routed, 1 some would not.
` + selectorHelp,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "check", Usage: "say what would become of each now, and move nothing"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "say which it would be about, and move nothing"},
			paceFlag(),
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the sum alone"},
			&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
			reasonFlag(),
		}, selectorFlags()...),
		Action: runResubmit,
	}
}

// resubmitVerb gives messages in deferred/ back.
func resubmitVerb() *verb {
	return &verb{name: "resubmit", done: "given back to the router",
		aside: map[string]func(*act, *view.Message) (string, error){view.StateDeferred: (*act).giveBack}}
}

func runResubmit(c *cli.Context) error {
	from, err := newAside(c, postoffice.Deferred)
	if err != nil {
		return err
	}
	if c.Int("pace") < 0 {
		return cli.Exit("zmctl resubmit --pace: less than nothing", config.ExitUsage)
	}
	if from.empty() && !c.Bool("check") {
		if err := listAside(c, from); err != nil {
			return err
		}
		if !c.Bool("json") && len(from.list) > 0 {
			fmt.Fprintln(c.App.Writer, "name them to resubmit, or say all")
		}
		return nil
	}
	if c.Bool("check") {
		return checkAside(c, from)
	}
	return actAside(c, resubmitVerb(), from)
}

// actAside has a verb act on what is meant in one directory.
func actAside(c *cli.Context, v *verb, from *aside) error {
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	now := time.Now()
	s := view.New(po, now)
	list, err := from.find(c.Context, s)
	if err == nil {
		err = from.missing(v.name)
	}
	if err != nil {
		return err
	}
	a := &act{c: c, v: v, po: po, out: newStream(c.App.Writer), sel: from.sel, from: from, keep: keep, now: now,
		met: map[string]bool{}, made: map[string]bool{}}
	if c.Bool("dry-run") {
		return quiet(a.dry(dryShown))
	}
	if v.asks && !from.named() && !c.Bool("yes") {
		if err := a.ask(); err != nil {
			return err
		}
	}
	if a.pace, err = newPace(c, po, from); err != nil {
		return err
	}
	a.progress = newProgress(c, v.name, len(list))
	err = errors.Join(a.all(), a.close())
	a.progress.end()
	stopped := errors.Is(err, errComeBack)
	if stopped {
		err = nil
	}
	err = errors.Join(quiet(err), quiet(a.end()))
	if err == nil && stopped {
		return a.pace.comeBack(len(list) - a.sum.messages)
	}
	return err
}

// giveBack gives a message that is put aside back to the router.
func (a *act) giveBack(m *view.Message) (string, error) {
	dir, name := m.File.Dir, m.File.Name
	// Before the router has it: what was thawed no policy freezes again.
	a.explain(dir, "", m)
	to, err := a.po.Aside.RecallTo(a.pace.to, dir, name, m.SpoolID)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", a.v.name, name, err)
	}
	a.pace.gave(m.SpoolID, dir+"/"+name)
	return m.File.Path() + " is " + to.Name + " now", nil
}

// explain writes down beside a message that it was frozen by this person, or, without
// what, that it was given back.
func (a *act) explain(dir, what string, m *view.Message) {
	switch {
	case what != "":
	case dir == postoffice.Freezer:
		what = postoffice.WasThawed
	case m.Reason != "":
		what = postoffice.WasResubmitted
	default:
		return
	}
	// That nothing could be written down is no reason to leave it.
	_ = a.po.Aside.Explain(dir, postoffice.Reason{ID: m.SpoolID, Time: time.Now(), Who: who(a.c.Context), What: what, Text: a.c.String("reason")})
}
