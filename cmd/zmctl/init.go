package main

import (
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/setup"
	"zmailer/internal/run/config"
)

func initCommand() *cli.Command {
	return &cli.Command{
		Name:      "init",
		Usage:     "create the postoffice's directories, and initial configuration files",
		UsageText: "zmctl init [--config-dir DIR]",
		Description: `Creates the missing directories of the postoffice, including those that ROUTERDIRS names, and
changes nothing else. If root calls it and zmailer.conf has DAEMONUSER, the postoffice is given
to that user; message files keep their owners (docs/privileges.md).
With --config-dir it writes zmailer.conf, scheduler.conf, replies, routes, aliases, fqdnaliases
and localnames into DIR, each unless it exists. They contain the built-in defaults, with a
comment for each setting; a new zmailer.conf names this postoffice. If --config or ZCONFIG names
a zmailer.conf that does not exist, they are written beside it without that flag.

    zmctl --postoffice /var/spool/postoffice init --config-dir /etc/zmailer`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config-dir", Usage: "write the missing configuration files into `DIR`, with the defaults"},
		},
		Action: runInit,
	}
}

func runInit(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, missing, err := config.ForInit(c)
	if err != nil {
		return err
	}
	conf, err := configDir(c, missing)
	if err != nil {
		return err
	}
	dir := settings.PostOffice()
	if err := setup.Init(settings); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "postoffice", dir)
	if conf == "" {
		return nil
	}
	if err := config.WriteDefaults(conf, "POSTOFFICE="+dir); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "configuration", filepath.Join(conf, config.Files()[0]))
	return nil
}

// configDir is where configuration files are written: the directory of --config-dir, else of
// the zmailer.conf that is named and missing; "": nowhere.
func configDir(c *cli.Context, missing string) (string, error) {
	if dir := c.String("config-dir"); dir != "" {
		return filepath.Abs(dir)
	}
	if missing == "" {
		return "", nil
	}
	if name := config.Files()[0]; filepath.Base(missing) != name {
		return "", &config.Error{File: missing, Reason: "does not exist; zmctl init makes files with the name " + name +
			" only, and writes them into the directory of --config-dir"}
	}
	return filepath.Dir(missing), nil
}
