// Package setup makes what an administrator needs before mail flows: a postoffice, DKIM keys
// and a file of accounts.
//
// What survives a crash: directories of a postoffice are made one after the other, and a
// second call makes those that are missing. A key file that was cut off is refused where it
// is read. A file of accounts is replaced in one rename.
//
// Diagnostics: ErrKeyExists: a key file is never overwritten. *config.Error: a setting or the
// postoffice cannot be used. Others are the disk's.
package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
)

// Init makes what is missing of the postoffice of some settings, and of the directories that
// they name. Called by root it gives the postoffice to DAEMONUSER.
func Init(settings *config.Config) error {
	dir := settings.PostOffice()
	further, err := postoffice.ParseRouterDirs(settings.List("ROUTERDIRS"))
	if err != nil {
		return settings.Invalid("ROUTERDIRS", "cannot be used", err)
	}
	if err := Make(dir, further...); err != nil {
		return err
	}
	if settings.String("ROUTERMODE", "closed") == "shared" {
		if err := share(dir); err != nil {
			return err
		}
	}
	return give(settings)
}

// Fresh makes a postoffice that is not there, with the default directories.
func Fresh(settings *config.Config) error {
	if err := Make(settings.PostOffice()); err != nil {
		return err
	}
	return give(settings)
}

// Make makes what is missing of a postoffice, with further router directories.
func Make(dir string, routerDirs ...string) (err error) {
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
	return p.Router.EnsureDirs(routerDirs)
}

// share opens router/ to users (ROUTERMODE=shared).
func share(dir string) error {
	p, err := postoffice.OpenDir(dir, 0, false)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, postoffice.Router0)); err == nil {
		return p.Share() // continues where it was killed
	}
	alive, err := p.Owners.AnyAlive()
	if err != nil {
		return err
	}
	if alive {
		return &config.Error{File: dir, Reason: "ROUTERMODE=shared moves the routers to another directory: stop the daemons first (zmctl stop)"}
	}
	return p.Share()
}

// give gives the postoffice to DAEMONUSER if root calls.
func give(settings *config.Config) error {
	a, err := confine.PlanFor("zmctl", settings).Account()
	switch {
	case err != nil:
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	case a == nil || os.Geteuid() != 0:
		return nil
	}
	return postoffice.ChangeOwner(settings.PostOffice(), a.UID, a.GID)
}
