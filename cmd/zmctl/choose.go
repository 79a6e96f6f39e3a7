package main

import (
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/selector"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// words are the values of a flag that may be given several times. Unlike the library's
// lists it leaves commas alone, which a regular expression may have.
type words struct{ list []string }

// Set implements cli.Generic.
func (w *words) Set(s string) error {
	w.list = append(w.list, s)
	return nil
}

// String implements cli.Generic.
func (w *words) String() string { return strings.Join(w.list, " ") }

// selectorHelp describes the flags in the description of each command.
const selectorHelp = `
SELECTING: a recipient is selected if every kind of flag matches; a repeated flag matches if
any of its values does: --host a --host b --older 1h means host a or b, and older than an
hour. Values may be lists with commas, and contain * and ?. --where takes an expression with
and, or, not and parentheses:

    --where 'from *@shop.example and (host a or host b) and not older 3d'

The selector chooses recipients: it may match one of ten recipients of a message.`

func selectorFlags() []cli.Flag {
	names, usages := selector.Names()
	flags := make([]cli.Flag, 0, len(names)+1)
	for i, name := range names {
		flags = append(flags, &cli.GenericFlag{Name: name, Usage: usages[i], Value: &words{}})
	}
	return append(flags, &cli.GenericFlag{Name: "where", Usage: "`EXPRESSION` that combines these selectors", Value: &words{}})
}

// chosen returns the selector of flags and arguments: the arguments are spool IDs, and the
// flags narrow them. It is empty if there are none.
func chosen(c *cli.Context) (selector.Selector, error) {
	flags, err := flagged(c)
	if err != nil || c.NArg() == 0 {
		return flags, err
	}
	ids, err := argumentIDs(c)
	if err != nil {
		return flags, err
	}
	s, err := selector.Column("id", ids...)
	if err != nil {
		return flags, cli.Exit(err, config.ExitUsage)
	}
	return s.And(flags), nil
}

func flagged(c *cli.Context) (selector.Selector, error) {
	var all selector.Selector
	refuse := func(flag string, err error) (selector.Selector, error) {
		return all, cli.Exit("zmctl "+c.Command.Name+" "+flag+": "+err.Error(), config.ExitUsage)
	}
	names, _ := selector.Names()
	for _, name := range names {
		w, ok := c.Generic(name).(*words)
		if !ok || len(w.list) == 0 {
			continue
		}
		s, err := selector.Column(name, w.list...)
		if err != nil {
			return refuse("--"+name, err)
		}
		all = all.And(s)
	}
	if w, ok := c.Generic("where").(*words); ok {
		for _, text := range w.list {
			s, err := selector.Parse(text)
			if err != nil {
				return refuse("--where", err)
			}
			all = all.And(s)
		}
	}
	if c.Bool("all") {
		all = all.And(selector.All())
	}
	return all, nil
}

func argumentIDs(c *cli.Context) ([]string, error) {
	var ids []string
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return nil, cli.Exit("zmctl "+c.Command.Name+": flags like "+arg+" go before the spool IDs", config.ExitUsage)
		}
		if _, err := postoffice.ParseSpoolID(arg); err != nil {
			return nil, cli.Exit(err, config.ExitUsage)
		}
		ids = append(ids, arg)
	}
	return ids, nil
}

// spoolIDs returns the arguments, at least one; source shows them.
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

// ids returns a reader of arguments that are spool IDs; source shows them.
func ids(source string) func(c *cli.Context) ([]postoffice.SpoolID, error) {
	return func(c *cli.Context) ([]postoffice.SpoolID, error) { return spoolIDs(c, source) }
}

// openKeeping opens the postoffice and returns how long removed mail is kept.
func openKeeping(c *cli.Context) (*postoffice.PostOffice, time.Duration, error) {
	settings, err := lastgood.Accepted(c)
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
