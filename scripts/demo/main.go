// Demo runs the whole mail system below a directory, sends five messages through it
// and prints each one's life as it happens. It exits with 0 if every message got where
// it should, with 1 and the reason if not.
//
//	go run ./scripts/demo -bin bin -dir var/demo
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/smtp"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

const patience = 45 * time.Second

func main() {
	bin := flag.String("bin", "bin", "directory of the programs")
	dir := flag.String("dir", "var/demo", "directory to work in; what it holds of an earlier run is removed")
	flag.Parse()
	if err := demo(*bin, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: FAILED:", err)
		os.Exit(1)
	}
}

func demo(bin, dir string) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	for _, sub := range []string{"postoffice", "mail", "conf"} {
		if err := os.RemoveAll(filepath.Join(dir, sub)); err != nil {
			return err
		}
	}
	remote := &peer.Sink{Rcpt: answer}
	if err := remote.Start(); err != nil {
		return err
	}
	defer remote.Close()
	life := newLife(os.Stdout)
	s := &suite.Suite{
		Bin: bin, Dir: dir, Hostname: "demo.example", Users: []string{"alice", "bob"}, OnEvent: life.print,
		Files: map[string]string{
			"routes":         ". smtp!" + remote.RouteHost() + "\n",
			"scheduler.conf": schedulerConf,
		},
	}
	if err := s.Init(); err != nil {
		return err
	}
	life.dir = s.PostOffice()
	fmt.Printf("The mail system %s runs below %s\n  postoffice     %s\n  configuration  %s\n  its SMTP       %s\n  another host   %s, a second SMTP server for every other domain\n\n",
		s.Hostname, dir, s.PostOffice(), filepath.Dir(s.Config()), s.SMTPAddr, remote.Addr())
	if err := s.Start(); err != nil {
		return errors.Join(err, s.Stop())
	}
	err = scenes(s, remote, life)
	if serr := s.Stop(); err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("%w\nThe log is above; the postoffice is kept in %s", err, s.PostOffice())
	}
	fmt.Printf("\nAll delivered, the postoffice is empty. Look at:\n  %s/new/   alice's mail\n  %s/new/     bob's mail, with the report\n", s.Maildir("alice"), s.Maildir("bob"))
	return nil
}

// schedulerConf retries after a second, so that a deferral can be watched.
const schedulerConf = `*/*
	interval=1s retries="1 1 2 3" expiry=1h maxta=10 maxring=20 maxthr=5
smtp/*
	command="ta-smtp --slots=20 $channel"
local/*
file/*
	command="ta-mailbox --slots=4 $channel"
`

// answer returns how the other host takes recipients: busy@ gets a temporary failure once,
// unknown@ does not exist.
func answer(address string, attempt int) string {
	switch {
	case strings.HasPrefix(address, "busy@") && attempt == 1:
		return "451 4.7.1 come back a little later"
	case strings.HasPrefix(address, "unknown@"):
		return "550 5.1.1 no such user here"
	}
	return ""
}

// scenes submits the messages and checks where they arrive.
func scenes(s *suite.Suite, remote *peer.Sink, life *life) error {
	scene := func(title string) { life.say("\n--- " + title + "\n") }

	scene("1. A local user writes to another: submit, to a Maildir")
	if err := submit(s, life, "-f", "bob@demo.example", "alice@demo.example"); err != nil {
		return err
	}
	if err := errors.Join(mail(s, "alice", 1, "Subject: a message"), logged(s, "delivered", 1, "alice@demo.example")); err != nil {
		return err
	}
	scene("2. By SMTP to two recipients on another host")
	if err := overSMTP(s, "one@far.example", "two@far.example"); err != nil {
		return err
	}
	if err := errors.Join(remote.Wait(1, patience), logged(s, "delivered", 1, "one@far.example", "two@far.example")); err != nil {
		return err
	}
	if got := remote.Messages()[0].Recipients; len(got) != 2 {
		return fmt.Errorf("the other host got recipients %q, want both in one transaction", got)
	}
	scene("3. To a host that answers 451 first, 250 at the next attempt")
	if err := overSMTP(s, "busy@far.example"); err != nil {
		return err
	}
	if err := logged(s, "deferred", 1, "busy@far.example"); err != nil {
		return err
	}
	if err := errors.Join(remote.Wait(2, patience), logged(s, "delivered", 1, "busy@far.example")); err != nil {
		return err
	}
	scene("4. To a host that answers 550: the sender gets a report")
	if err := overSMTP(s, "unknown@far.example"); err != nil {
		return err
	}
	if err := errors.Join(mail(s, "bob", 1, "unknown@far.example"), logged(s, "delivered", 1, "bob@demo.example")); err != nil {
		return err
	}
	scene("5. To a local and a remote recipient at once, through submit -t")
	if err := submit(s, life, "-f", "bob@demo.example", "-t"); err != nil {
		return err
	}
	if err := errors.Join(remote.Wait(3, patience), mail(s, "alice", 2, "Subject: a message"),
		logged(s, "delivered", 2, "alice@demo.example", "one@far.example"), empty(s)); err != nil {
		return err
	}
	if n, _ := remote.Count(); n != 3 {
		return fmt.Errorf("the other host got %d messages, want 3", n)
	}
	return nil
}

const text = "From: Bob <bob@demo.example>\nTo: alice@demo.example, one@far.example\nSubject: a message\n\nIt goes its way.\n.\n"

func submit(s *suite.Suite, life *life, args ...string) error {
	cmd := s.Command("submit", append([]string{"--id", "-i"}, args...)...)
	cmd.Stdin = strings.NewReader(text)
	var said strings.Builder
	cmd.Stderr = &said
	began := time.Now()
	id, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("submit %q: %w: %s", args, err, &said)
	}
	life.print(suite.Event{Time: began, Program: "submit", Word: "accepted", Attrs: map[string]any{"id": strings.TrimSpace(string(id))}})
	return nil
}

func overSMTP(s *suite.Suite, to ...string) error {
	return smtp.SendMail(s.SMTPAddr, nil, "bob@demo.example", to, []byte(strings.ReplaceAll(text, "\n", "\r\n")))
}

// logged waits until the log has said the word n times of each recipient, so that a
// scene's lines stand below its title.
func logged(s *suite.Suite, word string, n int, rcpts ...string) error {
	for _, rcpt := range rcpts {
		left := n
		_, err := s.Wait(patience, word+" of "+rcpt, func(e suite.Event) bool {
			if e.Word == word && e.Get("rcpt") == rcpt {
				left--
			}
			return left == 0
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mail waits until a user has n messages, each with the given words in it.
func mail(s *suite.Suite, user string, n int, words string) error {
	deadline := time.Now().Add(patience)
	for {
		got, err := suite.Mail(s.Maildir(user))
		if err != nil {
			return err
		}
		for _, m := range got {
			if !strings.Contains(string(m), words) {
				return fmt.Errorf("%s got a message without %q:\n%s", user, words, m)
			}
		}
		if len(got) >= n {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has %d of %d messages after %v", user, len(got), n, patience)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// empty waits until no message is left in the postoffice.
func empty(s *suite.Suite) error {
	deadline := time.Now().Add(patience)
	for {
		left, err := s.Left()
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left in the postoffice after %v: %q", patience, left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
