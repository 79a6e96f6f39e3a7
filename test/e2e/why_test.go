package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// zmctl history has the events of a message in their order, and zmctl why the operations that
// hold it, with and without a scheduler, and after its end.
func TestHistoryAndWhyOfAMessage(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	wantIn(t, zmctl(t, s, "why", id), "451 4.2.1 later")
	zmctl(t, s, "hold", "--until", "3h", "--reason", "for a test", id)
	wantIn(t, zmctl(t, s, "why", id), "<one@sink.example>, <two@sink.example>", `"for a test"`, "zmctl release "+id)
	zmctl(t, s, "freeze", id)
	wantIn(t, zmctl(t, s, "why", id), "zmctl thaw "+id)
	var events []string
	for line := range strings.Lines(zmctl(t, s, "history", "--json", id)) {
		var h struct{ ID, Event, Text string }
		if err := json.Unmarshal([]byte(line), &h); err != nil || h.ID != id || h.Text == "" {
			t.Errorf("%s: %v, %+v", line, err, h)
		}
		events = append(events, h.Event)
	}
	for _, want := range []string{"deferred", "hold", "frozen"} {
		if !slices.Contains(events, want) {
			t.Errorf("got the events %q, want %s among them", events, want)
		}
	}
	stop(t, s)
	wantIn(t, zmctl(t, s, "why", id), "zmctl thaw "+id)
	restart(t, s)
	close(sink.open)
	zmctl(t, s, "thaw", id)
	zmctl(t, s, "release", id)
	awaitEmpty(t, s)
	wantIn(t, zmctl(t, s, "history", id), "3 delivered")
	wantIn(t, zmctl(t, s, "why", id), "3 delivered")
	exits(t, s, 1, "zmctl", "why", "S1A1")
}
