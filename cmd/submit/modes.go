package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/submit"
)

// calledAs returns the arguments of a program that may be called by another name of
// sendmail's: mailq, newaliases, hoststat, purgestat and smtpd.
func calledAs(args []string) []string {
	mode := map[string]string{"mailq": "-bp", "newaliases": "-bi", "hoststat": "-bh", "purgestat": "-bH", "smtpd": "-bs"}
	if m, ok := mode[filepath.Base(args[0])]; ok {
		return append([]string{m}, args[1:]...)
	}
	return args[1:]
}

// dispatch does what -b and -q ask for.
func dispatch(c *cli.Context) error {
	mode := c.String("b")
	if c.IsSet("q") && mode != "d" && mode != "l" {
		return runQueue(c, c.String("q"))
	}
	if c.Bool("t") && mode != "m" {
		return badUse("-t is for the submission of a message; it cannot be used with -b%s", mode)
	}
	switch mode {
	case "m":
		return run(c)
	case "s":
		return serve(c)
	case "p":
		return zmctl(c, "-bp", "queue", "--readable")
	case "v", "t":
		return verify(c)
	case "i": // the router reads text files again by itself
		return initAliases(c)
	case "h", "H": // the status of hosts is the scheduler's: zmctl thread
		return nil
	case "d", "l":
		return zmctl(c, "-b"+mode, "start")
	case "D":
		return zmctl(c, "-bD", "run")
	}
	return badUse("-b %.20q: there is no such mode; docs/submit.md has those that there are", mode)
}

func badUse(format string, args ...any) error {
	return cli.Exit(fmt.Sprintf(format, args...), config.ExitUsage)
}

// loaded returns the settings. While an operator edits zmailer.conf and it cannot be used, mail is
// taken by those that the daemons go by; with -v a warning says so.
func loaded(c *cli.Context) (*config.Config, error) {
	settings, held, err := lastgood.ForSubmit(c)
	if c.Bool("v") {
		for _, e := range config.Errors(held) {
			fmt.Fprintf(c.App.ErrWriter, "submit: warning: %v; the settings in use by the scheduler hold\n", e)
		}
	}
	return settings, err
}

func run(c *cli.Context) error {
	settings, err := loaded(c)
	if err != nil {
		return err
	}
	what, err := submission(c, settings)
	if err != nil {
		return err
	}
	return submit.Run(c.Context, what)
}

// serve is -bs.
func serve(c *cli.Context) error {
	settings, err := loaded(c)
	if err != nil {
		return err
	}
	host, err := settings.Hostname()
	if err != nil {
		return err
	}
	what, err := submission(c, settings)
	if err != nil {
		return err
	}
	return submit.Serve(c.Context, what, host)
}

// runQueue is -q: nothing for an interval, for the scheduler has its own; else what
// Postfix's postqueue does.
func runQueue(c *cli.Context, what string) error {
	kind, rest := "", ""
	if what != "" {
		kind, rest = what[:1], what[1:]
	}
	if strings.Contains("IRS", kind) && kind != "" && rest == "" {
		return badUse("-q%s: a value must follow, as in -q%sVALUE", kind, kind)
	}
	switch {
	case kind == "", kind == "f", kind == "i", kind == "q":
		return zmctl(c, "-q", "retry", "--yes", "--all")
	case kind == "I":
		return zmctl(c, "-qI", "retry", "--", rest)
	case kind == "R":
		return zmctl(c, "-qR", "etrn", "--", rest)
	case kind == "S":
		return zmctl(c, "-qS", "retry", "--yes", "--from", "*"+rest+"*")
	case kind == "p", strings.Trim(what, "0123456789smhdw") == "":
		return nil
	}
	return badUse("-q%.20s: not understood; -q, -qIID, -qRHOST, -qSSENDER and -qTIME are", what)
}

// verify is -bv: it prints where each recipient would go.
func verify(c *cli.Context) error {
	var all, unread []string
	for _, arg := range c.Args().Slice() {
		good, bad := submit.Addresses(arg)
		all, unread = append(all, good...), append(unread, bad...)
	}
	if len(unread) > 0 {
		return cli.Exit(fmt.Sprintf("-bv: %.300q cannot be read as an address", strings.Join(unread, ", ")), exitDataErr)
	}
	if len(all) == 0 {
		return badUse("-bv: no recipient; name them as arguments")
	}
	return zmctl(c, "-bv", append([]string{"route", "--"}, all...)...)
}

// exitDataErr is sysexits(3)'s EX_DATAERR.
const exitDataErr = 65

// initAliases is newaliases: text files are read again by themselves when they change, a
// database beside the file aliases is compiled.
func initAliases(c *cli.Context) error {
	settings, err := loaded(c)
	if err != nil {
		return err
	}
	for _, source := range settings.List("ALIASES") {
		if strings.HasPrefix(source, "db:") && strings.HasSuffix(source, "aliases.db") {
			return zmctl(c, "-bi", "newdb", "aliases")
		}
	}
	return nil
}

// zmctl runs the program zmctl, beside this one or in PATH, in our place. It returns only
// if that cannot be.
func zmctl(c *cli.Context, flag string, args ...string) error {
	settings, err := loaded(c)
	if err != nil {
		return err
	}
	path, err := findZmctl()
	if err != nil {
		return cli.Exit(flag+": zmctl "+args[0]+" does this, and there is no zmctl: "+err.Error(), config.ExitOSErr)
	}
	env := append(os.Environ(), "POSTOFFICE="+settings.PostOffice(), "ZCONFIG="+settings.File)
	err = syscall.Exec(path, append([]string{"zmctl"}, args...), env)
	return cli.Exit(flag+": run "+path+": "+err.Error(), config.ExitOSErr)
}

func findZmctl() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), "zmctl")
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, lookErr := exec.LookPath("zmctl")
	if lookErr != nil {
		return "", errors.Join(err, lookErr)
	}
	return path, nil
}
