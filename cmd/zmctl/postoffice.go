package main

import (
	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// open opens the postoffice that the flags and the configuration name.
func open(c *cli.Context) (*postoffice.PostOffice, string, error) {
	settings, err := config.FromCLI(c)
	if err != nil {
		return nil, "", err
	}
	p, err := view.OpenPostOffice(settings)
	return p, settings.PostOffice(), err
}

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
