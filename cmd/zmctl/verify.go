package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/verify"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:      "verify",
		Usage:     "show whether mail to an address is accepted, and what its next hop says",
		UsageText: "zmctl verify [--probe] [--json] ADDRESS...\n   zmctl verify --list [--json]\n   zmctl verify --forget ADDRESS...|@DOMAIN...|--all",
		Description: `Decides about an address as smtpserver does at RCPT for mail of other hosts: by the tables,
router.star and, for domains of ADDRESSVERIFY, the answer of the next hop, which is cached in
verify/ (docs/relay-domains.md). It prints the answer, its source and its age.

    zmctl verify alice@customer.example
    zmctl verify --forget @customer.example

Exit codes: 0 accepted, 1 refused, 75 undecided now, 64 bad arguments, 78 a configuration that
cannot be used.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "probe", Usage: "ask the next hop now, whatever is cached or configured"},
			&cli.BoolFlag{Name: "list", Usage: "print what is cached"},
			&cli.BoolFlag{Name: "forget", Usage: "forget what is cached about addresses, or all of a domain with @DOMAIN"},
			&cli.BoolFlag{Name: "all", Usage: "with --forget: everything"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON, an object for each address"},
		},
		Action: runVerify,
	}
}

func runVerify(c *cli.Context) error {
	list, forget := c.Bool("list"), c.Bool("forget")
	switch {
	case list && (forget || c.NArg() > 0), c.Bool("all") && (!forget || c.NArg() > 0), !list && !c.Bool("all") && c.NArg() == 0:
		return cli.Exit("zmctl verify: name addresses, or use --list, or --forget with --all", config.ExitUsage)
	}
	settings, err := lastgood.Accepted(outer(c))
	if err != nil {
		return err
	}
	po, err := view.OpenPostOffice(settings)
	if err != nil {
		return err
	}
	v, err := verify.Open(settings, po)
	if err != nil {
		return err
	}
	defer v.Close()
	switch {
	case list:
		answers, err := v.List()
		if err != nil {
			return err
		}
		_, err = printAnswers(c, answers)
		return err
	case forget:
		n, err := v.Forget(c.Args().Slice(), c.Bool("all"))
		if err == nil {
			fmt.Fprintf(c.App.Writer, "%s forgotten\n", human.Count(n, "answer"))
		}
		return err
	}
	var answers []verify.Answer
	for _, to := range c.Args().Slice() {
		answers = append(answers, v.Address(c.Context, to, c.Bool("probe")))
	}
	worst, err := printAnswers(c, answers)
	if err == nil && worst > 0 {
		err = cli.Exit("", worst)
	}
	return err
}

// printAnswers prints answers and returns the exit code for them.
func printAnswers(c *cli.Context, list []verify.Answer) (worst int, err error) {
	lines := text.JSONLines(c.App.Writer)
	for _, a := range list {
		switch a.Verdict {
		case verify.Refused:
			worst = max(worst, exitNotAll)
		case verify.Undecided:
			worst = exitLater
		}
		if c.Bool("json") {
			err = lines.Encode(a)
		} else {
			_, err = fmt.Fprintln(c.App.Writer, answerLine(a))
		}
		if err != nil {
			return worst, err
		}
	}
	return worst, nil
}

// answerLine returns an answer for operators.
func answerLine(a verify.Answer) string {
	s := fmt.Sprintf("<%s>  %s", human.Clean(a.Address), a.Verdict)
	if a.Code != "" {
		s += " " + human.Clean(a.Code)
	}
	s += "  by " + a.Source
	if a.NextHop != "" {
		s += "  " + human.Clean(a.NextHop)
	}
	if a.Probed != nil {
		age, left := time.Duration(a.AgeSeconds)*time.Second, time.Duration(a.ExpiresSeconds)*time.Second
		s += fmt.Sprintf("  %s ago, counts for %s", human.Span(age), human.Span(left))
	}
	if a.Text != "" {
		s += ": " + human.Clean(a.Text)
	}
	return s
}
