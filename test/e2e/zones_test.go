package e2e

import (
	"fmt"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Z6, Z16, Z14: two clauses, two zones: each host's mail comes from its zone's address
// and under its name; a deferred message comes from the same address again, and a rule on
// replies makes it another one.
func TestZonesOfTheSchedulerReachTheServer(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, attempt int) string {
		switch {
		case attempt > 1:
			return ""
		case address == "later@named.example":
			return "451 4.2.1 come back"
		case address == "moved@named.example":
			return "451 4.7.1 poor reputation"
		}
		return ""
	}})
	host := sink.RouteHost()
	s := prepare(t, sink, func(s *suite.Suite) {
		s.Files["routes"] = ".named.example smtp-named!" + host + "\n.many.example smtp-many!" + host + "\n. smtp!" + host + "\n"
		s.Files["replies"] = "smtp-*/* source /reputation/\n"
		s.Files["scheduler.conf"] = `*/* interval=1s retries=1 expiry=1d maxthr=5
smtp-named/*
	sources="127.0.0.2=two.mta.example 127.0.0.3=three.mta.example" helo=zone.mta.example
	command="ta-smtp --slots=5 $channel"
smtp-many/*
	sources=127.0.0.4 helo=many.mta.example
	command="ta-smtp --slots=5 $channel"
smtp/*
	command="ta-smtp --slots=5 $channel"
local/*
	command="ta-mailbox $channel"
`
	})
	begin(t, s)
	names := map[string]string{"127.0.0.1": "mta.example", "127.0.0.2": "two.mta.example", "127.0.0.3": "three.mta.example", "127.0.0.4": "many.mta.example"}
	to := []string{"later@named.example", "moved@named.example", "u@many.example", "u@else.example"}
	for i := range 8 {
		to = append(to, fmt.Sprintf("u%d@named.example", i))
	}
	for _, a := range to {
		submit(t, s, "Subject: zones\n\nbody\n", "-f", "bob@mta.example", a)
	}
	must(t, sink.Wait(len(to), patience))
	peers := map[string]bool{}
	for _, m := range sink.Messages() {
		if names[m.Peer] != m.Hello {
			t.Errorf("%v came from %s as %s", m.Recipients, m.Peer, m.Hello)
		}
		peers[m.Peer] = true
		switch want := map[string]string{"u@many.example": "127.0.0.4", "u@else.example": "127.0.0.1"}[m.Recipients[0]]; {
		case want != "" && m.Peer != want:
			t.Errorf("%v came from %s, want %s", m.Recipients, m.Peer, want)
		case want == "" && m.Peer != "127.0.0.2" && m.Peer != "127.0.0.3":
			t.Errorf("%v came from %s, which is not its zone's", m.Recipients, m.Peer)
		}
	}
	if len(peers) != 4 {
		t.Errorf("it came from %v, want four addresses", peers)
	}
	event(t, s, "reply-rule", "rcpt", "moved@named.example", "rule", confFile(s, "replies")+":1")
	// The reply that the history keeps, and the next attempt reads.
	event(t, s, "deferred", "rcpt", "moved@named.example", "reply", "another source")
}
