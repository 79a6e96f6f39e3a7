package main

import (
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// spoolIDs are the arguments, at least one; source shows them.
func spoolIDs(c *cli.Context, source string) ([]postoffice.SpoolID, error) {
	if c.NArg() == 0 {
		return nil, cli.Exit("zmctl "+c.Command.Name+" needs a spool ID; "+source+" shows them", config.ExitUsage)
	}
	var ids []postoffice.SpoolID
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return nil, cli.Exit("zmctl "+c.Command.Name+": flags like "+arg+" go before the spool IDs", config.ExitUsage)
		}
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return nil, cli.Exit(err, config.ExitUsage)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// openKeeping opens the postoffice and returns how long removed mail is kept.
func openKeeping(c *cli.Context) (*postoffice.PostOffice, time.Duration, error) {
	settings, err := config.FromCLI(c)
	if err != nil {
		return nil, 0, err
	}
	keep, err := act.Keep(settings)
	if err != nil {
		return nil, 0, err
	}
	po, _, err := open(c)
	return po, keep, err
}
