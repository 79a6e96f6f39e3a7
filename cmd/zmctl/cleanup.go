package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
)

func cleanupCommand() *cli.Command {
	return &cli.Command{
		Name:      "cleanup",
		Usage:     "drop what has been kept for long enough, and tell what waits for a person",
		UsageText: "zmctl cleanup [--dry-run] [--json | --quiet]",
		Description: `Drops what the daemons drop by themselves every few minutes: copies in postman/ older than
POSTMANKEEP, messages in removed/ and orders older than REMOVEDKEEP, and texts beside
messages that have gone on. Then it tells what no age removes: accepted mail in deferred/
and freezer/, only copies in postman/, and quarantine/. zmctl resubmit, zmctl freezer and
zmctl postman are for those; what is in quarantine/ is removed with rm.

    zmctl cleanup --dry-run

Exit codes: 0 done, 1 something could not be dropped, 64 bad arguments.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "say what would be dropped, and drop nothing"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the sums alone, and what could not be dropped"},
		},
		Action: runCleanup,
	}
}

// cleanup is what a cleanup has found.
type cleanup struct {
	Dropped []cleaned `json:"dropped"`
	Kept    []waits   `json:"kept"`
	DryRun  bool      `json:"dry_run,omitempty"`
}

// cleaned is a file that was dropped, or would be.
type cleaned struct {
	File string `json:"file"`
	Text string `json:"text"`
	Left string `json:"left,omitempty"` // why it could not be
}

// waits is what of a directory waits for a person.
type waits struct {
	Directory     string `json:"directory"`
	State         string `json:"state"`
	Files         int    `json:"files"`
	OldestSeconds int64  `json:"oldest_seconds"`
}

func runCleanup(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	postmanKeep, err := settings.Duration("POSTMANKEEP", postoffice.DefaultPostmanKeep)
	if err != nil {
		return err
	}
	po, removedKeep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	bar := newCounter(c, "cleanup", "files")
	po.OnRemove(bar.Step)
	x, err := tidy(po, time.Now(), postmanKeep, removedKeep, c.Bool("dry-run"))
	bar.End()
	if c.Bool("json") {
		err = errors.Join(err, text.PrintJSON(c.App.Writer, x))
	} else {
		err = errors.Join(err, x.print(c.App.Writer, c.Bool("quiet")))
	}
	if err == nil && slices.ContainsFunc(x.Dropped, func(d cleaned) bool { return d.Left != "" }) {
		return cli.Exit("", 1)
	}
	return err
}

// tidy drops what is old enough, unless dry.
func tidy(po *postoffice.PostOffice, now time.Time, postmanKeep, removedKeep time.Duration, dry bool) (*cleanup, error) {
	x := &cleanup{Dropped: []cleaned{}, Kept: []waits{}, DryRun: dry}
	copies, err := po.Aside.SweepCopies(now, postmanKeep, dry)
	x.swept(copies)
	err = errors.Join(err, x.removed(po, now, removedKeep), x.orders(po, now, removedKeep))
	texts, terr := po.Aside.SweepReasons(now, dry)
	x.swept(texts)
	return x, errors.Join(err, terr, x.wait(view.New(po, now)))
}

func (x *cleanup) swept(list []postoffice.Recovered) {
	for _, r := range list {
		d := cleaned{File: r.Name, Text: r.Detail}
		if r.Action == postoffice.Unreadable {
			d = cleaned{File: r.Name, Left: r.Detail}
		}
		x.Dropped = append(x.Dropped, d)
	}
}

// removed drops what is too old in removed/.
func (x *cleanup) removed(po *postoffice.PostOffice, now time.Time, keep time.Duration) error {
	if keep <= 0 {
		return nil
	}
	var list []postoffice.RemovedMessage
	var err error
	if x.DryRun {
		list, err = po.Removed.List()
		list = slices.DeleteFunc(list, func(m postoffice.RemovedMessage) bool { return now.Sub(m.Since) < keep })
	} else {
		list, err = po.Removed.Sweep(now, keep)
	}
	for _, m := range list {
		x.Dropped = append(x.Dropped, cleaned{File: postoffice.Removed + "/" + m.Name, Text: "removed from " + m.From + "/ at " + m.Since.Format(human.TimeFormat)})
	}
	return err
}

// orders drops what is too old in orders/.
func (x *cleanup) orders(po *postoffice.PostOffice, now time.Time, keep time.Duration) error {
	if keep <= 0 {
		return nil
	}
	list, err := po.Operations.List()
	if err != nil {
		return err
	}
	for _, id := range list {
		if now.Sub(id.Time()) >= keep {
			x.Dropped = append(x.Dropped, cleaned{File: postoffice.Orders + "/" + string(id), Text: "an order of " + id.Time().Local().Format(human.TimeFormat)})
		}
	}
	if x.DryRun {
		return nil
	}
	return po.Operations.Sweep(now, keep)
}

// wait counts what no age removes.
func (x *cleanup) wait(s *view.Spool) error {
	var errs []error
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman, postoffice.Quarantine} {
		if !s.Exists(dir) {
			continue
		}
		at := map[string]int{}
		errs = append(errs, s.EachFile(dir, func(f view.File) {
			state := s.StateIn(f)
			if view.IsReason(f) {
				return
			}
			i, ok := at[state]
			if !ok {
				i = len(x.Kept)
				at[state] = i
				x.Kept = append(x.Kept, waits{Directory: dir, State: state})
			}
			x.Kept[i].Files++
			x.Kept[i].OldestSeconds = max(x.Kept[i].OldestSeconds, int64(s.Now.Sub(f.Info.ModTime)/time.Second))
		}))
	}
	return errors.Join(errs...)
}

func (x *cleanup) print(w io.Writer, quiet bool) error {
	var b strings.Builder
	left := 0
	for _, d := range x.Dropped {
		if !quiet || d.Left != "" {
			fmt.Fprintf(&b, "%s: %s\n", human.Clean(d.File), human.Clean(d.Text))
		}
		if d.Left != "" {
			left++
			fmt.Fprintf(&b, "    left: %s\n", human.Clean(d.Left))
		}
	}
	done := "dropped"
	if x.DryRun {
		done = "would be dropped; nothing was"
	}
	fmt.Fprintf(&b, "%s %s\n", human.Count(len(x.Dropped)-left, "file"), done)
	for _, k := range x.Kept {
		fmt.Fprintf(&b, "%s/ keeps %d %s, the oldest since %s%s\n", k.Directory, k.Files, k.State, human.Span(time.Duration(k.OldestSeconds)*time.Second), forWhom(k))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// forWhom tells what is done with what is kept.
func forWhom(k waits) string {
	switch k.State {
	case view.StateDeferred:
		return ": zmctl resubmit"
	case view.StateFrozen:
		return ": zmctl freezer list"
	case view.StateSetAside:
		return ", only copies of accepted mail: zmctl postman list"
	case view.StateCopy:
		return ", copies that go after POSTMANKEEP"
	}
	return ": zmctl check tells"
}
