package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// M11: one recipient of a message waits on channel hold; when the condition holds it is
// routed again, by the tables as they are then, and nobody else gets the message twice. The
// ledger counts the copy.
func TestRecipientOnHoldIsRoutedAgain(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	flag := ""
	s := start(t, sink, func(s *suite.Suite) {
		flag = filepath.Join(s.Dir, "flag")
		s.Files["routes"] = "later.example hold!io:" + flag + "\n" + s.Files["routes"]
	})
	submit(t, s, "Subject: hold\nMessage-ID: <1@held.example>\n\nbody\n", "x@later.example", "y@sink.example")
	event(t, s, "delivered", "rcpt", "y@sink.example")
	wantIn(t, zmctl(t, s, "check"), "<x@later.example> is routed again when io:"+flag+" holds")
	routes := filepath.Join(filepath.Dir(s.Config()), "routes")
	if err := os.WriteFile(routes, []byte(". smtp!"+sink.RouteHost()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(flag, []byte("now"), 0o644); err != nil {
		t.Fatal(err)
	}
	event(t, s, "rerouted", "rcpt", "x@later.example")
	event(t, s, "delivered", "rcpt", "x@later.example")
	awaitEmpty(t, s)
	for _, to := range []string{"x@later.example", "y@sink.example"} {
		list := arrivals(sink, to)
		if len(list) != 1 {
			t.Fatalf("%s got it %d times", to, len(list))
		}
		text := string(list[0].Data)
		for field, n := range map[string]int{"Received:": 1, "Message-ID: <1@held.example>": 1, "From:": 1, "Date:": 1, "Subject: hold": 1} {
			if got := strings.Count(text, field); got != n {
				t.Errorf("%s: %d times %s in %s", to, got, field, text)
			}
		}
	}
	balance(t, s)
}
