package scheduler

import (
	"strings"
	"testing"

	"zmailer/internal/durable"
	"zmailer/internal/workspec"
)

// Z8: a recipient that no clause serves is told at every start; that it is held
// stands in its history once, and so does that a clause serves it again.
func TestUnservedRecipientIsHeldUntilAClauseServesIt(t *testing.T) {
	b, dir := diskBox(t)
	file := b.queue("a@b", rcpt{line: "uucp far x@h"}, rcpt{line: "smtp h other@h"})
	reopen := func(conf string) {
		f, err := durable.NewOS(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		b = openBox(t, f, 0, conf)
	}
	for range 2 {
		if l := b.load(file); l.Held != 1 || len(l.Open) != 1 {
			t.Errorf("held %d, open %d, want 1 and 1", l.Held, len(l.Open))
		}
		b.wantLog("level=ERROR", "unknown-channel", "x@h")
		reopen(testConf)
	}
	mended := strings.Replace(testConf, "smtp/*\n", "smtp/*\nuucp/*\n", 1)
	for range 2 {
		reopen(mended)
		if l := b.load(file); l.Held != 0 || len(l.Open) != 2 {
			t.Errorf("held %d, open %d, want 0 and 2", l.Held, len(l.Open))
		}
	}
	s := b.parse(file)
	var got []string
	for _, e := range s.History {
		if e.Recipient != offsetOf(s, 0) {
			t.Errorf("an event of byte %d: %+v", e.Recipient, e)
		}
		got = append(got, e.Event)
	}
	if strings.Join(got, " ") != workspec.EventHeld+" "+workspec.EventServed {
		t.Errorf("history %q, want held, then served", got)
	}
}
