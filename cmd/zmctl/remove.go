package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
)

// editing is a command that changes one message.
type editing struct {
	c    *cli.Context
	po   *postoffice.PostOffice
	id   postoffice.SpoolID
	keep time.Duration
	now  time.Time
}

// forEachID runs a command for each spool ID of the arguments; what fails for one does
// not keep the others from it. source shows the IDs. The worst exit code counts: not done, then try again.
func forEachID(c *cli.Context, source string, fn func(e *editing) error) error {
	ids, err := spoolIDs(c, source)
	if err != nil {
		return err
	}
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	var errs []error
	again := true
	for _, id := range ids {
		err := fn(&editing{c: c, po: po, id: id, keep: keep, now: time.Now()})
		again = again && (err == nil || errors.Is(err, errAgain))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil && again {
		return cli.Exit(err, config.ExitTempFail)
	}
	return errors.Join(errs...)
}

// spoolIDs are the arguments, at least one; source shows them.
func spoolIDs(c *cli.Context, source string) ([]postoffice.SpoolID, error) {
	if c.NArg() == 0 {
		return nil, cli.Exit("zmctl "+c.Command.Name+" needs a spool ID; "+source+" shows them", config.ExitUsage)
	}
	var ids []postoffice.SpoolID
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return nil, cli.Exit("zmctl "+c.Command.Name+": flags like "+arg+" stand before the spool IDs", config.ExitUsage)
		}
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return nil, cli.Exit(err, config.ExitUsage)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// openKeeping opens the postoffice and tells how long what is removed is kept.
func openKeeping(c *cli.Context) (*postoffice.PostOffice, time.Duration, error) {
	settings, err := config.FromCLI(c)
	if err != nil {
		return nil, 0, err
	}
	keep, err := settings.Duration("REMOVEDKEEP", defaultKeep)
	if err != nil {
		return nil, 0, err
	}
	po, _, err := open(c)
	return po, keep, err
}

// defaultKeep is REMOVEDKEEP's default.
const defaultKeep = 3 * 24 * time.Hour

// errAgain means that the command may succeed in a moment.
var errAgain = errors.New("try again")

// tries is how often a message that moves on is looked for.
const tries = 5

func (e *editing) request() operations.Request {
	return operations.Request{PostOffice: e.po, ID: e.id, Now: e.now, Who: fmt.Sprintf("zmctl %s, %s", e.c.Command.Name, who(e.c.Context))}
}

// kept tells for how long undo is possible.
func (e *editing) kept() string {
	if e.keep <= 0 {
		return fmt.Sprintf("    zmctl undo %s puts it back\n", e.id)
	}
	return fmt.Sprintf("    zmctl undo %s puts it back, until %s\n", e.id, e.now.Add(e.keep).Format(human.TimeFormat))
}

// notFound tells why there is no message to change.
func (e *editing) notFound(verb string, others []postoffice.SpoolID, err error) error {
	for _, o := range others {
		err = errors.Join(err, fmt.Errorf("%s %s: inode %d belongs to another message now, %s, written %s",
			verb, e.id, o.Ino, o, o.Time().Format(human.TimeFormat)))
	}
	if err != nil {
		return err
	}
	if m, lerr := e.removed(); lerr == nil && m != nil {
		return fmt.Errorf("%s %s: it is in removed/ already, since %s", verb, e.id, m.Since.Format(human.TimeFormat))
	}
	return fmt.Errorf("%s %s: no file of that message is here; it was delivered, reported or dropped", verb, e.id)
}

// removed is the message's entry in removed/, nil if there is none.
func (e *editing) removed() (*postoffice.RemovedMessage, error) { return e.po.Removed.Find(e.id) }
