package view

import (
	"testing"
	"time"
)

// tint writes no date: it is that of the message, or the day after.
func TestTimesOfDayGetTheMessagesDay(t *testing.T) {
	accepted := time.Date(2026, 11, 21, 23, 59, 58, 0, time.Local)
	for clock, want := range map[string]string{"23:59:58.500": "2026-11-21", "00:00:01.000": "2026-11-22"} {
		at, err := time.Parse("15:04:05.000", clock)
		if err != nil {
			t.Fatal(err)
		}
		if got := onDay(at, accepted).Format(time.DateOnly); got != want {
			t.Errorf("%s: got %s, want %s", clock, got, want)
		}
	}
}
