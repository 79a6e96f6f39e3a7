package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/suite"
)

// Operator is the program that Operate calls: zmctl under a name of its own, so that it differs
// from the one that runs the daemons.
const Operator = "zmctl-operator"

const (
	heldSender  = "held@mta.example"
	strayDomain = "grey.example" // senders in it are greylisted
	askedDomain = "ask.example"  // recipients in it are verified
)

// strayName returns a local part for each round; digits do not count in the greylist.
func strayName(round int) string {
	return strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprint(round))
}

// Remember has the configuration of a system, which is not prepared yet, know the kinds
// Greylisted and Verified.
func Remember(s *suite.Suite) {
	if s.Files == nil {
		s.Files = map[string]string{}
	}
	if s.Settings == nil {
		s.Settings = map[string]string{}
	}
	s.Files["access"] = "greylist from=" + strayDomain + "\nreject_unverified_recipient to=" + askedDomain + "\n"
	s.Settings["RELAYNETS"] = "127.0.0.1" // others on this machine are strangers
	s.Settings["GREYLIST"], s.Settings["GREYLISTDELAY"], s.Settings["GREYLISTALLOW"] = "rules", "1s", "0"
}

// Remembers reports whether a step, by its class of object, is one of the files of what was
// learned of clients and recipients.
func Remembers(class string) bool {
	return strings.HasPrefix(class, "clients/") || strings.HasPrefix(class, "verify/")
}

// Rewrites reports whether a step is made only when such a file is missing or damaged.
func Rewrites(class string) bool {
	return Remembers(class) && (strings.Contains(class, ".new") || strings.HasSuffix(class, "/"))
}

// Damage damages these files. What reads them at its start has to be started again.
func (l *Load) Damage() error {
	var all []string
	for _, dir := range []string{"clients", "verify"} {
		list, err := filepath.Glob(filepath.Join(l.Suite.PostOffice(), dir, "*"))
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	for _, name := range all {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // a draft that has become the file
		}
		if err == nil {
			_, err = f.WriteString("damaged\n")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Keep has the system write, append to and write anew what smtpserver learns, and an operator
// suspend and resume: the rounds from first on.
func (l *Load) Keep(ctx context.Context, first int) error {
	return errors.Join(l.learn(ctx, first), l.learn(ctx, first+1), l.Damage(), l.learn(ctx, first+2), l.Operate(ctx, first+3))
}

// learn sends what is greylisted and what is verified, and has smtpserver write what it has
// learned: at its end. Another one is started.
func (l *Load) learn(ctx context.Context, round int) error {
	return errors.Join(l.Send(ctx, round, Greylisted, Verified), l.End("smtpserver"))
}

// End has a daemon end in order, and waits until it has ended. zmctl run starts it again.
func (l *Load) End(program string) error {
	list, err := l.Suite.Processes()
	for _, p := range list {
		if p.Name != program {
			continue
		}
		if eerr := end(p.Pid); eerr != nil && eerr != unix.ESRCH {
			err = errors.Join(err, fmt.Errorf("end %s: %w", program, eerr))
		}
	}
	return err
}

func end(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return err
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
		switch {
		case err == unix.EINTR:
		case err == nil && n == 0:
			return fmt.Errorf("process %d has not ended after %v", pid, patience)
		default:
			return err
		}
	}
}

// Operate has an operator suspend a sender, and has a message of it and one of another be
// accepted. The scheduler is started again in between: what was acknowledged is on disk. When
// the other message has arrived the operator resumes the sender. Audit finds the message of the
// sender if it has arrived before, or never.
func (l *Load) Operate(ctx context.Context, round int) error {
	if err := l.operator(ctx, "suspend"); err != nil {
		return err
	}
	err := l.End("scheduler")
	if err := errors.Join(err, l.Send(ctx, round, Held), l.Send(ctx, round, Relay)); err != nil {
		return err
	}
	if err := l.arrived(ctx, round); err != nil {
		return err
	}
	l.mu.Lock()
	if l.resumed == nil {
		l.resumed = map[int]time.Time{}
	}
	l.resumed[round] = time.Now()
	l.mu.Unlock()
	return l.operator(ctx, "resume")
}

// operator has a verb be called until it succeeds, or finds that a call before has done it, which
// was killed or failed after that.
func (l *Load) operator(ctx context.Context, verb string) error {
	program := filepath.Join(l.Suite.Dir, Operator)
	if err := os.Link(filepath.Join(l.Suite.Bin, "zmctl"), program); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for {
		cmd := exec.Command(program, verb, "--sender", heldSender)
		cmd.Env = l.Suite.Env()
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		start := cmd.Start
		if l.StartOperator != nil {
			start = func() error { return l.StartOperator(cmd) }
		}
		err := start()
		if err == nil {
			_ = cmd.Wait() // the exit code is checked
			if cmd.ProcessState.ExitCode() == 0 || l.done(verb) {
				return nil
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("zmctl %s: %w: %v %s", verb, context.Cause(ctx), err, &said)
		}
	}
}

// done reports whether what a verb is to do is in force.
func (l *Load) done(verb string) bool {
	out, err := l.Suite.Command("zmctl", "suspend", "--json").Output()
	return err == nil && bytes.Contains(out, []byte(heldSender)) == (verb == "suspend")
}

// arrived waits until the sink has the accepted relayed messages of a round.
func (l *Load) arrived(ctx context.Context, round int) error {
	for seen := 0; ; {
		missing := map[string]bool{}
		for _, t := range l.Tries() {
			if t.Round == round && t.Kind == Relay && t.Fate == Accepted {
				missing[t.Token] = true
			}
		}
		all := l.Sink.Messages()
		for _, m := range all {
			delete(missing, group(tokenField, bytes.ReplaceAll(m.Data, []byte("\r\n"), []byte("\n"))))
		}
		if len(missing) == 0 {
			return nil
		}
		seen = len(all)
		_ = l.Sink.Wait(seen+1, 100*time.Millisecond) // ctx has the bound
		if ctx.Err() != nil {
			return fmt.Errorf("mail of another sender does not arrive while one is suspended: %w", context.Cause(ctx))
		}
	}
}

// early finds mail of a suspended sender that did not wait.
func (a *Audit) early(l *Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := map[string]time.Time{}
	for _, m := range l.Sink.Messages() {
		if m.From == heldSender {
			at[group(tokenField, bytes.ReplaceAll(m.Data, []byte("\r\n"), []byte("\n")))] = m.Time
		}
	}
	for _, t := range l.tries {
		resumed, ok := l.resumed[t.Round]
		if t.Kind != Held || at[t.Token].IsZero() || ok && !at[t.Token].Before(resumed) {
			continue
		}
		a.Unwanted = append(a.Unwanted, Finding{*t, "suspended", "it has arrived while its sender was suspended"})
	}
}

// Forgotten returns the recipients of accepted Verified mail whose answers, which were there
// before it was accepted, are not among those that are known.
func (l *Load) Forgotten(known []string) (list []string) {
	for _, t := range l.Tries() {
		to := recipient(Verified, t.Token)
		if t.Kind == Verified && t.Fate == Accepted && !slices.ContainsFunc(known, func(key string) bool { return strings.HasSuffix(key, " "+to) }) {
			list = append(list, to)
		}
	}
	return list
}
