package e2e

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/test/suite"
)

// K9, and the trap "listing that deletes a live writer's temporary file": drafts that smtpserver
// and submit are writing survive every command that lists, checks or repairs, and the starts and
// sweeps of the daemons, although their files look hours old. A dead writer's draft is swept
// meanwhile.
func TestDraftsOfLiveWritersSurvive(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"ROUTERPOLL": "1s"} })
	part := strings.Repeat("0123456789abcde\n", 16<<10)
	k := connect(t, s.SMTPAddr)
	k.envelope("bob@mta.example", "alice@mta.example")
	k.write("Subject: half\r\n\r\n" + wire(part))
	cmd := s.Command("submit", "-i", "-f", "bob@mta.example", "alice@mta.example")
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all is well
	_, err = io.WriteString(in, "Subject: half\n\n"+part)
	must(t, err)
	const drafts = 2
	await(t, s, "two drafts", func() (bool, error) {
		large := 0
		for _, name := range names(t, s, "public") {
			if info, err := os.Stat(path(s, "public/"+name)); err == nil && info.Size() > int64(len(part)/2) {
				large++
			}
		}
		return large == drafts, nil
	})
	age := func() {
		t.Helper()
		old := time.Now().Add(-3 * time.Hour)
		for _, name := range names(t, s, "public") {
			must(t, os.Chtimes(path(s, "public/"+name), old, old))
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
		if got != drafts {
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
		must(t, syscall.Kill(oneOf(t, s, program).Pid, syscall.SIGTERM))
		event(t, s, "started", "program", program)
		there("the start of the " + program)
	}
	await(t, s, "sweep of the dead writer's draft", func() (bool, error) {
		_, err := os.Stat(dead)
		return os.IsNotExist(err), nil
	})
	there("the sweep")
	left, err := s.Left()
	must(t, err)
	s.DropDrafts(left)
	k.say(wire(part)+".", "250")
	_, err = io.WriteString(in, part)
	must(t, errors.Join(err, in.Close(), cmd.Wait()))
	for _, m := range awaitMail(t, s, "alice", drafts) {
		if !strings.HasSuffix(string(m), "\n\n"+part+part) {
			t.Errorf("a message of %d bytes arrived, want both halves", len(m))
		}
	}
	awaitEmpty(t, s)
}
