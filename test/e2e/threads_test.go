package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/wire/mailq"
)

// M39: zmctl thread lists what the scheduler waits for; without a scheduler it fails.
func TestThreadsOfTheRunningScheduler(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	one := zmctl(t, s, "thread", "smtp/"+host)
	wantIn(t, one, id, "one@sink.example", "two@sink.example")
	if strings.Contains(one, "ok@sink.example") {
		t.Errorf("a recipient that has the message is listed: %s", one)
	}
	var info mailq.ThreadInfo
	line, _, _ := strings.Cut(zmctl(t, s, "thread", "--json"), "\n")
	if err := json.Unmarshal([]byte(line), &info); err != nil || info.Messages != 1 || info.Recipients != 2 {
		t.Errorf("got %+v, %v", info, err)
	}
	exits(t, s, 1, "zmctl", "thread", "smtp/none.example")
	stop(t, s)
	exits(t, s, 1, "zmctl", "thread")
}

// followed are the events that zmctl events --follow prints.
type followed struct {
	t   *testing.T
	out *output
}

// events parses what has come so far.
func (f *followed) events() (list []map[string]any) {
	f.t.Helper()
	text := f.out.String()
	for line := range strings.Lines(text[:strings.LastIndexByte(text, '\n')+1]) {
		e := map[string]any{}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			f.t.Errorf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

func (f *followed) has(event, rcpt string) bool {
	f.t.Helper()
	return slices.ContainsFunc(f.events(), func(e map[string]any) bool { return e["event"] == event && (rcpt == "" || e["rcpt"] == rcpt) })
}

func (f *followed) wait(event, rcpt string) {
	f.t.Helper()
	awaitState(f.t, "event "+event+" "+rcpt, func() bool { return f.has(event, rcpt) })
}

// A21: zmctl events --follow prints a message's events from its acceptance to its end, with the
// operations on it; the journal has the same.
func TestEventsFromAcceptanceToTheEnd(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	cmd := s.Command("zmctl", "events", "--follow", "--json")
	f := &followed{t, &output{}}
	cmd.Stdout = f.out
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	event(t, s, "query-served")
	// It follows when it has printed something that happens again and again.
	awaitState(t, "first event", func() bool {
		_, _ = call(t, s, "zmctl", "etrn", "probe.example") // nothing waits there
		return f.has("etrn", "")
	})
	id, _ := waits(t, s)
	f.wait("spooled", "")
	f.wait("routed", "")
	f.wait("delivered", "ok@sink.example")
	f.wait("deferred", "one@sink.example")
	yes(t, s, "hold", "--to", "one@*")
	f.wait("held", "one@sink.example")
	yes(t, s, "release", "--to", "one@*")
	f.wait("released", "one@sink.example")
	close(sink.open)
	yes(t, s, "retry", "--all")
	f.wait("delivered", "one@sink.example")
	f.wait("finished", "")
	others := []any{"etrn", "lost", "alarm-raised", "alarm-cleared"}
	for _, e := range f.events() {
		if e["id"] != id && !slices.Contains(others, e["event"]) {
			t.Errorf("got %v of another message than %s", e, id)
		}
	}
	wantIn(t, zmctl(t, s, "events", "--json", id), `"event":"spooled"`, `"event":"routed"`, `"event":"finished"`, `"by":"ledger"`)
}
