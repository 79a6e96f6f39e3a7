package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/test/peer"
)

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
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
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
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	wantIn(t, text, "public/")
	awaitMail(t, s, "alice", 1)
}

// M44: an interrupted submit -v exits with 0: its message is accepted.
func TestInterruptedSubmitHasAcceptedItsMessage(t *testing.T) {
	t.Parallel()
	s := start(t, newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "451 4.3.2 not now" }}), nil)
	cmd := s.Command("submit", "-v", "-i", "later@sink.example")
	cmd.Stdin = strings.NewReader("Subject: x\n\n")
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	await(t, s, "it is queued", func() (bool, error) { return strings.Contains(out.String(), "queued"), nil })
	must(t, cmd.Process.Signal(syscall.SIGINT))
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	must(t, cmd.Wait())
	event(t, s, "deferred", "rcpt", "later@sink.example")
}
