package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"zmailer/test/suite"
)

// most is how often one daemon is ended before the whole system is started anew:
// zmctl run waits twice as long before each further start of it.
const most = 3

// killer ends and stops processes.
func (s *soak) killer(ctx context.Context, d *dice) error {
	for d.pause(ctx, 300*time.Millisecond, 2500*time.Millisecond) {
		what := d.IntN(100)
		if s.tired() {
			what = 99
		}
		var err error
		switch {
		case what < 30:
			err = s.signal(ctx, d, syscall.SIGKILL, agents())
		case what < 60:
			err = s.signal(ctx, d, syscall.SIGKILL, daemons())
		case what < 68:
			err = s.signal(ctx, d, syscall.SIGTERM, append(agents(), daemons()...))
		case what < 84:
			err = s.signal(ctx, d, syscall.SIGSTOP, append(agents(), daemons()...))
		default:
			err = s.restart(d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func daemons() []string { return []string{"smtpserver", "router", "scheduler"} }
func agents() []string  { return []string{"ta-smtp", "ta-mailbox"} }

// signal sends a signal to one of the processes of these names. A stopped one goes on
// after a while.
func (s *soak) signal(ctx context.Context, d *dice, sig syscall.Signal, names []string) error {
	length := d.between(100*time.Millisecond, 3*time.Second)
	choice := d.Uint64()
	list, err := s.mail.Processes()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(p suite.Process) bool { return !slices.Contains(names, p.Name) })
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b suite.Process) int { return strings.Compare(a.Name, b.Name) })
	p := list[choice%uint64(len(list))]
	if !s.end(p, sig) {
		return nil
	}
	s.kills.Add(1)
	d.say("%v to %s %d", sig, p.Name, p.Pid)
	if sig == syscall.SIGSTOP {
		wait(ctx, length)
		s.end(p, syscall.SIGCONT)
		d.say("%s %d goes on after %v", p.Name, p.Pid, length.Round(time.Millisecond))
	}
	return nil
}

// tired reports whether a daemon was ended so often that zmctl run waits long before its
// next start.
func (s *soak) tired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range daemons() {
		if s.ended[name] >= most {
			return true
		}
	}
	return false
}

// restart ends the whole system in one of three ways and starts it again.
func (s *soak) restart(d *dice) error {
	way := d.IntN(3)
	s.starting.Lock()
	defer s.starting.Unlock()
	s.kills.Add(1)
	switch way {
	case 0:
		d.say("SIGKILL to all")
		s.mail.Kill()
	case 1:
		d.say("SIGKILL to zmctl run")
		s.mail.KillMain()
	default:
		d.say("SIGTERM to zmctl run")
		if err := s.mail.Stop(); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
	}
	if err := s.mail.Start(); err != nil {
		return fmt.Errorf("start again: %w", err)
	}
	s.mu.Lock()
	clear(s.ended)
	s.mu.Unlock()
	d.say("started again")
	return nil
}
