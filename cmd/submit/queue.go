package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/urfave/cli/v2"

	"zmailer/internal/config"
)

// queueOr does what else there is to do, or shows the queue for sendmail -bp.
func queueOr(submit cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.String("b") == "p" {
			return showQueue(c)
		}
		return submit(c)
	}
}

// showQueue is sendmail -bp: the program zmctl, beside this one or in PATH, lists the queue
// in our place. It returns only if that cannot be.
func showQueue(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	path, err := findZmctl()
	if err != nil {
		return cli.Exit("-bp: zmctl queue lists the queue, and there is no zmctl: "+err.Error(), config.ExitOSErr)
	}
	env := append(os.Environ(), "POSTOFFICE="+settings.PostOffice(), "ZCONFIG="+settings.File)
	return cli.Exit("-bp: "+syscall.Exec(path, []string{"mailq"}, env).Error(), config.ExitOSErr)
}

func findZmctl() (string, error) {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), "zmctl")); err == nil {
			return path, nil
		}
	}
	return exec.LookPath("zmctl")
}
