package e2e

import (
	"fmt"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// zmctl simulate computes when the queue will be empty and what expires, and changes nothing.
func TestSimulationOfTheQueue(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, func(s *suite.Suite) {
		s.Files["routes"] = ".one.example smtp!one.example\n.two.example smtp!two.example\n"
		s.Files["scheduler.conf"] = "*/* interval=1m retries=\"1 2 4\" expiry=1d maxthr=5\nsmtp/*\n\tcommand=\"ta-smtp --slots=5 $channel\"\nlocal/*\n\tcommand=\"ta-mailbox $channel\"\n"
	})
	for i := range 12 {
		submit(t, s, "Subject: planted\n\nbody\n", "-f", "bob@mta.example", fmt.Sprintf("u%d@x.%s.example", i, []string{"one", "two"}[i%2]))
	}
	exits(t, s, 0, "router", "--once")
	before := everything(t, s)
	var shown struct {
		Messages int
		Courses  []struct {
			Set       string
			Delivered int
			Expired   int
			Hosts     []struct {
				Host    string
				Expired int
				Drained float64 `json:"drained_after"`
			}
		}
	}
	ask(t, s, &shown, "simulate", "--json", "--latency=1s", "--down", "two.example", "--set", "smtp/{one,two}.example maxthr=1")
	if shown.Messages != 12 || len(shown.Courses) != 2 {
		t.Fatalf("got %+v", shown)
	}
	for _, c := range shown.Courses {
		if c.Delivered != 6 || c.Expired != 6 || len(c.Hosts) != 2 || c.Hosts[1].Expired != 6 {
			t.Errorf("got %+v", c)
		}
	}
	if a, b := shown.Courses[0].Hosts[0].Drained, shown.Courses[1].Hosts[0].Drained; b < 2*a {
		t.Errorf("with maxthr=1 it takes %v s, without %v s", b, a)
	}
	exits(t, s, 0, "zmctl", "simulate")
	exits(t, s, 78, "zmctl", "simulate", "--set", "smtp/* maxring=many")
	if got := everything(t, s); got != before {
		t.Errorf("the postoffice has changed: before\n%s\nafter\n%s", before, got)
	}
}
