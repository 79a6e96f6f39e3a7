package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// pauser suspends deliveries and resumes them, and has new mail refused for a time, as an
// operator does. Some suspensions end by themselves, the others in the drain.
func (s *soak) pauser(ctx context.Context, d *dice) error {
	for d.pause(ctx, 300*time.Millisecond, 4*time.Second) {
		args := s.pauseOf(d)
		out, code, err := s.zmctl(args...)
		if err != nil {
			return err
		}
		s.pauses.Add(1)
		d.say("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, lastLine(out))
		// 1: it is suspended already, or nothing is.
		if code > 1 || strings.Contains(out, "panic:") {
			return fmt.Errorf("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, out)
		}
	}
	return nil
}

// pauseOf makes a command.
func (s *soak) pauseOf(d *dice) []string {
	until := d.between(time.Second, 5*time.Second).Round(time.Second).String()
	end := []string{"--reason", "soak"}
	if d.chance(70) {
		end = append(end, "--until", until)
	}
	what := [][]string{
		{"--host", s.servers[d.IntN(len(s.servers))].routeHost()}, {"--host", "u*@" + hostname},
		{"--channel", "smtp"}, {"--channel", "local"}, {"--channel", "file"},
		{"--sender", "@" + backDomain}, {"--sender", "<>"}, {"--channel", "smtp", "--sender", "<>"},
	}[d.IntN(8)]
	switch n := d.IntN(100); {
	case n < 50:
		return slices.Concat([]string{"suspend"}, what, end)
	case n < 62:
		return slices.Concat([]string{"resume"}, what)
	case n < 76:
		return []string{"resume", "--all"}
	case n < 88:
		return append([]string{"stop", "--accepting"}, end...)
	}
	return []string{"start", "--accepting"}
}

// unpause ends what is suspended, and has new mail accepted.
func (s *soak) unpause(ctx context.Context) error {
	for _, args := range [][]string{{"resume", "--all"}, {"start", "--accepting"}} {
		if err := s.again(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}
