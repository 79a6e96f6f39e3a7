package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
	ui "zmailer/internal/ui/text"
)

func newdbCommand() *cli.Command {
	return &cli.Command{
		Name:      "newdb",
		Usage:     "compile a table of the router",
		UsageText: "zmctl newdb [--kind TABLE] [--check] TABLE | FILE [OUT]",
		Description: `Reads the text form of a table and writes a compiled table, in which the cost of a lookup does
not depend on the number of entries. TABLE is aliases, fqdnaliases, routes, localnames or
masquerade: the file of that name beside zmailer.conf. FILE is any other file; --kind is
required unless it has one of these names. OUT is FILE.db by default.

    zmctl --config /etc/zmailer/zmailer.conf newdb aliases
    zmctl newdb --kind aliases /srv/shop/users /etc/zmailer/shop.db

Each entry is checked as the router checks it. An error is reported with file, line and
reason, and OUT is not changed. OUT is replaced atomically; routers use the new table from
their next lookup on. It gets the owner and mode of FILE.
ALIASES="db:/etc/zmailer/aliases.db" in zmailer.conf makes the router use it.

Exit codes: 0 done, 1 it could not be written, 64 bad arguments, 78 bad table.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "kind", Usage: "FILE is in the form of `TABLE`"},
			&cli.BoolFlag{Name: "check", Usage: "read and check the text form, and write nothing"},
		},
		Action: runNewdb,
	}
}

func runNewdb(c *cli.Context) error {
	if c.NArg() < 1 || c.NArg() > 2 {
		return cli.Exit("one table or file is required, and optionally the output file; see --help", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	kind, in, err := textForm(settings, c.Args().First(), text.Kind(c.String("kind")))
	if err != nil {
		return err
	}
	out := in + ".db"
	if c.NArg() == 2 {
		out = c.Args().Get(1)
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	bar := ui.NewPhaseBar(c.App.ErrWriter)
	defer bar.End()
	if c.Bool("check") {
		n, err := table.Check(kind, in, bar.Step)
		if err == nil {
			bar.End()
			fmt.Fprintf(c.App.Writer, "%s: %d %s\n", in, n, human.Plural(n, "entry", "entries"))
		}
		return err
	}
	made, err := table.Compile(kind, in, out, bar.Step)
	if err != nil {
		return err
	}
	bar.End()
	fmt.Fprintf(c.App.Writer, "%s: %d %s of %s, %d bytes\n", out, made.Entries, human.Plural(made.Entries, "entry", "entries"), in, made.Size)
	if name := strings.ToUpper(string(kind)); !inUse(settings, name, out) {
		fmt.Fprintf(c.App.Writer, "not in use yet: %s in zmailer.conf does not name db:%s\n", name, out)
	}
	return nil
}

func textForm(settings *config.Config, arg string, kind text.Kind) (text.Kind, string, error) {
	if kind != "" && !slices.Contains(text.Kinds(), kind) {
		return "", "", cli.Exit(fmt.Sprintf("--kind %s: it must be one of %v", kind, text.Kinds()), config.ExitUsage)
	}
	if slices.Contains(text.Kinds(), text.Kind(arg)) {
		path := settings.Path(arg)
		if path == "" {
			return "", "", cli.Exit(fmt.Sprintf("%s is a file beside zmailer.conf, but --config is not set; use ./%s for a file in this directory", arg, arg), config.ExitUsage)
		}
		if kind == "" {
			kind = text.Kind(arg)
		}
		return kind, path, nil
	}
	if kind == "" {
		base := filepath.Base(arg)
		kind = text.Kind(strings.TrimSuffix(base, filepath.Ext(base)))
		if !slices.Contains(text.Kinds(), kind) {
			return "", "", cli.Exit(fmt.Sprintf("the kind of table cannot be derived from the name of %s; set --kind to one of %v", arg, text.Kinds()), config.ExitUsage)
		}
	}
	path, err := filepath.Abs(arg)
	return kind, path, err
}

// inUse reports whether a setting names a compiled table.
func inUse(settings *config.Config, name, out string) bool {
	list, err := table.Split(settings.String(name, ""))
	return err == nil && slices.ContainsFunc(list, func(source string) bool {
		s, err := table.Parse(source, settings.Dir)
		return err == nil && s.Scheme == "db" && s.Rest == out
	})
}
