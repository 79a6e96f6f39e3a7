package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
)

// confined are the programs that confine themselves; starter is scheduler --start-agents.
func confined() []string {
	return []string{"smtpserver", "router", "reader", "scheduler", "ta-smtp", "starter", "ta-mailbox"}
}

// checkConfinement has a process for each program enter its room and try to leave it.
func checkConfinement(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	if !confine.PlanFor("smtpserver", settings).Applies() {
		return cli.Exit("nothing is confined: zmailer.conf has neither DAEMONUSER, for root, nor CONFINE=yes (docs/privileges.md)", 1)
	}
	all := []confine.Attempt{}
	for _, program := range confined() {
		if confine.PlanFor(program, settings).Exempt() {
			continue
		}
		list, err := leave(c, settings, program)
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, all)
	} else {
		err = printAttempts(c, all)
	}
	for _, a := range all {
		if !a.Refused {
			return errors.Join(err, cli.Exit("", int(wrong)))
		}
	}
	return err
}

func printAttempts(c *cli.Context, all []confine.Attempt) error {
	left := 0
	for _, a := range all {
		word := "refused"
		if !a.Refused {
			word, a.Reason = "ALLOWED", "it was done"
			left++
		}
		if _, err := fmt.Fprintf(c.App.Writer, "%-10s  %s  %s: %s\n", a.Program, word, a.Try, a.Reason); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s, %d allowed\n", human.Count(len(all), "attempt"), left)
	return err
}

// leave runs this program as another one that tries to leave its room.
func leave(c *cli.Context, settings *config.Config, program string) ([]confine.Attempt, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(c.Context, self, "leave-room", program)
	cmd.Env, cmd.Stderr = service.Environment(settings), c.App.ErrWriter
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("try to leave the room of %s: %w", program, err)
	}
	var list []confine.Attempt
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("try to leave the room of %s: %w", program, err)
	}
	return list, nil
}

// leaveCommand is what check --confinement runs; it is not for people.
func leaveCommand() *cli.Command {
	return &cli.Command{
		Name: "leave-room", Hidden: true, Usage: "enter the room of a program and try to leave it",
		Action: func(c *cli.Context) error {
			settings, err := config.FromCLI(c)
			if err != nil {
				return err
			}
			program := c.Args().First()
			if err := confine.Enter(program, settings, slog.New(slog.DiscardHandler)); err != nil {
				return err
			}
			return text.PrintJSON(c.App.Writer, confine.PlanFor(program, settings).Leave())
		},
	}
}
