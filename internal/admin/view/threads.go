package view

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"zmailer/internal/run/human"
	"zmailer/internal/wire/mailq"
)

// Thread is a channel and a host.
type Thread struct{ Channel, Host string }

func (t Thread) String() string { return fmt.Sprintf("%s/%s", t.Channel, t.Host) }

// ByNeed is the order of states in the list.
func ByNeed(state string) int {
	return slices.Index([]string{"idle", "waiting", "active", "paused", "no-place", "throttled", "probing", "trouble"}, state)
}

// Places is how many deliveries are under way of how many there may be.
func Places(t *mailq.ThreadInfo) string {
	if t.Limit == 0 {
		return strconv.Itoa(t.Running)
	}
	return strconv.Itoa(t.Running) + "/" + strconv.Itoa(t.Limit)
}

func Wait(t *mailq.ThreadInfo) string {
	if t.WaitSeconds == 0 {
		return "-"
	}
	return human.Span(time.Duration(t.WaitSeconds) * time.Second)
}

// StateWords explains the state.
func StateWords(t *mailq.ThreadInfo) string {
	at := ""
	if !t.Until.IsZero() && t.WaitSeconds > 0 {
		at = fmt.Sprintf(" at %s, in %s", t.Until.Local().Format(time.TimeOnly), Wait(t))
	}
	switch t.State {
	case "trouble":
		return fmt.Sprintf("in trouble: the host failed %s; it is tried again%s, with one message", human.InRow(t.Tries), at)
	case "probing":
		return fmt.Sprintf("probing: the host failed %s; one message is being tried", human.InRow(t.Tries))
	case "throttled":
		return "throttled by rate or hostrate; the next delivery may begin" + at
	case "waiting":
		return "waiting for the time of its messages; the first is tried" + at
	case "no-place":
		return "waiting for a place: " + human.Clean(t.Crowd) + " (maxunproven)"
	case "paused":
		return "paused: its clause is queueonly; ETRN has it go"
	}
	return t.State
}
