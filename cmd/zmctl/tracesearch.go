package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
)

// flagsBehind returns the arguments and sets the flags among them: people put --since behind
// the address.
func flagsBehind(c *cli.Context) (args []string, err error) {
	list := c.Args().Slice()
	for i := 0; i < len(list); i++ {
		name, value, given := strings.Cut(strings.TrimLeft(list[i], "-"), "=")
		if !strings.HasPrefix(list[i], "--") || len(list[i]) == 2 {
			args = append(args, list[i])
			continue
		}
		switch name {
		case "since", "until", "limit", "log":
			if !given && i+1 < len(list) {
				i++
				value = list[i]
			}
		default:
			value = "true"
		}
		if err := c.Set(name, value); err != nil {
			return nil, traceUsage(list[i] + ": " + err.Error())
		}
	}
	return args, nil
}

// spoolIDsOf reads arguments that are to be spool IDs.
func spoolIDsOf(args []string) (ids []postoffice.SpoolID, err error) {
	if len(args) == 0 {
		return nil, traceUsage("it needs a spool ID, an address or a Message-ID")
	}
	for _, arg := range args {
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return nil, cli.Exit("zmctl trace: "+err.Error()+"; one word alone may also be an address or a Message-ID", config.ExitUsage)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// searchLog prints the messages that a word belongs to.
func searchLog(c *cli.Context, word string) error {
	if c.Bool("otlp") {
		return traceUsage("--otlp requires spool IDs")
	}
	now := time.Now()
	q := view.Search{Word: word, Most: c.Int("limit")}
	for name, to := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if s := c.String(name); s != "" {
			at, err := logread.ParseTime(s, now)
			if err != nil {
				return traceUsage("--" + name + ": " + err.Error())
			}
			*to = at
		}
	}
	t, done, err := tracer(c)
	if err != nil {
		return err
	}
	defer done()
	found, err := t.Find(c.Context, q)
	if errors.Is(err, view.ErrShortSearch) {
		return traceUsage(word + ": " + err.Error())
	}
	if len(found.Lives) == 0 {
		return errors.Join(err, cli.Exit("zmctl trace: nothing is known of "+word, 1))
	}
	out := text.NewStream(c.App.Writer)
	errs := []error{err}
	switch {
	case c.Bool("json"):
		for _, l := range found.Lives {
			errs = append(errs, text.JSONLines(out).Encode(l))
		}
	case c.Bool("full"):
		for i, l := range found.Lives {
			if i > 0 {
				fmt.Fprintln(out)
			}
			text.PrintLife(out, l, "")
		}
	default:
		text.PrintFound(out, found, &q)
	}
	return text.Quiet(errors.Join(append(errs, out.Flush())...))
}
