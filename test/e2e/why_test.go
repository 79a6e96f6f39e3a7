package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// why tells of one message: the host, the last answer, the next attempt, a hold with who
// and until when; with and without a scheduler. history tells the same in the order of time.
func TestWhyTellsTheChainOfCauses(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	said := zmctl(t, s, "why", id)
	wantIn(t, said, id+" from <bob@mta.example>", "Of 3 recipients, 2 are open; 1 delivered.", "Tried once; the last answer was: 4.2.1 451 4.2.1 later",
		"The next attempt is at ", "is given up")
	zmctl(t, s, "hold", "--until", "3h", "--reason", "for a test", id)
	said = zmctl(t, s, "why", id)
	wantIn(t, said, "<one@sink.example>, <two@sink.example> over smtp/", " are held by ", `"for a test"`, "until ", "zmctl release "+id)
	zmctl(t, s, "freeze", id)
	wantIn(t, zmctl(t, s, "why", id), " are frozen by ", "zmctl thaw "+id)
	history := zmctl(t, s, "history", id)
	wantIn(t, history, "accepted from <bob@mta.example>", "routed to 3 recipients", "attempt 1 for <one@sink.example>, <two@sink.example> failed: 4.2.1 451 4.2.1 later; next ",
		"held <one@sink.example>, <two@sink.example> until ", ": for a test (order ", "frozen <one@sink.example>")
	for line := range strings.Lines(zmctl(t, s, "history", "--json", id)) {
		var h struct{ ID, Event, Text string }
		if err := json.Unmarshal([]byte(line), &h); err != nil || h.ID != id || h.Event == "" || h.Text == "" {
			t.Errorf("%s: %v, %+v", line, err, h)
		}
	}
	stop(t, s)
	wantIn(t, zmctl(t, s, "why", id), "No scheduler")
	restart(t, s)
	close(sink.open)
	zmctl(t, s, "thaw", id)
	zmctl(t, s, "release", id)
	awaitEmpty(t, s)
	wantIn(t, zmctl(t, s, "history", id), "done with: 3 delivered")
	wantIn(t, zmctl(t, s, "why", id), "done with: 3 delivered")
	if said, code := call(t, s, "zmctl", "why", "S1A1"); code != 1 || !strings.Contains(said, "no such message") {
		t.Errorf("why of nothing: exit code %d, %s", code, said)
	}
}
