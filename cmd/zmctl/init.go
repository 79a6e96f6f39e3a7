package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
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
in, with a comment for each setting; a new zmailer.conf names this postoffice. If --config or
ZCONFIG names a zmailer.conf that is not there, they are written beside it without that flag.

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
	settings, missing, err := config.ForInit(c)
	if err != nil {
		return err
	}
	conf, err := configDir(c, missing)
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
	if mode := settings.String("ROUTERMODE", "closed"); mode == "shared" {
		if err := sharePostoffice(dir); err != nil {
			return err
		}
	}
	if err := givePostoffice(settings); err != nil {
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

// sharePostoffice opens router/ to users (ROUTERMODE=shared).
func sharePostoffice(dir string) error {
	p, err := postoffice.OpenDir(dir, 0, false)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, postoffice.Router0)); err == nil {
		return p.Share() // goes on where it was killed
	}
	alive, err := p.AnyOwner()
	if err != nil {
		return err
	}
	if alive {
		return &config.Error{File: dir, Reason: "ROUTERMODE=shared moves the routers to another directory: stop the daemons first (zmctl stop)"}
	}
	return p.Share()
}

// configDir is where configuration files are to be written: where --config-dir says, else
// beside the zmailer.conf that is named and missing; "": nowhere.
func configDir(c *cli.Context, missing string) (string, error) {
	if dir := c.String("config-dir"); dir != "" {
		return filepath.Abs(dir)
	}
	if missing == "" {
		return "", nil
	}
	if name := config.Files()[0]; filepath.Base(missing) != name {
		return "", &config.Error{File: missing, Reason: "is not there; zmctl init makes only files with the name " + name +
			", and writes them where --config-dir says"}
	}
	return filepath.Dir(missing), nil
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
	f.Beneath()
	if err := postoffice.Init(f); err != nil {
		return err
	}
	if err := durable.SyncPath(dir); err != nil {
		return fmt.Errorf("make postoffice: %w", err)
	}
	if len(routerDirs) == 0 {
		return nil
	}
	p, err := postoffice.Open(postoffice.Config{FS: f})
	if err != nil {
		return err
	}
	return p.EnsureRouterDirs(routerDirs)
}
