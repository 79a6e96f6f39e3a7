package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// yes calls a verb that is to be done without a question.
func yes(t *testing.T, s *suite.Suite, args ...string) string {
	t.Helper()
	return zmctl(t, s, append([]string{args[0], "--yes"}, args[1:]...)...)
}

// balance wants the ledger in order.
func balance(t *testing.T, s *suite.Suite) {
	t.Helper()
	if said, code := call(t, s, "zmctl", "check", "--ledger"); code != 0 {
		t.Errorf("the ledger does not balance: exit code %d, %s", code, said)
	}
}

// M41: mail that is held beside a running scheduler is not tried, however often it is
// asked for; released it goes, once.
func TestHeldMailGoesWhenItIsReleased(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	wantIn(t, zmctl(t, s, "hold", "--dry-run", "--to", "one@*"), "1 recipient of 1 message; nothing was changed")
	wantIn(t, yes(t, s, "hold", "--to", "one@*", "--reason", "a test"), "held: <one@sink.example>", "; order ")
	close(sink.open)
	s.Forget()
	wantIn(t, yes(t, s, "flush", "*"), "due now: <two@sink.example>")
	event(t, s, "delivered", "rcpt", "two@sink.example")
	wantIn(t, zmctl(t, s, "queue", "--state", "held"), id, "one@sink.example  held, by ", `"a test"`)
	wantIn(t, zmctl(t, s, "retry", "--dry-run", "--all"), "0 recipients of 0 messages")
	if n := sink.count("one@sink.example"); n != 0 {
		t.Errorf("who is held got it %d times", n)
	}
	wantIn(t, yes(t, s, "release", "--from", "bob@mta.example"), "released: <one@sink.example>")
	yes(t, s, "retry", "--all")
	awaitEmpty(t, s)
	for _, to := range []string{"ok@sink.example", "one@sink.example", "two@sink.example"} {
		if n := sink.count(to); n != 1 {
			t.Errorf("%s got it %d times, want once", to, n)
		}
	}
	balance(t, s)
}

// M41: what is frozen stays over a restart and comes back with undo, or thawed, when it
// is due at once.
func TestFrozenMailGoesWhenItIsThawed(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	wantIn(t, zmctl(t, s, "freeze", id), "frozen: <one@sink.example>, <two@sink.example>")
	close(sink.open)
	stop(t, s)
	restart(t, s)
	wantIn(t, zmctl(t, s, "queue", "--state", "frozen", "--counts"), "frozen", "2")
	wantIn(t, zmctl(t, s, "retry", "--dry-run", "--all"), "0 recipients of 0 messages")
	s.Forget()
	wantIn(t, yes(t, s, "thaw", "--to", "one@*"), "thawed: <one@sink.example>")
	event(t, s, "delivered", "rcpt", "one@sink.example")
	if n := sink.count("two@sink.example"); n != 0 {
		t.Errorf("who is frozen got it %d times", n)
	}
	wantIn(t, zmctl(t, s, "thaw", id), "thawed: <two@sink.example>")
	awaitEmpty(t, s)
	balance(t, s)
}

// M41: expired by a person, the sender has one report of exactly these recipients, or,
// silently, none.
func TestExpiredByAPersonIsReportedOrSilent(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	waits(t, s)
	wantIn(t, yes(t, s, "expire", "--silent", "--to", "two@*"), "given up: <two@sink.example>")
	wantIn(t, yes(t, s, "expire", "--host", "*", "--state", "waiting"), "given up: <one@sink.example>")
	mail := awaitMail(t, s, "bob", 1)
	wantIn(t, string(mail[0]), "one@sink.example", "Status: 4.4.7")
	if strings.Contains(string(mail[0]), "two@sink.example") {
		t.Errorf("the report tells of who was to be given up silently:\n%s", mail[0])
	}
	awaitEmpty(t, s)
	balance(t, s)
	if said, code := call(t, s, "zmctl", "undo"); code != 1 || !strings.Contains(said, "it is gone") {
		t.Errorf("undo after the end: exit code %d, %s", code, said)
	}
}

// A15 M41: what a selector has removed comes back by undo without arguments, from
// removed/, too, and is delivered once.
func TestUndoBringsBackWhatASelectorRemoved(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	first, _ := waits(t, s)
	second, _ := waits(t, s)
	s.Forget()
	wantIn(t, yes(t, s, "remove", "--from", "bob@*"), "4 recipients of 2 messages removed", "zmctl undo")
	shelved(t, s, first)
	shelved(t, s, second)
	wantIn(t, zmctl(t, s, "orders"), "remove  2 messages", "from bob@*", "1 order")
	wantIn(t, zmctl(t, s, "undo"), first+"  is queued again", second+"  is queued again", "undone for 2 messages")
	wantIn(t, zmctl(t, s, "orders"), "undone ")
	if said, code := call(t, s, "zmctl", "undo"); code != 1 {
		t.Errorf("a second undo: exit code %d, %s", code, said)
	}
	close(sink.open)
	yes(t, s, "flush", "*")
	awaitEmpty(t, s)
	for _, to := range []string{"ok@sink.example", "one@sink.example", "two@sink.example"} {
		if n := sink.count(to); n != 2 {
			t.Errorf("%s got %d messages, want 2", to, n)
		}
	}
	balance(t, s)
}

// M41: after a change of routes, mail that waits goes the new way, each recipient once.
func TestReroutedMailGoesTheNewWay(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	other := newSink(t, &peer.Sink{})
	stop(t, s)
	routes := filepath.Join(filepath.Dir(s.Config()), "routes")
	if err := os.WriteFile(routes, []byte(". smtp!"+other.RouteHost()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	restart(t, s)
	s.Forget()
	wantIn(t, yes(t, s, "reroute", "--to", "one@*,two@*"), id+"  routed again: <one@sink.example>, <two@sink.example> as S")
	awaitEmpty(t, s)
	got := map[string]int{}
	for _, m := range other.Messages() {
		for _, to := range m.Recipients {
			got[to]++
		}
	}
	if len(got) != 2 || got["one@sink.example"] != 1 || got["two@sink.example"] != 1 {
		t.Errorf("the new host got %v", got)
	}
	if n := sink.count("one@sink.example"); n != 0 {
		t.Errorf("the old host got it %d times", n)
	}
	balance(t, s)
}

// M41: a host that was away is back: flush sends everything that waits for it at once,
// and leaves other hosts alone.
func TestFlushSendsWhatWaitsForAHost(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	for range 3 {
		waits(t, s)
	}
	close(sink.open)
	wantIn(t, zmctl(t, s, "flush", "--dry-run", "other.example"), "0 recipients")
	wantIn(t, yes(t, s, "flush", "smtp/*"), "6 recipients of 3 messages due now")
	awaitEmpty(t, s)
	for _, to := range []string{"one@sink.example", "two@sink.example"} {
		if n := sink.count(to); n != 3 {
			t.Errorf("%s got %d messages, want 3", to, n)
		}
	}
}
