package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

func newdbCommand() *cli.Command {
	return &cli.Command{
		Name:      "newdb",
		Usage:     "compile a table of the router",
		UsageText: "zmctl newdb [--kind TABLE] [--check] TABLE | FILE [OUT]",
		Description: `Reads a table's text form and writes a compiled table, in which a key is found at the
same cost whether there are ten or a million. TABLE is aliases, fqdnaliases, routes, localnames
or masquerade: the file of that name beside zmailer.conf; FILE is any other, whose --kind is
told by its name if that is one of them. OUT is FILE.db unless it is given.

    zmctl --config /etc/zmailer/zmailer.conf newdb aliases
    zmctl newdb --kind aliases /srv/shop/users /etc/zmailer/shop.db

Each entry is checked as the router checks it; of an error, file, line and reason are
told, and OUT stays as it was. OUT is replaced in one step: routers read the old table or
the new one, and take the new one with their next lookup. Owner and mode are those of
FILE. ALIASES="db:/etc/zmailer/aliases.db" in zmailer.conf makes the router use it.

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
		return cli.Exit("want a table or a file, and where to if not beside it; --help tells more", config.ExitUsage)
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
	bar := &compileBar{out: c.App.ErrWriter, told: time.Now()}
	defer bar.end()
	if c.Bool("check") {
		n, err := table.Check(kind, in, bar.step)
		if err == nil {
			bar.end()
			fmt.Fprintf(c.App.Writer, "%s: %d %s\n", in, n, human.Plural(n, "entry", "entries"))
		}
		return err
	}
	made, err := table.Compile(kind, in, out, bar.step)
	if err != nil {
		return err
	}
	bar.end()
	fmt.Fprintf(c.App.Writer, "%s: %d %s of %s, %d bytes\n", out, made.Entries, human.Plural(made.Entries, "entry", "entries"), in, made.Size)
	if name := strings.ToUpper(string(kind)); !inUse(settings, name, out) {
		fmt.Fprintf(c.App.Writer, "no router uses it yet: %s of zmailer.conf does not name db:%s\n", name, out)
	}
	return nil
}

// textForm says which file is meant, and what is in it.
func textForm(settings *config.Config, arg string, kind text.Kind) (text.Kind, string, error) {
	if kind != "" && !slices.Contains(text.Kinds(), kind) {
		return "", "", cli.Exit(fmt.Sprintf("--kind %s: want one of %v", kind, text.Kinds()), config.ExitUsage)
	}
	if slices.Contains(text.Kinds(), text.Kind(arg)) {
		path := settings.Path(arg)
		if path == "" {
			return "", "", cli.Exit(fmt.Sprintf("%s stands beside zmailer.conf, which --config has not named; ./%s is a file here", arg, arg), config.ExitUsage)
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
			return "", "", cli.Exit(fmt.Sprintf("the name of %s does not tell what is in it: say --kind with one of %v", arg, text.Kinds()), config.ExitUsage)
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

// compileBar tells on standard error how far a table is that takes longer than a moment:
// as a bar on a terminal, else a line every few seconds.
type compileBar struct {
	out   io.Writer
	told  time.Time
	phase string
	bar   *progressbar.ProgressBar
}

// step is told of what has been done.
func (b *compileBar) step(phase string, done, of int64) {
	if phase != b.phase {
		b.end()
		b.phase = phase
		if f, ok := b.out.(*os.File); ok && terminal(f) {
			b.bar = progressbar.NewOptions64(of, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(phase),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30))
		}
	}
	switch now := time.Now(); {
	case b.bar != nil:
		// What cannot be drawn is not worth an error.
		_ = b.bar.Set64(done)
	case now.Sub(b.told) >= 5*time.Second && done < of:
		b.told = now
		fmt.Fprintf(b.out, "%s: %d%%\n", phase, 100*done/of)
	}
}

// end takes the bar away.
func (b *compileBar) end() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
	b.bar = nil
}
