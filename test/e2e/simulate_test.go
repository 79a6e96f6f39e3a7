package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// The real programs on a planted queue that nobody serves: zmctl simulate tells when it
// will drain and what expires, and changes nothing.
func TestSimulatePlaysTheQueueAndLeavesItAlone(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, func(s *suite.Suite) {
		s.Files["routes"] = ".one.example smtp!one.example\n.two.example smtp!two.example\n"
		s.Files["scheduler.conf"] = "*/* interval=1m retries=\"1 2 4\" expiry=1d maxthr=5\nsmtp/*\n\tcommand=\"ta-smtp --slots=5 $channel\"\nlocal/*\n\tcommand=\"ta-mailbox $channel\"\n"
	})
	for i := range 12 {
		submit(t, s, "Subject: planted\n\nbody\n", "-f", "bob@mta.example", fmt.Sprintf("u%d@x.%s.example", i, []string{"one", "two"}[i%2]))
	}
	if said, code := call(t, s, "router", "--once"); code != 0 {
		t.Fatalf("router --once: %s", said)
	}
	before := listing(t, s)
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
	said, code := call(t, s, "zmctl", "simulate", "--json", "--latency=1s", "--down", "two.example", "--set", "smtp/{one,two}.example maxthr=1")
	if code != 0 {
		t.Fatalf("zmctl simulate: exit code %d: %s", code, said)
	}
	if err := json.Unmarshal([]byte(said), &shown); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
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
	said, code = call(t, s, "zmctl", "simulate")
	if code != 0 || !strings.Contains(said, "12 messages") || !strings.Contains(said, "As it is: 12 delivered") {
		t.Errorf("exit code %d: %s", code, said)
	}
	if said, code = call(t, s, "zmctl", "simulate", "--set", "smtp/* maxring=many"); code != 78 || !strings.Contains(said, "--set:1:") {
		t.Errorf("a clause that cannot be: exit code %d: %s", code, said)
	}
	if got := listing(t, s); got != before {
		t.Errorf("the postoffice has changed: before\n%s\nafter\n%s", before, got)
	}
}

// listing is every file of queue/ and transport/ with its time and bytes.
func listing(t *testing.T, s *suite.Suite) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"queue", "transport"} {
		entries, err := os.ReadDir(path(s, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&b, dir, e.Name(), info.Mode(), info.ModTime().UnixNano())
			b.WriteString(read(t, path(s, dir+"/"+e.Name())))
		}
	}
	return b.String()
}
