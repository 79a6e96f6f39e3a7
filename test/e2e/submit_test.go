package e2e

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// submitAs submits as a user without rights and gives what was said.
func submitAs(t *testing.T, s *suite.Suite, message string, args ...string) (said string, code int) {
	t.Helper()
	cmd := s.Command("submit", append([]string{"-i"}, args...)...)
	cmd.Stdin = strings.NewReader(message)
	asNobody(cmd)
	return run(t, cmd)
}

// loginOf returns the login name that submitAs acts under.
func loginOf(t *testing.T) string {
	t.Helper()
	id := fmt.Sprint(os.Geteuid())
	if id == "0" {
		id = fmt.Sprint(nobody)
	}
	u, err := user.LookupId(id)
	if err != nil {
		t.Skipf("uid %s has no login name: %v", id, err)
	}
	return u.Username
}

// Loc5: by default the sender of -f is used, and the submitter's uid is recorded. With
// SENDERCHECK=owner a sender that is not the submitter's is replaced, unless TRUSTED names the
// submitter.
func TestSenderOfALocalSubmission(t *testing.T) {
	t.Parallel()
	needRoot(t) // to be another user; the daemons' own user is trusted
	login := loginOf(t)
	for name, tt := range map[string]struct {
		settings map[string]string
		from     map[string]string // by the argument of -f, "-" for none
	}{
		"default": {nil, map[string]string{"boss@far.example": "boss@far.example"}},
		"owner": {map[string]string{"SENDERCHECK": "owner"}, map[string]string{
			"-": login + "@mta.example", login: login + "@mta.example", "boss@far.example": login + "@mta.example", "<>": login + "@mta.example"}},
		"trusted": {map[string]string{"SENDERCHECK": "owner", "TRUSTED": login}, map[string]string{"boss@far.example": "boss@far.example", "<>": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := newSink(t, &peer.Sink{})
			s := start(t, sink, func(s *suite.Suite) { s.Settings = tt.settings })
			n := 0
			for from, want := range tt.from {
				args := []string{"-f", from, "far@sink.example"}
				if from == "-" {
					args = args[2:]
				}
				if said, code := submitAs(t, s, "Subject: x\n\n", args...); code != 0 {
					t.Fatalf("exit code %d: %s", code, said)
				}
				m := arrived(t, sink, n)
				n++
				assert.Equal(t, m.From, want, from)
				if want == "boss@far.example" {
					wantIn(t, string(m.Data), fmt.Sprintf("(from userid %d)", nobody), "From: boss@far.example")
				}
			}
			awaitEmpty(t, s)
			want := map[string]int{"owner": 2}[name]
			logtest.Eventually(t, fmt.Sprintf("%d senders are replaced", want), func() bool { return s.Count("sender-replaced") == want })
		})
	}
}

// -t takes the recipients of the header; those of Bcc are not sent.
func TestHeaderRecipientsWithoutBcc(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	const message = "To: One <one@sink.example>,\n two@sink.example\nBcc: secret@sink.example,\n\tsecond-secret@sink.example\nCc: alice\nSubject: x\n\nbody\n"
	submit(t, s, message, "-t", "-f", "bob@mta.example", "four@sink.example")
	mail := string(awaitMail(t, s, "alice", 1)[0])
	awaitEmpty(t, s)
	if got, want := rcptsOf(sink), "four@sink.example one@sink.example second-secret@sink.example secret@sink.example two@sink.example"; got != want {
		t.Errorf("the sink got mail for %q, want %q", got, want)
	}
	for _, text := range []string{mail, string(sink.Messages()[0].Data)} {
		if strings.Contains(strings.ToLower(text), "secret") || strings.Contains(text, "Bcc") {
			t.Errorf("Bcc was sent: %q", text)
		}
		wantIn(t, text, "To: One <one@sink.example>,", "Subject: x")
	}
}

// M2, S21, and the trap "a local fault answered with 5xx": while the disk is full, submissions get
// exit code 75 and 452, and leave nothing; when there is space they are accepted.
func TestFullDiskIsATemporaryError(t *testing.T) {
	t.Parallel()
	needRoot(t)
	sink := newSink(t, &peer.Sink{Discard: true})
	// The disk is smaller than what is left free on others.
	s := prepare(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"MINFREE": "0"} })
	if err := syscall.Mount("tmpfs", s.PostOffice(), "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		// Its processes are killed; the last of them may still be on its way out.
		if err := syscall.Unmount(s.PostOffice(), syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	zmctl(t, s, "init")
	begin(t, s)
	big := "Subject: big\n\n" + strings.Repeat(strings.Repeat("x", 71)+"\n", 10000)
	cmd := s.Command("submit", "-f", "bob@mta.example", "far@sink.example")
	cmd.Stdin = strings.NewReader(big)
	if said, code := run(t, cmd); code != 75 {
		t.Errorf("submit: exit code %d, want 75: %s", code, said)
	}
	bySMTP := func(body string) error {
		return source(s, 1, "bob@mta.example", "far@sink.example", body).Run(context.Background())
	}
	if err := bySMTP(big); err == nil || !strings.Contains(err.Error(), `"452 `) {
		t.Errorf("smtpserver: got %v, want 452", err)
	}
	if left, err := s.Left(); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	event(t, s, "storage-trouble", "level", "ERROR", "program", "smtpserver")
	submit(t, s, "Subject: small\n\n", "-f", "bob@mta.example", "far@sink.example")
	if err := bySMTP("Subject: small\n\n"); err != nil {
		t.Error(err)
	}
	awaitEmpty(t, s)
	wantArrived(t, sink, 2)
}

// M44: submit -v prints the message's events until it is gone, with each recipient's outcome, and
// exits with 0.
func TestSubmitFollowsItsMessage(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, attempt int) string {
		switch {
		case strings.HasPrefix(address, "never@"):
			return "550 5.1.1 no such user"
		case strings.HasPrefix(address, "later@") && attempt == 1:
			return "451 4.3.2 not now"
		}
		return ""
	}})
	s := start(t, sink, nil)
	event(t, s, "query-served")
	cmd := s.Command("submit", "-v", "-i", "-f", "bob@mta.example", "alice", "now@sink.example", "later@sink.example", "never@sink.example")
	cmd.Stdin = strings.NewReader("Subject: x\n\nbody\n")
	text, code := run(t, cmd)
	assert.Equal(t, code, 0)
	wantIn(t, text, "router/", "alice@mta.example: delivered: 2", "now@sink.example: delivered: 2", "later@sink.example: deferred: 4.3.2",
		"later@sink.example: delivered: 2", "never@sink.example: failed: 5.1.1", "finished\n")
	awaitEmpty(t, s)
}

// M44: an ordinary user can follow the user's own message.
func TestOrdinaryUserSeesHisMessageGo(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := start(t, newSink(t, &peer.Sink{}), nil)
	text, code := submitAs(t, s, "Subject: x\n\n", "-v", "alice")
	assert.Equal(t, code, 0)
	wantIn(t, text, "public/")
	awaitMail(t, s, "alice", 1)
}

// M44: an interrupted submit -v exits with 0: its message is accepted.
func TestInterruptedSubmitHasAcceptedItsMessage(t *testing.T) {
	t.Parallel()
	s := start(t, newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "451 4.3.2 not now" }}), nil)
	cmd := s.Command("submit", "-v", "-i", "later@sink.example")
	cmd.Stdin = strings.NewReader("Subject: x\n\n")
	out := &logtest.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	assert.Must(t, cmd.Start())
	await(t, s, "it is queued", func() (bool, error) { return strings.Contains(out.String(), "queued"), nil })
	assert.Must(t, cmd.Process.Signal(syscall.SIGINT))
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	assert.Must(t, cmd.Wait())
	event(t, s, "deferred", "rcpt", "later@sink.example")
}

// contents are messages that programs on the way have changed.
var contents = map[string]string{
	"empty body":               "Subject: empty\n\n",
	"header without a body":    "Subject: header only\n",
	"one byte without newline": "Subject: one\n\nx",
	"lone dots":                "Subject: dots\n\n.\n..\n.x\nx.\n.\n",
	"NUL and 8-bit":            "Subject: octets\n\n\x00\x01\xff\xfe\x80 caf\xc3\xa9\n\x00",
	"From lines":               "Subject: from\n\nFrom here\n>From there\n\nFrom the end\n",
	"bare CR":                  "Subject: cr\n\na\rb\r\rc\n",
	"folded header":            "Subject: a\n b\n\tc\nX-Empty:\nX-Last: z\n\nbody\n",
	"header line of 200 kB":    "Subject: long\nX-Long: " + strings.Repeat("0123456789", 20000) + "\n\nbody\n",
	"8-bit header":             "Subject: caf\xe9\nX-Y: \xfe\n\nbody\n",
}

// Z4, and the trap "a body without a final newline": what is submitted locally or by SMTP
// arrives byte for byte below the lines that were added on top: by SMTP with CRLF and an ended
// last line, in a Maildir as it was.
func TestContentArrivesByteForByte(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	seen := map[string]bool{}
	n := 0
	for name, text := range contents {
		submit(t, s, text, "-f", "bob@mta.example", "alice@mta.example", "far@sink.example")
		sendSMTP(t, s, "bob@mta.example", "far@sink.example", text)
		assert.Must(t, sink.Wait(2*n+2, patience))
		for _, m := range sink.Messages()[2*n:] {
			if got := string(m.Data); !strings.HasSuffix(got, "\r\n"+wire(text)) {
				t.Errorf("%s: the sink got %q", name, abbreviate(got))
			}
		}
		n++
		found := false
		for _, m := range awaitMail(t, s, "alice", n) {
			if !seen[string(m)] && strings.HasSuffix(string(m), "\n"+text) {
				found, seen[string(m)] = true, true
			}
		}
		if !found {
			t.Errorf("%s: no message in the Maildir ends with it", name)
		}
	}
	awaitEmpty(t, s)
}

// Op1: while zmailer.conf cannot be used, or is away, users' mail is accepted by the settings that
// the daemons go by, within their limits, and delivered.
func TestOp1UsersSubmitWhileZmailerConfCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := confined(t, nil, func(s *suite.Suite) {
		s.Settings["MAXSIZE"], s.Settings["LOCALUSERS"] = "20k", filepath.Join(s.Dir, "conf", "local")
		s.Files["local"] = "alice\n"
		s.Files["scheduler.conf"] = schedulerConf
	})
	begin(t, s)
	event(t, s, "started", "program", "scheduler")
	good := read(t, s.Config())
	mail := 0
	takes := func(what string) {
		t.Helper()
		for _, args := range [][]string{{"alice@mta.example"}, {"-bs"}} {
			message := "Subject: x\n\n"
			if args[0] == "-bs" {
				message = "HELO me\r\nMAIL FROM:<root@mta.example>\r\nRCPT TO:<alice@mta.example>\r\nDATA\r\nSubject: x\r\n\r\n.\r\nQUIT\r\n"
			}
			said, code := submitAs(t, s, message, args...)
			if code != 0 || args[0] != "-bs" && said != "" {
				t.Errorf("%s, %v: exit code %d, %s", what, args, code, said)
			}
			mail++
		}
		awaitMail(t, s, "alice", mail)
	}
	takes("good")
	configure(t, s, "zmailer.conf", good+"MAXSIZE=many\nMAXRCPT 5\n")
	takes("wrong lines")
	said, code := submitAs(t, s, "Subject: x\n\n"+strings.Repeat("x\n", 20<<10), "alice@mta.example")
	if code == 0 {
		t.Errorf("a message above MAXSIZE was taken: %s", said)
	}
	if said, code := submitAs(t, s, "Subject: x\n\n", "-v", "--id", "alice@mta.example"); code != 0 || strings.Count(said, s.Config()) != 2 {
		t.Errorf("-v names no errors: %d, %s", code, said)
	}
	mail++
	assert.Must(t, os.Chmod(s.Config(), 0))
	takes("closed")
	assert.Must(t, os.Rename(s.Config(), s.Config()+".away"))
	takes("away")
	s.Kill()
	if said, code := submitAs(t, s, "Subject: x\n\n", "alice@mta.example"); code != 0 {
		t.Errorf("without daemons: %d, %s", code, said)
	}
	assert.Must(t, os.Remove(path(s, ".submit")))
	if said, code := submitAs(t, s, "Subject: x\n\n", "alice@mta.example"); code != 78 {
		t.Errorf("without settings: %d, %s", code, said)
	}
}
