package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/ui/text"
)

func ratesCommand() *cli.Command {
	return &cli.Command{
		Name:      "rates",
		Usage:     "show who has used most of the rates of smtpserver",
		UsageText: "zmctl rates [--top N] [--json]",
		Description: `Asks the running smtpserver which users, addresses and envelope senders have the least left of
SMTPMESSAGERATE, SMTPRCPTRATE, SMTPSENDERMESSAGERATE, SMTPSENDERRCPTRATE, SMTPCONNECTRATE,
AUTHFAILURES and RATELIMITS, those with the least first. What is left may come at once, and more of it comes back all
the time (docs/limits.md). zmctl test smtp shows the rates of one client and sender.

    zmctl rates
    zmctl rates --top 100 --json

Exit codes: 0 shown, 1 no smtpserver with rates runs, 64 bad arguments, 78 bad configuration.`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "top", Value: 20, Usage: "show at most `N`, up to 1000"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
		},
		Action: openedAnyway(none, runRates),
	}
}

func runRates(c *cli.Context, o *target, _ struct{}) error {
	if c.Int("top") < 1 || c.Int("top") > 1000 {
		return cli.Exit("zmctl rates: --top must be from 1 to 1000", config.ExitUsage)
	}
	list, err := smtpserver.AskRates(c.Context, o.dir, smtpserver.RatesQuestion{Top: c.Int("top")})
	if errors.Is(err, smtpserver.ErrNoRates) {
		return cli.Exit("zmctl rates: no smtpserver with rates runs; see docs/limits.md", 1)
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return text.PrintJSON(c.App.Writer, map[string]any{"rates": list})
	}
	t := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LEFT\tOF\tPER\tLIMIT\tWHO")
	for i := range list {
		u := &list[i]
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\n", u.Left(), u.Count, human.Span(u.Per), u.Limit, human.Clean(u.Who))
	}
	return t.Flush()
}

// shownRates is how many rates zmctl status has.
const shownRates = 3

// usedRates returns those of which most is used, if it is more than half.
func usedRates(c *cli.Context, dir string) (list []limits.Usage) {
	all, _ := smtpserver.AskRates(c.Context, dir, smtpserver.RatesQuestion{Top: shownRates}) // zmctl rates has the error
	for _, u := range all {
		if 2*u.Used > u.Count {
			list = append(list, u)
		}
	}
	return list
}

// ratesLine is the line of zmctl status.
func ratesLine(list []limits.Usage) string {
	words := make([]string, 0, len(list))
	for _, u := range list {
		words = append(words, fmt.Sprintf("%s %s: %d of %d in %s left", u.Limit, human.Clean(u.Who), u.Left(), u.Count, human.Span(u.Per)))
	}
	return "rates mostly used: " + strings.Join(words, "; ") + " (zmctl rates)"
}
