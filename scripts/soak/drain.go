package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// drain ends all trouble, waits until the postoffice is empty, and has the last mail
// read.
func (s *soak) drain(ctx context.Context) error {
	return errors.Join(s.empty(ctx), s.readMaildirs(), s.readBoxes())
}

// settled is when the files of messages no longer move between directories.
const settled = 10 * time.Second

func (s *soak) empty(ctx context.Context) error {
	for _, v := range s.servers {
		v.settle()
	}
	if err := s.unpause(ctx); err != nil {
		return err
	}
	if out, code, err := s.zmctl("resubmit", "--all"); err != nil || code != 0 {
		return fmt.Errorf("zmctl resubmit --all: exit code %d: %w %s", code, err, out)
	}
	if err := s.takeBack(ctx); err != nil {
		return err
	}
	s.plan.say("drain", "all servers are calm; stop and start")
	// A start takes up at once what recovery else finds at its next turn.
	if err := s.mail.Stop(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if err := s.counted(); err != nil {
		return err
	}
	if err := s.mail.Start(); err != nil {
		return fmt.Errorf("start again: %w", err)
	}
	// Another scheduler.conf may have frozen what expired in between.
	if err := s.free(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.drain)
	defer cancel()
	// The log's events tell when to look; what is swept from public/ is not always
	// followed by one, so it is looked at twice a second at the least.
	freed := time.Now()
	for begin := time.Now(); ; {
		left, err := s.left()
		if err != nil {
			return err
		}
		if time.Since(begin) > settled {
			// A hand may have had a frozen message on its way when all was thawed.
			if len(left) > 0 && time.Since(freed) > settled {
				freed = time.Now()
				if err := s.free(ctx); err != nil {
					return err
				}
			}
			s.hand.dropHalves(left)
			if err := s.putBack(ctx, left); err != nil {
				return err
			}
		}
		if len(left) == 0 {
			break
		}
		select {
		case <-s.events:
			wait(ctx, 50*time.Millisecond) // so that a thousand events are not a thousand looks
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("after %v there is left in the postoffice: %s", s.options.drain, strings.Join(left[:min(len(left), 30)], " "))
		}
	}
	s.plan.say("drain", "the postoffice is empty")
	return nil
}

// counted has zmctl count the files while nothing moves them (A18).
func (s *soak) counted() error {
	files, err := s.mail.Left()
	if err != nil {
		return err
	}
	want := map[string]int{}
	for _, name := range files {
		dir, _, _ := strings.Cut(name, "/")
		want[dir]++
	}
	// The texts beside what is put aside are no mail: Left passes over them, too.
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		texts, err := filepath.Glob(filepath.Join(s.mail.PostOffice(), dir, "reason.*"))
		if err != nil {
			return err
		}
		want[dir] += len(texts)
	}
	out, code, err := s.zmctl("status", "--json")
	if err != nil || code > 1 { // 1: with alarms
		return fmt.Errorf("zmctl status: exit code %d: %w %s", code, err, out)
	}
	var told struct {
		Directories []struct {
			Name  string
			Files int
		}
	}
	if err := json.Unmarshal([]byte(out), &told); err != nil {
		return fmt.Errorf("zmctl status --json: %w: %s", err, out)
	}
	s.plan.say("drain", fmt.Sprint("files: ", want))
	for _, d := range told.Directories {
		// Orders are no mail: Left passes over them.
		if d.Files != want[d.Name] && d.Name != postoffice.Orders {
			return fmt.Errorf("zmctl status counts %d files in %s/, there are %d", d.Files, d.Name, want[d.Name])
		}
	}
	return nil
}

// left lists what is work in the postoffice. Drafts of submitters that were killed are
// made old: then a router removes them. Drafts of zmctl reroute that was killed stay an
// hour; when no specification is left that could name one, they are none's.
func (s *soak) left() ([]string, error) {
	left, err := s.mail.Left()
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range left {
		if strings.HasPrefix(name, "public/smtp.") || strings.HasPrefix(name, "public/submit.") {
			_ = os.Chtimes(filepath.Join(s.mail.PostOffice(), name), old, old) // or it is gone
		}
	}
	left = s.hand.explained(s.mail.DropDrafts(left))
	if !slices.ContainsFunc(left, func(name string) bool { return strings.HasPrefix(name, "transport/") }) {
		left = slices.DeleteFunc(left, isCopyDraft)
	}
	return left, err
}

func isCopyDraft(name string) bool {
	return strings.HasPrefix(name, "public/"+postoffice.CopyPrefix+".")
}

// examine has zmctl look at the postoffice and at the ledger, when all is over.
func (s *soak) examine() error {
	if err := s.mail.Stop(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if err := s.hand.tidy(); err != nil {
		return err
	}
	if err := s.mail.Start(); err != nil {
		return fmt.Errorf("start again: %w", err)
	}
	if err := s.awaitScheduler(); err != nil {
		return err
	}
	defer s.plan.say("drain", "zmctl check is done")
	out, code, err := s.zmctl("check", "--problems")
	if err == nil && code != 0 {
		err = fmt.Errorf("zmctl check --problems: exit code %d: %s", code, out)
	}
	return errors.Join(err, s.balance())
}

// awaitScheduler waits until the scheduler has taken its lock.
func (s *soak) awaitScheduler() error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 300 {
		out, _, err := s.zmctl("status", "--json")
		if err != nil || strings.Contains(out, `"scheduler_runs": true`) {
			return err
		}
		<-tick.C
	}
	return errors.New("the scheduler does not start")
}

// zmctl runs zmctl and gives what it says and its exit code; -1: a signal ended it, or
// zmailer.conf was bad, with which no command changes anything.
func (s *soak) zmctl(args ...string) (string, int, error) {
	bad := s.bad.Load()
	cmd := s.mail.Command("zmctl", args...)
	out, err := said(cmd)
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		return "", -1, err
	}
	code := cmd.ProcessState.ExitCode()
	if code == config.ExitConfig && (bad%2 == 1 || bad != s.bad.Load()) {
		code = -1
	}
	return out, code, nil
}

// said runs a command and gives what it prints. With --json warnings on standard error are left
// out, which a program that reads the output does not see either.
func said(cmd *exec.Cmd) (string, error) {
	var out, warnings strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if slices.Contains(cmd.Args, "--json") {
		cmd.Stderr = &warnings
	}
	err := cmd.Run()
	if strings.Contains(warnings.String(), "panic:") {
		out.WriteString(warnings.String())
	}
	return out.String(), err
}
