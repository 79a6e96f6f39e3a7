package e2e

import (
	"net"
	"strings"
	"testing"
	"time"

	"zmailer/test/peer"
)

// A17: SIGTERM while an agent is in DATA: that delivery is finished, no other one begins, and
// later messages wait for the next start.
func TestStopFinishesADeliveryInData(t *testing.T) {
	t.Parallel()
	for _, at := range []string{peer.AtData, peer.AtDot} {
		t.Run("stopped at "+at, func(t *testing.T) {
			s, sink, g := stalled(t, at)
			ended := make(chan error, 1)
			go func() { ended <- s.Stop() }()
			event(t, s, "stopping", "program", "scheduler", "deliveries", "1")
			submit(t, s, "Subject: late\n\n", "-f", "bob@mta.example", "late@sink.example")
			g.release()
			select {
			case err := <-ended:
				must(t, err)
			case <-time.After(patience):
				t.Fatal("it does not stop")
			}
			if got := rcptsOf(sink); got != "far@sink.example" {
				t.Errorf("arrived: %q, want the one under way", got)
			}
			left, err := s.Left()
			if err != nil || len(left) != 1 || !strings.HasPrefix(left[0], "router/") {
				t.Errorf("left: %q, %v, want the late message in router/", left, err)
			}
			restart(t, s)
			awaitEmpty(t, s)
			if got := rcptsOf(sink); got != "far@sink.example late@sink.example" {
				t.Errorf("arrived: %q, want both", got)
			}
			if got := s.Count("in-doubt") + s.Count("agent-killed") + s.Count("daemon-killed"); got != 0 {
				t.Errorf("%d deliveries or programs were cut off", got)
			}
		})
	}
}

// A17: SIGTERM while a client is in DATA: its message is accepted and answered.
func TestStopFinishesASubmissionInData(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	k := connect(t, s.SMTPAddr)
	k.envelope("bob@mta.example", "far@sink.example")
	k.write("Subject: x\r\n\r\nfirst half\r\n")
	ended := make(chan error, 1)
	go func() { ended <- s.Stop() }()
	await(t, s, "closed port", func() (bool, error) {
		probe, err := net.Dial("tcp", s.SMTPAddr)
		if err != nil {
			return true, nil
		}
		return false, probe.Close()
	})
	k.say("second half\r\n.", "250")
	must(t, <-ended)
	restart(t, s)
	awaitEmpty(t, s)
	got := sink.Messages()
	if len(got) != 1 || !strings.HasSuffix(string(got[0].Data), "\r\n\r\nfirst half\r\nsecond half\r\n") {
		t.Errorf("%d messages arrived: %+v", len(got), got)
	}
}
