package e2e

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"
	"syscall"
	"testing"

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

// loginOf is the login name that submitAs acts under.
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
				if m.From != want {
					t.Errorf("-f %s: the sender is %q, want %q", from, m.From, want)
				}
				if want == "boss@far.example" {
					wantIn(t, string(m.Data), fmt.Sprintf("(from userid %d)", nobody), "From: boss@far.example")
				}
			}
			awaitEmpty(t, s)
			if got, want := s.Count("sender-replaced"), map[string]int{"owner": 2}[name]; got != want {
				t.Errorf("%d senders were replaced, want %d", got, want)
			}
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
