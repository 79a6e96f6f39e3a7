package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
)

// TryCommand is the hidden command of zmctl that calls TryEscape.
const TryCommand = "try-escape"

// Confined reports whether programs are confined at all.
func Confined(settings *config.Config) bool {
	return confine.PlanFor("smtpserver", settings).Applies()
}

// Confinement has a process for each program enter its sandbox and try what it must not be
// able to do. A process cannot leave a sandbox, so each is a zmctl of its own, whose errors
// go to stderr.
func Confinement(ctx context.Context, settings *config.Config, stderr io.Writer) ([]confine.Attempt, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := []confine.Attempt{}
	// launcher is scheduler --start-agents, opener is router with its file opener.
	for _, program := range []string{"smtpserver", "router", "opener", "scheduler", "ta-smtp", "launcher", "ta-mailbox"} {
		if confine.PlanFor(program, settings).Exempt() {
			continue
		}
		cmd := exec.CommandContext(ctx, self, TryCommand, program)
		cmd.Env, cmd.Stderr = service.Environment(settings), stderr
		out, err := cmd.Output()
		var list []confine.Attempt
		if err == nil {
			err = json.Unmarshal(out, &list)
		}
		if err != nil {
			return all, fmt.Errorf("check the sandbox of %s: %w", program, err)
		}
		all = append(all, list...)
	}
	return all, nil
}

// TryEscape enters the sandbox of a program for good, and tries what it must not be able to
// do there.
func TryEscape(settings *config.Config, program string) ([]confine.Attempt, error) {
	if err := confine.Enter(program, settings, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	return confine.PlanFor(program, settings).TryEscape(), nil
}
