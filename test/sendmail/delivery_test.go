package sendmail

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// nobody is the uid of a user without rights.
const nobody = 65534

// Loc1, Loc3, Loc4, Loc5: what a recipient and a sender see of mail that other users submit. One
// system serves all of it.
func TestLoc1345DeliveredMail(t *testing.T) {
	s := &suite.Suite{Bin: bin, Dir: rig.Dir(t), Users: []string{"alice", "bob", "carol"}}
	assert.Must(t, s.Init())
	assert.Must(t, s.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Log())
		}
		s.Kill()
	})
	s.AwaitDaemons(patience)
	submit := func(in string, args ...string) {
		t.Helper()
		cmd := asNobody(s.Command("sendmail", args...))
		cmd.Stdin = strings.NewReader(in)
		run(t, cmd)
	}
	delivered := func(user string) string {
		t.Helper()
		if _, err := s.Wait(patience, "delivery to "+user, func(e suite.Event) bool {
			return e.Word == "delivered" && strings.HasPrefix(e.Get("rcpt"), user+"@")
		}); err != nil {
			t.Fatal(err)
		}
		mail, err := suite.Mail(s.Maildir(user))
		if err != nil || len(mail) != 1 {
			t.Fatalf("%s has %d messages, %v", user, len(mail), err)
		}
		return string(mail[0])
	}
	t.Run("bare text is a body below a whole header", func(t *testing.T) {
		submit("disk full\n", "-f", "bob@mta.example", "-F", "Bob", "alice")
		header, body, _ := strings.Cut(delivered("alice"), "\n\n")
		assert.Equal(t, body, "disk full\n")
		for _, field := range []string{`From: "Bob" <bob@mta.example>`, "Date: ", "Message-ID: <"} {
			assert.Equal(t, strings.Count("\n"+header, "\n"+field), 1, field)
		}
	})
	t.Run("a session's message has a whole header, too", func(t *testing.T) {
		submit("MAIL FROM:<alice@mta.example>\r\nRCPT TO:<carol>\r\nDATA\r\nhello\r\n.\r\nQUIT\r\n", "-bs")
		header, body, _ := strings.Cut(delivered("carol"), "\n\n")
		if body != "hello\n" || !strings.Contains(header, "\nDate: ") || !strings.Contains(header, "\nMessage-ID: <") || !strings.Contains(header, "\nFrom: alice@mta.example") {
			t.Errorf("header %q, body %q", header, body)
		}
	})
	t.Run("a bad address is reported to the sender", func(t *testing.T) {
		submit("Subject: x\n\nhi\n", "-f", "bob@mta.example", "joe@@far.example", "bob@mta.example")
		// The message itself and the report.
		all := awaitMail(t, s, "bob", 2)
		if !strings.Contains(all, "joe@@far.example") {
			t.Errorf("no report names it: %q", all)
		}
	})
	t.Run("the queue is listed for a user without rights", func(t *testing.T) {
		cmd := asNobody(s.Command("sendmail", "-bp"))
		if out := run(t, cmd); !strings.Contains(out, "message") {
			t.Errorf("it lists %q", out)
		}
		assert.Must(t, os.Symlink("sendmail", bin+"/mailq"))
		if out := run(t, asNobody(s.Command("mailq"))); !strings.Contains(out, "message") {
			t.Errorf("it lists %q", out)
		}
	})
	t.Run("an address is verified", func(t *testing.T) {
		if out := run(t, asNobody(s.Command("sendmail", "-bv", "Alice <alice@mta.example>"))); !strings.Contains(out, "local!") {
			t.Errorf("it says %q", out)
		}
		cmd := asNobody(s.Command("sendmail", "-bv", "nosuchuser"))
		if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("exit code %d, %s", cmd.ProcessState.ExitCode(), out)
		}
	})
	t.Run("the queue is run by its owner alone", func(t *testing.T) {
		run(t, s.Command("sendmail", "-q"))
		if os.Geteuid() != 0 {
			return
		}
		if out, err := asNobody(s.Command("sendmail", "-q")).CombinedOutput(); err == nil || len(out) == 0 {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// asNobody takes root's rights from a command.
func asNobody(cmd *exec.Cmd) *exec.Cmd {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	cmd.Dir = "/"
	return cmd
}

// awaitMail returns all messages of a user once there are so many.
func awaitMail(t *testing.T, s *suite.Suite, user string, n int) string {
	t.Helper()
	_, err := s.Wait(patience, "mail of "+user, func(suite.Event) bool {
		mail, err := suite.Mail(s.Maildir(user))
		return err == nil && len(mail) >= n
	})
	assert.Must(t, err)
	mail, err := suite.Mail(s.Maildir(user))
	assert.Must(t, err)
	var all strings.Builder
	for _, m := range mail {
		all.Write(m)
	}
	return all.String()
}
