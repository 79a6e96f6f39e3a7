package e2e

import (
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// M33: one agent serves one host after the other, and each host over one connection: as
// many forks as agents, as many connects as hosts, however many messages there are.
func TestForksAndConnectsAreFew(t *testing.T) {
	t.Parallel()
	const rounds = 8
	var sinks []*peer.Sink
	routes := ""
	for _, domain := range []string{"one", "two", "three"} {
		sink := newSink(t, &peer.Sink{})
		sinks = append(sinks, sink)
		routes += "." + domain + ".example smtp!" + sink.RouteHost() + "\n"
	}
	s := prepare(t, sinks[0], func(s *suite.Suite) {
		s.Files["routes"] = routes
		s.Files["scheduler.conf"] = "*/* interval=1m retries=1 expiry=1d idlemax=5m maxthr=5\nsmtp/*\n\tcommand=\"ta-smtp --slots=5 --idle=5m $channel\"\nlocal/*\n\tcommand=\"ta-mailbox $channel\"\n"
	})
	begin(t, s)
	for n := range rounds {
		for i, domain := range []string{"one", "two", "three"} {
			submit(t, s, "Subject: forks\n\nbody\n", "-f", "bob@mta.example", "u@"+domain+".example")
			// The one before has ended, so its agent and its connection are free.
			must(t, sinks[i].Wait(n+1, patience))
			want := 3*n + i + 1
			if _, err := s.Wait(patience, "the delivery", func(suite.Event) bool { return delivered(s) >= want }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, sink := range sinks {
		if _, connects := sink.Count(); connects != 1 {
			t.Errorf("host %d: %d connections for %d messages, want 1", i, connects, rounds)
		}
	}
	forks := 0
	for _, e := range s.Events() {
		if e.Word == "agent-started" {
			forks++
		}
	}
	if forks != 1 {
		t.Errorf("%d agents were started for %d messages to 3 hosts, want 1", forks, 3*rounds)
	}
}

// delivered counts the deliveries in the log.
func delivered(s *suite.Suite) (n int) {
	for _, e := range s.Events() {
		if e.Word == "delivered" {
			n++
		}
	}
	return n
}
