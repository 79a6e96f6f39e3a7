package main

import (
	"context"
	"errors"
	"io/fs"

	"github.com/urfave/cli/v2"

	actions "zmailer/internal/admin/act"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// open opens the postoffice that the flags and the configuration name.
func open(c *cli.Context) (*postoffice.PostOffice, string, error) {
	settings, err := config.FromCLI(c)
	if err != nil {
		return nil, "", err
	}
	dir := settings.PostOffice()
	levels, err := settings.Int("HASHLEVELS", 0)
	if err != nil {
		return nil, "", err
	}
	p, err := postoffice.OpenDir(dir, levels, settings.String("SYNC", "normal") == "strict")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) {
		return nil, "", &config.Error{File: dir, Reason: "POSTOFFICE cannot be used", Err: err}
	}
	if err == nil {
		if f, ok := p.FS().(*durable.OS); ok {
			f.Inherit()
			f.Beneath()
		}
	}
	return p, dir, err
}

// noArguments refuses what a command does not take.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit("zmctl "+c.Command.Name+" takes no arguments; --help tells its flags", config.ExitUsage)
	}
	return nil
}

// person is the key of a context's value: the name of a user who acts through another
// program, as the pages of zmctl web.
type person struct{}

// who is the operator of a command.
func who(ctx context.Context) string {
	by, _ := ctx.Value(person{}).(string)
	return actions.Who(by)
}

// closeFS closes the directory that a postoffice was opened with.
func closeFS(p *postoffice.PostOffice) error {
	if f, ok := p.FS().(interface{ Close() error }); ok {
		return f.Close()
	}
	return nil
}
