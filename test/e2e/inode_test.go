package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"zmailer/test/peer"
)

// The trap "inode reused": a message with the inode number of one that was delivered,
// and with its name in queue/ and transport/, is another one: it is routed and
// delivered, has a spool ID of its own, and no command with the old ID touches it.
func TestInodeNumberUsedAgainIsAnotherMessage(t *testing.T) {
	t.Parallel()
	var busy atomic.Bool
	busy.Store(true)
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
		if busy.Load() && strings.HasPrefix(address, "w.") {
			return "451 4.2.1 later"
		}
		return ""
	}})
	s := start(t, sink, nil)
	submit(t, s, "Subject: first\n\n", "-f", "bob@mta.example", "w.first@sink.example")
	first := event(t, s, "deferred", "rcpt", "w.first@sink.example").Get("id")
	name := only(t, s, "transport")
	// A second name keeps the number for us when the message is gone.
	again := filepath.Join(s.Dir, "again")
	must(t, os.Link(path(s, "queue/"+name), again))
	busy.Store(false)
	awaitEmpty(t, s)

	busy.Store(true)
	number, _, _ := strings.Cut(name, "-")
	const text = "from <bob@mta.example>\nto <ok@sink.example>\nto <w.second@sink.example>\nenv-end\nSubject: second\n\n"
	must(t, errors.Join(os.WriteFile(again, []byte(text), 0o700), os.Rename(again, path(s, "router/"+number))))
	second := event(t, s, "deferred", "rcpt", "w.second@sink.example").Get("id")
	event(t, s, "delivered", "rcpt", "ok@sink.example", "id", second)
	if first == second || !strings.HasPrefix(second, "S"+number+"A") {
		t.Errorf("spool IDs %s and %s, want two of one inode number", first, second)
	}
	if got := only(t, s, "transport"); got != name {
		t.Errorf("the second message is %s, the first was %s", got, name)
	}
	for _, command := range []string{"show", "remove", "undo"} {
		if said, code := call(t, s, "zmctl", command, first); code == 0 || strings.Contains(said, "second") {
			t.Errorf("zmctl %s %s: exit code %d, %s", command, first, code, said)
		}
	}
	wantIn(t, zmctl(t, s, "queue"), second, "w.second@sink.example")
	busy.Store(false)
	awaitEmpty(t, s)
	for _, to := range []string{"w.first@sink.example", "ok@sink.example", "w.second@sink.example"} {
		if n := len(arrivals(sink, to)); n != 1 {
			t.Errorf("%s got it %d times, want once", to, n)
		}
	}
	balance(t, s)
}
