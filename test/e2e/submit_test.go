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

// Any user submits. Who has no right to another sender's name does not get it, and
// nor do his other privileged lines count; one in TRUSTED may say what he likes.
func TestSenderIsWhoOwnsTheFile(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the daemons' own user is trusted; root is needed to be another")
	}
	login := loginOf(t)
	tests := map[string]struct {
		trusted  bool
		from     string // of -f; "-" for none
		want     string // sender at the sink
		replaced bool
	}{
		"none":                  {false, "-", login + "@mta.example", false},
		"his own":               {false, login + "@mta.example", login + "@mta.example", false},
		"his own without host":  {false, login, login + "@mta.example", false},
		"another's":             {false, "boss@far.example", login + "@mta.example", true},
		"nobody's":              {false, "<>", login + "@mta.example", true},
		"another's, trusted":    {true, "boss@far.example", "boss@far.example", false},
		"the null one, trusted": {true, "<>", "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			sink := newSink(t, &peer.Sink{})
			s := start(t, sink, func(s *suite.Suite) {
				s.Settings = map[string]string{"SENDERCHECK": "owner"}
				if tt.trusted {
					s.Settings["TRUSTED"] = login
				}
			})
			args := []string{"far@sink.example"}
			if tt.from != "-" {
				args = append([]string{"-f", tt.from}, args...)
			}
			if said, code := submitAs(t, s, "Subject: x\n\n", args...); code != 0 {
				t.Fatalf("exit code %d: %s", code, said)
			}
			if err := sink.Wait(1, patience); err != nil {
				t.Fatal(err)
			}
			if got := sink.Messages()[0].From; got != tt.want {
				t.Errorf("the sender is %q, want %q", got, tt.want)
			}
			awaitEmpty(t, s)
			if got := s.Count("sender-replaced", "from", tt.want) > 0; got != tt.replaced {
				t.Errorf("replaced %v, want %v", got, tt.replaced)
			}
		})
	}
}

// Loc5: by default another sender is honoured, and the uid is seen.
func TestLoc5AnySenderByDefault(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the daemons' own user is trusted; root is needed to be another")
	}
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	if said, code := submitAs(t, s, "Subject: x\n\n", "-f", "boss@far.example", "far@sink.example"); code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	if err := sink.Wait(1, patience); err != nil {
		t.Fatal(err)
	}
	m := sink.Messages()[0]
	if m.From != "boss@far.example" {
		t.Errorf("the sender is %q", m.From)
	}
	wantIn(t, string(m.Data), fmt.Sprintf("(from userid %d)", nobody), "From: boss@far.example")
}

// -t takes the recipients of the header, and nobody sees those of Bcc.
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
			t.Errorf("somebody sees the Bcc: %q", text)
		}
		wantIn(t, text, "To: One <one@sink.example>,", "Subject: x")
	}
}

// What cannot be accepted is told by the exit code, and leaves nothing.
func TestRefusedSubmissionLeavesNothing(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	tests := map[string]struct {
		message string
		args    []string
		want    int
	}{
		"no recipient":               {"Subject: x\n\n", nil, 64},
		"no recipient in the header": {"Subject: x\n\n", []string{"-t"}, 64},
		"no such flag":               {"Subject: x\n\n", []string{"--no-such-flag", "bob"}, 64},
		"bad recipient":              {"Subject: x\n\n", []string{"two@@x.example"}, 65},
		"bad sender":                 {"Subject: x\n\n", []string{"-f", "a@b@c", "bob"}, 65},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := s.Command("submit", tt.args...)
			cmd.Stdin = strings.NewReader(tt.message)
			said, code := run(t, cmd)
			if code != tt.want || said == "" {
				t.Errorf("exit code %d, %q, want %d and why", code, said, tt.want)
			}
		})
	}
	t.Run("directories that forbid it", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("the directories are ours")
		}
		if err := os.Chmod(path(s, "public"), 0o755); err != nil {
			t.Fatal(err)
		}
		if said, code := submitAs(t, s, "Subject: x\n\n", "bob"); code != 75 {
			t.Errorf("exit code %d, %q, want 75", code, said)
		}
	})
	if left, err := s.Left(); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// M2, S21, and the trap "a local fault answered with 5xx": a disk that is full keeps the
// message with its submitter, exit code 75 and 452, and nothing is left; when there is
// room again it is accepted.
func TestFullDiskIsTheSubmittersToWaitFor(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
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
	said, code := run(t, cmd)
	if code != 75 || !strings.Contains(said, "no space left on device") {
		t.Errorf("submit: exit code %d, %q, want 75 and why", code, said)
	}
	bySMTP := func(body string) error {
		src := peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: 1, From: "bob@mta.example",
			To: func(int) string { return "far@sink.example" }, Body: func(int) []byte { return []byte(wire(body)) }}
		return src.Run(context.Background())
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
	if got := len(sink.Messages()); got != 2 {
		t.Errorf("%d messages arrived, want the two small ones", got)
	}
}
