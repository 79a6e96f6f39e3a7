package view

import (
	"strconv"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// tint writes no date: it is that of the message, or the day after.
func TestTimesOfDayGetTheMessagesDay(t *testing.T) {
	accepted := time.Date(2026, 11, 21, 23, 59, 58, 0, time.Local)
	for clock, want := range map[string]string{"23:59:58.500": "2026-11-21", "00:00:01.000": "2026-11-22"} {
		at, err := time.Parse("15:04:05.000", clock)
		assert.Must(t, err)
		assert.Equal(t, onDay(at, accepted).Format(time.DateOnly), want, "%s", clock)
	}
}

// The history has what the router's policy decided, with its line.
func TestHistoryHasThePolicysDecision(t *testing.T) {
	for want, e := range map[string]workspec.Event{
		"the policy, router.star:8: route to smtp!relay.example; for a@b.example": {Event: workspec.EventPolicy,
			Attrs: []workspec.Attr{{Key: "rule", Value: "router.star:8"}, {Key: "count", Value: "1"}}, Text: "route to smtp!relay.example; for a@b.example"},
		"the policy decided 50 times more; the log has it": {Event: workspec.EventPolicy, Text: "the policy decided 50 times more; the log has it"},
		"the policy, router.star:2: reject 5.7.1: \\x1b[2J": {Event: workspec.EventPolicy,
			Attrs: []workspec.Attr{{Key: "rule", Value: "router.star:2"}}, Text: "reject 5.7.1: \x1b[2J"},
	} {
		assert.Equal(t, EventText(&e, nil), want)
	}
}

func TestLocksOfProcAreRead(t *testing.T) {
	const text = "1: FLOCK  ADVISORY  WRITE 708 08:01:1234567 0 EOF\n2: POSIX  ADVISORY  WRITE 709 08:01:99 0 EOF\n" +
		"2: -> FLOCK  ADVISORY  WRITE 710 08:01:98 0 EOF\nrubbish\n3: FLOCK ADVISORY READ x 08:01:97 0 EOF\n4: FLOCK ADVISORY READ 711 fd:00:"
	got := LockHolders([]byte(text + strconv.Itoa(96) + " 0 EOF\n"))
	if len(got) != 2 || got[1234567] != 708 || got[96] != 711 {
		t.Errorf("got %v, want 1234567 held by 708 and 96 by 711", got)
	}
}
