package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/test/suite"
)

// bySMTP sends one half of a message in DATA; end sends it once more and ends it.
func bySMTP(t *testing.T, s *suite.Suite, part string) (end func() error) {
	t.Helper()
	c, err := net.Dial("tcp", s.SMTPAddr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	answered := func(want string) error {
		line, err := r.ReadString('\n')
		for err == nil && strings.HasPrefix(line, want+"-") {
			line, err = r.ReadString('\n')
		}
		if err == nil && !strings.HasPrefix(line, want) {
			err = fmt.Errorf("the server said %q, want %s", line, want)
		}
		return err
	}
	say := func(line, want string) error {
		_, err := io.WriteString(c, line)
		return errors.Join(err, answered(want))
	}
	if err := errors.Join(answered("220"), say("EHLO c\r\n", "250"), say("MAIL FROM:<bob@mta.example>\r\n", "250"),
		say("RCPT TO:<alice@mta.example>\r\n", "250"), say("DATA\r\n", "354")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "Subject: half\r\n\r\n"+wire(part)); err != nil {
		t.Fatal(err)
	}
	return func() error { return errors.Join(say(wire(part)+".\r\n", "250"), say("QUIT\r\n", "221")) }
}

// bySubmit gives submit one half of a message; end gives it once more.
func bySubmit(t *testing.T, s *suite.Suite, part string) (end func() error) {
	t.Helper()
	cmd := s.Command("submit", "-i", "-f", "bob@mta.example", "alice@mta.example")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	})
	if _, err := io.WriteString(in, "Subject: half\n\n"+part); err != nil {
		t.Fatal(err)
	}
	return func() error {
		_, err := io.WriteString(in, part)
		return errors.Join(err, in.Close(), cmd.Wait())
	}
}

// K9, and the trap "listing that deletes a live writer's temporary file": messages that
// smtpserver and submit have begun to write, hours ago as it looks, survive every
// command that lists, checks or repairs, and the starts and sweeps of the daemons. One
// whose writer is dead is swept meanwhile.
func TestNobodyTakesAwayWhatIsBeingWritten(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"ROUTERPOLL": "1s"} })
	part := strings.Repeat("0123456789abcde\n", 16<<10)
	ends := []func() error{bySMTP(t, s, part), bySubmit(t, s, part)}
	await(t, s, "two drafts", func() (bool, error) {
		large := 0
		for _, name := range names(t, s, "public") {
			if info, err := os.Stat(path(s, "public/"+name)); err == nil && info.Size() > int64(len(part)/2) {
				large++
			}
		}
		return large == len(ends), nil
	})
	age := func() {
		t.Helper()
		old := time.Now().Add(-3 * time.Hour)
		for _, name := range names(t, s, "public") {
			if err := os.Chtimes(path(s, "public/"+name), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	age()
	dead := path(s, "public/smtp.77.dn0kpsb1upkv.1i")
	there := func(after string) {
		t.Helper()
		got := 0
		for _, name := range names(t, s, "public") {
			if path(s, "public/"+name) != dead {
				got++
			}
		}
		if got != len(ends) {
			t.Fatalf("after %s public/ holds %q, want the two that are being written", after, names(t, s, "public"))
		}
	}
	for _, c := range [][]string{{"status"}, {"queue"}, {"removed"}, {"check"}, {"check", "--ledger"}, {"check", "--stuck", "1s", "--older", "1s"},
		{"check", "--repair", "--dry-run"}, {"check", "--repair"}, {"resubmit", "all"}, {"init"}} {
		if said, code := call(t, s, "zmctl", c...); code > 2 {
			t.Errorf("zmctl %q: exit code %d, %s", c, code, said)
		}
		there("zmctl " + strings.Join(c, " "))
	}
	write(t, dead, "comment oct")
	age()
	for _, program := range []string{"router", "scheduler"} {
		s.Forget()
		if err := syscall.Kill(oneOf(t, s, program).Pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		event(t, s, "started", "program", program)
		there("the start of the " + program)
	}
	await(t, s, "sweep of the dead writer's draft", func() (bool, error) {
		_, err := os.Stat(dead)
		return os.IsNotExist(err), nil
	})
	there("the sweep")
	left, err := s.Left()
	if err != nil {
		t.Fatal(err)
	}
	s.DropDrafts(left)
	for _, end := range ends {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	for _, m := range awaitMail(t, s, "alice", len(ends)) {
		if !strings.HasSuffix(string(m), "\n\n"+part+part) {
			t.Errorf("a message of %d bytes arrived, want both halves", len(m))
		}
	}
	awaitEmpty(t, s)
}
