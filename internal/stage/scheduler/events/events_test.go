package events

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// A21: a listener that does not keep up gets the number of events that it has lost, in their
// place; the one that emits waits for none; without listeners nothing is made.
func TestSlowListenerGetsTheNumberOfLostEvents(t *testing.T) {
	em := Emitter{Log: slog.New(slog.DiscardHandler), Stream: &Stream{}}
	if n := testing.AllocsPerRun(100, func() { em.EmitAttrs(Delivered, slog.Int("id", 1)) }); n > 0 {
		t.Errorf("%v allocations while there is no listener", n)
	}
	slow := em.Stream.Listen()
	for i := range kept + 7 {
		em.EmitAttrs(Delivered, slog.Int("id", i))
	}
	em.Emit(Kind{word: "recorded"}) // for the log alone
	got := slow.Take()
	if len(got) != kept+1 || string(got[kept].JSON()) != `{"event":"lost","count":7}` {
		t.Fatalf("got %d events, the last %s", len(got), got[len(got)-1].JSON())
	}
	em.Emit(Failed, "id", "S1A1", "took", time.Second, "n", 3, "text", "a\"b\nc")
	em.Emit(Routed, "x", 1)
	got = slow.Take()
	if len(got) != 2 || !strings.HasSuffix(string(got[0].JSON()), `"event":"failed","id":"S1A1","took":"1s","n":3,"text":"a\"b\nc"}`) || got[1].Name != "routed" {
		t.Errorf("got %v", got)
	}
	slow.Leave()
	if em.Stream.Followed() {
		t.Error("it goes on without listeners")
	}
}

// An event has the same keys in the log and in the stream, and in both the time at which it
// happened.
func TestLogAndStreamHaveTheSameEvent(t *testing.T) {
	var log bytes.Buffer
	em := Emitter{Log: slog.New(slog.NewJSONHandler(&log, nil)), Stream: &Stream{}}
	l := em.Stream.Listen()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	em.EmitAt(at, Operation("held"), slog.String("id", "S1A1"), slog.String("who", "joe"))
	em.Emit(Routed, "id", "S1A1") // below the log's level
	assert.Equal(t, log.String(), `{"time":"2026-03-01T12:00:00Z","level":"INFO","msg":"held","id":"S1A1","who":"joe"}`+"\n", "log")
	got := l.Take()
	if len(got) != 2 || string(got[0].JSON()) != `{"time":"2026-03-01T12:00:00Z","event":"held","id":"S1A1","who":"joe"}` || got[1].Name != "routed" {
		t.Errorf("stream: got %v", got)
	}
}
