package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// clerks give orders at the same time.
const clerks = 2

// clerk gives orders about queued mail, as an operator does. None of them changes what is
// expected of a message: takeBack undoes removals and ends what is held and frozen, and
// only recipients that no server ever takes are given up.
func (s *soak) clerk(ctx context.Context, d *dice) error {
	for d.pause(ctx, 50*time.Millisecond, 700*time.Millisecond) {
		args := orderOf(d)
		killAfter := time.Duration(0)
		if after := d.between(0, 40*time.Millisecond); d.chance(10) {
			killAfter = after
		}
		out, code, err := s.killed(killAfter, args...)
		if err != nil {
			return err
		}
		s.orders.Add(1)
		d.say("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, lastLine(out))
		// 1: there was nothing to undo, or a message had gone; 75: it is being delivered.
		if code > 1 && code != 75 || strings.Contains(out, "panic:") {
			return fmt.Errorf("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, out)
		}
	}
	return nil
}

// orderOf makes an order.
func orderOf(d *dice) []string {
	sel := selected(d)
	until := d.between(time.Second, 5*time.Second).Round(time.Second).String()
	half := d.chance(50)
	switch n := d.IntN(100); {
	case n < 16:
		args := []string{"hold", "--yes", "--reason", "soak"}
		if half {
			args = append(args, "--until", until)
		}
		return append(args, sel...)
	case n < 26:
		return append([]string{"release", "--yes"}, sel...)
	case n < 36:
		return append([]string{"freeze", "--yes"}, sel...)
	case n < 44:
		return append([]string{"thaw", "--yes"}, sel...)
	case n < 54:
		return append([]string{"retry", "--yes"}, sel...)
	case n < 60:
		return []string{"flush", "--yes", "smtp/*"}
	case n < 74:
		return append([]string{"reroute", "--yes"}, sel...)
	case n < 86:
		return append([]string{"remove", "--yes", "--reason", "soak"}, sel...)
	case n < 90:
		return []string{"expire", "--yes", "--to", "exp.*"}
	}
	return []string{"undo"}
}

// selected returns a selector.
func selected(d *dice) []string {
	digit := d.IntN(10)
	list := [][]string{
		{"--to", "*@s0.example"}, {"--to", "late.*"}, {"--to", fmt.Sprintf("*%d@*", digit)}, {"--to", "u*@" + hostname},
		{"--from", fmt.Sprintf("b.*%d@*", digit)}, {"--from", "<>"}, {"--reply", "45[01]"}, {"--state", "waiting"}, {"--state", "held,frozen"},
		{"--channel", "local,file"}, {"--channel", "smtp", "--older", "2s"}, {"--younger", "1s"}, {"--larger", "20k"}, {"--smaller", "2k"},
		{"--where", "not (channel smtp or older 3s) or reply greylist"}, {"--all"},
	}
	return list[d.IntN(len(list))]
}

func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return out[strings.LastIndexByte(out, '\n')+1:]
}

// killed runs zmctl as s.zmctl does, and kills it after a time if that is not zero.
func (s *soak) killed(after time.Duration, args ...string) (string, int, error) {
	if after == 0 {
		return s.zmctl(args...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	cmd := s.mail.Command("zmctl", args...)
	timed := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	timed.Env = cmd.Env
	out, err := said(timed)
	if timed.ProcessState == nil {
		if ctx.Err() != nil {
			return "", -1, nil // before it had begun
		}
		return "", -1, err
	}
	return out, timed.ProcessState.ExitCode(), nil
}

// takeBack ends what the clerks have ordered: what was removed comes back, and nothing is
// held or frozen any more.
func (s *soak) takeBack(ctx context.Context) error {
	out, code, err := s.zmctl("orders", "--json")
	if err != nil || code != 0 {
		return fmt.Errorf("zmctl orders: exit code %d: %w %s", code, err, out)
	}
	var names []string
	for line := range strings.Lines(out) {
		var o struct{ Order, Verb, Undone string }
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			return fmt.Errorf("zmctl orders --json: %w: %s", err, line)
		}
		if o.Verb == "remove" && o.Undone == "" {
			names = append([]string{o.Order}, names...) // the last one first
		}
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, s.again(ctx, "undo", name))
	}
	return errors.Join(append(errs, s.free(ctx))...)
}

// putBack undoes removals that no order names: of messages that were touched since. They
// may have been frozen or held before.
func (s *soak) putBack(ctx context.Context, left []string) error {
	var errs []error
	for _, name := range left {
		if id, ok := strings.CutPrefix(name, "removed/"); ok && !strings.HasSuffix(id, ".spec") {
			id, _, _ = strings.Cut(id, ".")
			errs = append(errs, s.again(ctx, "undo", id))
		}
	}
	if len(errs) > 0 {
		errs = append(errs, s.free(ctx))
	}
	return errors.Join(errs...)
}

// free ends what is frozen, and what is held, perhaps since before it was frozen.
func (s *soak) free(ctx context.Context) error {
	return errors.Join(s.again(ctx, "thaw", "--yes", "--all"), s.again(ctx, "release", "--yes", "--all"))
}

// again runs zmctl until it need not be tried again. That a message had gone is no error.
func (s *soak) again(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		out, code, err := s.zmctl(args...)
		if err != nil {
			return err
		}
		s.plan.say("drain", fmt.Sprintf("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, lastLine(out)))
		if code == 0 || code == 1 {
			return nil
		}
		// There is no event when an agent, or the scheduler, is done with a message.
		if code != 75 || !wait(ctx, 200*time.Millisecond) {
			return fmt.Errorf("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, out)
		}
	}
}
