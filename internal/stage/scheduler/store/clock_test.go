package store

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

func TestNextAttemptIsNeverFurtherAwayThanWasDecided(t *testing.T) {
	at := time.UnixMilli(2e12)
	tests := map[string]struct{ wait, passed, want time.Duration }{
		"while it waits":        {time.Hour, 20 * time.Minute, 40 * time.Minute},
		"over":                  {time.Hour, 2 * time.Hour, -time.Hour},
		"clock set back a day":  {time.Hour, -24 * time.Hour, time.Hour},
		"clock set back a bit":  {time.Hour, -time.Second, time.Hour},
		"clock set forward":     {time.Hour, 24 * time.Hour, -23 * time.Hour},
		"asked for by the host": {9 * time.Hour, -24 * time.Hour, 9 * time.Hour},
	}
	for name, tt := range tests {
		line := workspec.AppendEvent(nil, &workspec.Event{Time: at, Recipient: 1, Event: workspec.EventDeferred,
			Attrs: []workspec.Attr{{Key: "next", Value: fmt.Sprint(at.Add(tt.wait).UnixMilli())}}})
		spec, err := workspec.Parse(append([]byte("i 7-1\n"), line...))
		if err != nil || len(spec.History) != 1 {
			t.Fatalf("%s: %v, %d lines", name, err, len(spec.History))
		}
		now := at.Add(tt.passed)
		if got := nextOf(&spec.History[0], now).Sub(now); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// M36: failures that were gathered before the clock was set back are reported, not kept
// for a day.
func TestReportIntervalEndsWhenTheClockIsSetBack(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
	err := b.record(name, []Outcome{{Offset: storetest.OffsetOf(b.Parse(name), 0), Result: thread.Failed, Text: "550 5.1.1 no"}})
	assert.Must(t, err)
	settle := func(want int) {
		t.Helper()
		if _, err := b.spool.Settle(name, nil); err != nil {
			t.Fatal(err)
		}
		if got := len(b.List("router")); got != want {
			t.Errorf("router/: got %d reports, want %d", got, want)
		}
	}
	b.spool.Conf.ReportInterval = time.Hour
	settle(0)
	b.Now = b.Now.Add(-24 * time.Hour)
	settle(1)
}
