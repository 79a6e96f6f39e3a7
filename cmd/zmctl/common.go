package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

func colorFlag() cli.Flag {
	return &cli.StringFlag{Name: "color", Value: "auto", Usage: "colours `WHEN`: auto (on a terminal), always or never"}
}

// setColour has --color decide in the environment, where the programs look that zmctl runs:
// router, scheduler, zmtop.
func setColour(c *cli.Context) error {
	var errs [2]error
	switch when := c.String("color"); when {
	case "auto":
	case "always":
		errs = [2]error{os.Unsetenv(term.Never), os.Setenv(term.Always, "1")}
	case "never":
		errs = [2]error{os.Unsetenv(term.Always), os.Setenv(term.Never, "1")}
	default:
		return cli.Exit("--color "+when+": it is auto, always or never", config.ExitUsage)
	}
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("--color: %w", err)
		}
	}
	return nil
}

// open opens the postoffice that the flags and the configuration name.
func open(c *cli.Context) (*postoffice.PostOffice, string, error) {
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return nil, "", err
	}
	p, err := view.OpenPostOffice(settings)
	return p, settings.PostOffice(), err
}

// target is the postoffice that a command works on, with its configuration.
type target struct {
	*postoffice.PostOffice
	dir      string
	settings *config.Config
}

// opened is the action of a command that works on the postoffice: it reads the arguments, opens
// the postoffice, and closes it when do has returned.
func opened[T any](arguments func(*cli.Context) (T, error), do func(*cli.Context, *target, T) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		args, err := arguments(c)
		if err != nil {
			return err
		}
		settings, err := lastgood.Accepted(c)
		if err != nil {
			return err
		}
		return withTarget(settings, func(t *target) error { return do(c, t, args) })
	}
}

// withTarget opens the postoffice for do.
func withTarget(settings *config.Config, do func(*target) error) error {
	po, err := view.OpenPostOffice(settings)
	if err != nil {
		return err
	}
	defer closeFS(po)
	return do(&target{po, settings.PostOffice(), settings})
}

// openedAnyway is opened for a command that is needed most when zmailer.conf cannot be used: it
// goes on with the settings that can, and returns the errors at the end.
func openedAnyway[T any](arguments func(*cli.Context) (T, error), do func(*cli.Context, *target, T) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		args, err := arguments(c)
		if err != nil {
			return err
		}
		settings, err := config.FromCLI(c)
		if settings == nil || settings.File == "" && err != nil {
			return err
		}
		derr := withTarget(settings, func(t *target) error { return do(c, t, args) })
		if err != nil {
			return err
		}
		return derr
	}
}

// none are the arguments of a command that allows none.
func none(c *cli.Context) (struct{}, error) { return struct{}{}, noArguments(c) }

// noArguments refuses arguments of a command that allows none.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit("zmctl "+c.Command.Name+" allows no arguments; --help lists its flags", config.ExitUsage)
	}
	return nil
}

// closeFS closes the directory that a postoffice was opened with.
func closeFS(p *postoffice.PostOffice) error {
	if f, ok := p.FS().(interface{ Close() error }); ok {
		return f.Close()
	}
	return nil
}

// newProgress is for so many messages; nil if it is not worth it, or --quiet is given.
func newProgress(c *cli.Context, what string, total int) *text.Progress {
	if total < text.BigNumber || c.Bool("quiet") {
		return nil
	}
	p := text.NewProgress(c.App.ErrWriter, what, "messages", total)
	p.Show()
	return p
}

// newCounter is for a total that is not known; nil if --quiet is given.
func newCounter(c *cli.Context, what, of string) *text.Progress {
	if c.Bool("quiet") {
		return nil
	}
	return text.NewProgress(c.App.ErrWriter, what, of, text.UnknownTotal)
}

// caller opens the postoffice and calls its scheduler.
func caller(c *cli.Context) (*view.SchedulerClient, error) {
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return nil, err
	}
	return view.CallScheduler(c.Context, settings.PostOffice())
}
