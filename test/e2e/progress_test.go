package e2e

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// said gathers what a program says while it runs.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// M44: submit -v tells of the message until it is gone: queued, routed, what becomes of
// each recipient and what was answered. It ends by itself, with 0.
func TestSubmitTellsTheMessagesWay(t *testing.T) {
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
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	wantIn(t, text, "accepted as router/", "queued for 4 recipients",
		"alice@mta.example: delivered: 2.0.0 delivered to a Maildir", "now@sink.example: delivered: 2",
		"later@sink.example: deferred: 4.3.2", "next try at", "later@sink.example: delivered: 2",
		"never@sink.example: failed: 5.1.1", "a report (failed) to bob@mta.example", "finished\n")
	awaitEmpty(t, s)
}

// M44: a user without rights sees where his own message is, nothing of others', and that
// it is gone. ^C ends the telling, not the mail.
func TestOrdinaryUserSeesHisMessageGo(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("skipped: root is needed to be another user")
	}
	s := start(t, newSink(t, &peer.Sink{}), nil)
	text, code := submitAs(t, s, "Subject: x\n\n", "-v", "alice")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	wantIn(t, text, "accepted as public/", "the router has taken it")
	awaitMail(t, s, "alice", 1)
}

// M44: who interrupts submit -v has his message accepted all the same.
func TestInterruptedSubmitHasAcceptedItsMessage(t *testing.T) {
	t.Parallel()
	s := start(t, newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "451 4.3.2 not now" }}), nil)
	cmd := s.Command("submit", "-v", "-i", "later@sink.example")
	cmd.Stdin = strings.NewReader("Subject: x\n\n")
	out := &said{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, s, "it is queued", func() (bool, error) { return strings.Contains(out.String(), "queued"), nil })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended by ^C: %v, want 0: the message is accepted\n%s", err, out)
		}
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		t.Fatalf("does not end\n%s", out)
	}
	wantIn(t, out.String(), "zmctl events S")
	if _, err := s.Wait(patience, "later", func(e suite.Event) bool { return e.Word == "deferred" && e.Get("rcpt") == "later@sink.example" }); err != nil {
		t.Error(err)
	}
}
