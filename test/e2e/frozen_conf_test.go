package e2e

import (
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// The trap "configuration frozen into queued mail": a message waits because the command
// of its channel cannot deliver, or because nothing serves the channel; what the next
// start finds in scheduler.conf delivers it.
func TestQueuedMailFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = strings.NewReplacer("interval=1s", "interval=1h", "ta-smtp --slots=20", "false", "local/*\n", "").Replace(schedulerConf)
	})
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	event(t, s, "agent-ended", "state", "exit status 1")
	event(t, s, "unknown-channel", "rcpt", "alice@mta.example")
	stop(t, s)
	configure(t, s, "scheduler.conf", schedulerConf)
	restart(t, s)
	awaitMail(t, s, "alice", 1)
	awaitEmpty(t, s)
	wantArrived(t, sink, 1)
}
