package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
)

// routing is what the router's program says it would do with a message: docs/route.md.
type routing struct {
	File       string          `json:"file"`
	Sender     string          `json:"sender"`
	Verdict    string          `json:"verdict"`
	Reason     string          `json:"reason"`
	Why        string          `json:"why"`
	Recipients []routingOfRcpt `json:"recipients"`
}

type routingOfRcpt struct {
	Address string  `json:"address"`
	Verdict string  `json:"verdict"`
	Reason  string  `json:"reason"`
	Targets []place `json:"targets"`
}

// place is where mail for a recipient goes.
type place struct {
	Channel   string `json:"channel"`
	Host      string `json:"host"`
	User      string `json:"user"`
	Privilege uint32 `json:"privilege"`
	Sender    string `json:"sender"` // the message's, or the owner of the list that has it
}

// Verdicts of the router's program.
const (
	verdictRouted     = "routed"
	verdictRejected   = "rejected"
	verdictDeferred   = "deferred"
	verdictFrozen     = "frozen"
	verdictGone       = "gone"
	verdictUnreadable = "unreadable"
)

// routerChild is the router's program, asked of one message after the other.
type routerChild struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startRouter starts it with an environment, as environment makes it. Its stderr is ours:
// what is wrong with the configuration it says itself.
func startRouter(ctx context.Context, env []string, stderr io.Writer) (*routerChild, error) {
	path, err := service.Program("router")
	if err != nil {
		return nil, cli.Exit(err, config.ExitOSErr)
	}
	r := &routerChild{cmd: exec.CommandContext(ctx, path, "--route", "--json", "--stdin")}
	r.cmd.Env = env
	r.cmd.Stderr = stderr
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		r.in, err = r.cmd.StdinPipe()
	}
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	r.out = bufio.NewReaderSize(out, 64<<10)
	return r, nil
}

// ask has a message file routed; answer gives the answers in the order of the questions.
// Another goroutine may ask while one waits for an answer.
func (r *routerChild) ask(path string) error {
	_, err := io.WriteString(r.in, path+"\n")
	return err
}

func (r *routerChild) answer(to *routing) error {
	line, err := r.out.ReadBytes('\n')
	if err != nil {
		return r.ended(err)
	}
	*to = routing{}
	if err := json.Unmarshal(line, to); err != nil {
		return fmt.Errorf("read what router --route says: %w", err)
	}
	for i := range to.Recipients {
		for j := range to.Recipients[i].Targets {
			if t := &to.Recipients[i].Targets[j]; t.Sender == "" {
				t.Sender = to.Sender
			}
		}
	}
	return nil
}

// ended says why there is no answer: the program has told what is wrong with its
// configuration, and our exit code is its own.
func (r *routerChild) ended(err error) error {
	werr := r.cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(werr, &exit) && exit.ExitCode() > 0 {
		return cli.Exit("", exit.ExitCode())
	}
	return fmt.Errorf("ask router --route: %w", errors.Join(err, werr))
}

// close has it end.
func (r *routerChild) close() {
	if r == nil {
		return
	}
	r.in.Close()
	if r.cmd.ProcessState == nil {
		_, _ = io.Copy(io.Discard, r.out) // answers that nobody wants any more
		_ = r.cmd.Wait()
	}
}
