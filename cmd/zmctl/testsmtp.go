package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/ui/text"
)

func testCommand() *cli.Command {
	return &cli.Command{
		Name:  "test",
		Usage: "show what would become of mail, without sending any",
		Subcommands: []*cli.Command{{
			Name:      "smtp",
			Usage:     "show each rule that smtpserver would apply to mail, and its verdict",
			UsageText: "zmctl test smtp --client IP --from ADDRESS --to ADDRESS [--helo NAME] [--user USER] [--message FILE]",
			Description: `Shows the tests that smtpserver makes for mail, in their order, each with its result: what is left of
the rates (docs/limits.md), SENDERLOGIN,
the rules of the file access, DNS lists, RCPTCHECK and the greylist at RCPT, and, with
--message, the rules about header and body, SPF, DKIM and DMARC, and the rules that wait for
the content. It reads the same configuration with the same functions as smtpserver.

    zmctl test smtp --client 192.0.2.66 --helo mail.far.example --from a@far.example --to bob@example.org

Nothing is sent or stored, and no mail server is asked. Tables, the router, the name server and
policy services are asked as for mail; a policy service may remember that. The greylist is read
and not changed. Milters are not asked.

Exit codes: 0 the mail would be accepted, 1 it would be refused or deferred, 64 bad arguments,
78 bad configuration.`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "client", Usage: "the `ADDRESS` of the client, or unix"},
				&cli.StringFlag{Name: "helo", Usage: "the `NAME` in its greeting"},
				&cli.StringFlag{Name: "from", Usage: "the sender `ADDRESS`; <> is the null sender"},
				&cli.StringFlag{Name: "to", Usage: "the recipient `ADDRESS`"},
				&cli.StringFlag{Name: "user", Usage: "the `USER` who has authenticated"},
				&cli.StringFlag{Name: "role", Value: "mx", Usage: "the `ROLE` of the port: mx, submission, submissions or lmtp"},
				&cli.BoolFlag{Name: "tls", Usage: "the client uses TLS"},
				&cli.StringFlag{Name: "message", Usage: "the `FILE` with the message"},
				&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			},
			Action: runTestSMTP,
		}},
	}
}

func runTestSMTP(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	for _, name := range []string{"client", "from", "to"} {
		if !c.IsSet(name) {
			return cli.Exit("zmctl test smtp: --"+name+" is required; see zmctl test smtp --help", config.ExitUsage)
		}
	}
	t, err := trialFrom(c)
	if err != nil {
		return cli.Exit("zmctl test smtp: "+err.Error(), config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	cfg, err := smtpserver.ConfigFrom(settings)
	if err != nil {
		return settings.Locate(err)
	}
	cfg.Keeper, cfg.Access.Keeper, cfg.Access.Source.Keeper = nil, nil, nil // they are smtpserver's
	if cfg.Access.Probe != nil {
		cfg.Access.Probe.Command = agents.Prober(settings, rcptcheck.ProbeCommand) // its answers are not kept
	}
	t.Rates = func(ctx context.Context, q smtpserver.RatesQuestion) ([]limits.Usage, error) {
		return smtpserver.AskRates(ctx, settings.PostOffice(), q)
	}
	report, err := smtpserver.Try(c.Context, cfg, t)
	if err != nil {
		return settings.Locate(err)
	}
	if c.Bool("json") {
		if err := text.PrintJSON(c.App.Writer, report); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(c.App.Writer, "client   %s\nto       %s\n", report.Client, report.To)
		for _, s := range report.Steps {
			fmt.Fprintf(c.App.Writer, "%-8s %s -> %s\n", s.Stage, s.Test, s.Result)
		}
		fmt.Fprintf(c.App.Writer, "verdict  %s (by %s)\n", report.Verdict, report.By)
	}
	if report.Refused {
		return cli.Exit("", 1)
	}
	return nil
}

// trialFrom reads the flags.
func trialFrom(c *cli.Context) (t smtpserver.Trial, err error) {
	if client := c.String("client"); client != "unix" {
		if t.Client, err = netip.ParseAddr(client); err != nil {
			return t, fmt.Errorf("--client: %q is no address", client)
		}
	}
	t.Helo, t.User, t.TLS, t.Role = c.String("helo"), c.String("user"), c.Bool("tls"), session.Role(c.String("role"))
	if !slices.Contains(session.Roles(), t.Role) {
		return t, fmt.Errorf("--role: %q must be mx, submission, submissions or lmtp", t.Role)
	}
	if t.From, err = address.Parse("<" + strings.Trim(c.String("from"), "<>") + ">"); err != nil {
		return t, fmt.Errorf("--from: %w", err)
	}
	if t.To, err = address.Parse("<" + strings.Trim(c.String("to"), "<>") + ">"); err != nil {
		return t, fmt.Errorf("--to: %w", err)
	}
	if t.To.IsNull() {
		return t, fmt.Errorf("--to: the null address is no recipient")
	}
	if file := c.String("message"); file != "" {
		t.Message, err = smtpserver.ReadTrialMessage(file)
	}
	return t, err
}
