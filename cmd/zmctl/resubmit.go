package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/config"
	"zmailer/internal/postoffice"
)

func resubmitCommand() *cli.Command {
	return &cli.Command{
		Name:      "resubmit",
		Usage:     "give messages that the router set aside back to it",
		UsageText: "zmctl resubmit all | NAME... | ID...",
		Description: `Moves messages from deferred/ to router/, where they are routed from the start; if the
trouble is still there they come back. NAME is a file's name in deferred/, like
10117782.users; ID is a spool ID. Without arguments it lists what could be moved.

    zmctl resubmit all

Exit codes: 0 done, 1 some were not moved, and each is told, 64 there is no such message,
and none was moved.`,
		Action: runResubmit,
	}
}

func runResubmit(c *cli.Context) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := newSpool(po, time.Now())
	files, err := s.setAside()
	if err != nil {
		return err
	}
	if c.NArg() == 0 || len(files) == 0 && slices.Equal(c.Args().Slice(), []string{"all"}) {
		return listDeferred(c, s, files)
	}
	names, err := choose(files, c.Args().Slice())
	if err != nil {
		return cli.Exit(err, config.ExitUsage)
	}
	var errs []error
	for _, name := range names {
		a, err := po.Resubmit(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(c.App.Writer, "%s  deferred/%s is %s now\n", a.ID, name, a.Name)
	}
	return errors.Join(errs...)
}

// setAside lists deferred/, oldest first.
func (s *spool) setAside() ([]file, error) {
	files, err := s.list(postoffice.Deferred)
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(f file) bool { return s.kind(f).state == "" })
	slices.SortFunc(files, func(a, b file) int { return a.Info.ModTime.Compare(b.Info.ModTime) })
	return files, nil
}

func listDeferred(c *cli.Context, s *spool, files []file) error {
	for _, f := range files {
		if m, err := s.loadKind(f, s.kind(f)); err == nil {
			fmt.Fprint(c.App.Writer, f.Name, "  ")
			m.print(c.App.Writer, s.now)
		}
	}
	if len(files) == 0 {
		fmt.Fprintln(c.App.Writer, "deferred/ is empty")
		return nil
	}
	fmt.Fprintln(c.App.Writer, "name them to resubmit, or say all")
	return nil
}

// choose finds the files that the arguments name.
func choose(files []file, args []string) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	add := func(name string) {
		if !seen[name] {
			names = append(names, name)
		}
		seen[name] = true
	}
	for _, arg := range args {
		if arg == "all" {
			for _, f := range files {
				add(f.Name)
			}
			continue
		}
		id, iderr := postoffice.ParseSpoolID(arg)
		i := slices.IndexFunc(files, func(f file) bool {
			return f.Name == arg || iderr == nil && postoffice.IDOf(f.Info) == id
		})
		if i < 0 {
			return nil, fmt.Errorf("resubmit %s: there is no such message in deferred/", arg)
		}
		add(files[i].Name)
	}
	return names, nil
}
