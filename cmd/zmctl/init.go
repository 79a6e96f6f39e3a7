package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"zmailer/internal/config"
	"zmailer/internal/confine"
	"zmailer/internal/durable"
	"zmailer/internal/postoffice"
)

func initCommand() *cli.Command {
	return &cli.Command{
		Name:      "init",
		Usage:     "make the postoffice's directories, and configuration files to start from",
		UsageText: "zmctl init [--config-dir DIR]",
		Description: `Makes the directories that are missing below the postoffice, those that ROUTERDIRS names
with them; what is there stays. Called by root, with DAEMONUSER in zmailer.conf, it gives all of
it to that user; message files stay their submitters' (docs/privileges.md).
With --config-dir it writes zmailer.conf, scheduler.conf, replies, routes, aliases, fqdnaliases
and localnames into DIR, each unless it is there. They hold the defaults that are built
in, with a comment for each setting; a new zmailer.conf names this postoffice.

    zmctl --postoffice /var/spool/postoffice init --config-dir /etc/zmailer`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config-dir", Usage: "write the default configuration files that are missing in `DIR`"},
		},
		Action: runInit,
	}
}

func runInit(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	dir := settings.PostOffice()
	further, err := postoffice.ParseRouterDirs(settings.List("ROUTERDIRS"))
	if err != nil {
		return settings.Invalid("ROUTERDIRS", "cannot be used", err)
	}
	if err := makePostoffice(dir, further...); err != nil {
		return err
	}
	if err := givePostoffice(settings); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "postoffice", dir)
	conf := c.String("config-dir")
	if conf == "" {
		return nil
	}
	if conf, err = filepath.Abs(conf); err != nil {
		return err
	}
	if err := config.WriteDefaults(conf, "POSTOFFICE="+dir); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "configuration", filepath.Join(conf, config.Files()[0]))
	return nil
}

// givePostoffice gives the postoffice to DAEMONUSER, if root says so.
func givePostoffice(settings *config.Config) error {
	a, err := confine.PlanFor("zmctl", settings).Account()
	switch {
	case err != nil:
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	case a == nil || os.Geteuid() != 0:
		return nil
	}
	if err := postoffice.MakeNursery(settings.PostOffice()); err != nil {
		return err
	}
	return postoffice.Give(settings.PostOffice(), a.UID, a.GID)
}

// makePostoffice makes what is missing of a postoffice, with further router directories.
func makePostoffice(dir string, routerDirs ...string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make postoffice: %w", err)
	}
	f, err := durable.NewOS(dir)
	if err != nil {
		return fmt.Errorf("make postoffice: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	f.Inherit()
	if err := postoffice.Init(f); err != nil || len(routerDirs) == 0 {
		return err
	}
	p, err := postoffice.Open(postoffice.Config{FS: f})
	if err != nil {
		return err
	}
	return p.EnsureRouterDirs(routerDirs)
}
