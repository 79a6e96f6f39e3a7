package view

import (
	"cmp"
	"encoding/json"
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

// byNeed returns the order of states in the list.
func byNeed(state string) int {
	return slices.Index([]string{"idle", "waiting", "active", "paused", "no-place", "throttled", "probing", "trouble"}, state)
}

// Places returns how many deliveries are under way of how many there may be.
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
	case "suspended":
		if t.Suspended == nil {
			return "suspended: the senders or the source address of all its mail are; zmctl suspend lists that"
		}
		return "suspended by " + human.Clean(t.Suspended.By) + "; zmctl resume " + human.Clean(t.Suspended.Order) + " ends it, or its end" + at
	case "paused":
		return "paused: its clause " + human.Clean(t.Clause) + " has queueonly; it is delivered at ETRN or zmctl retry"
	}
	return t.State
}

// Threads returns the threads of the scheduler, those that need attention first.
func (a *SchedulerClient) Threads() ([]mailq.ThreadInfo, error) {
	var list []mailq.ThreadInfo
	_, err := a.Ask(mailq.Request{Kind: mailq.JSONThreads}, func(line string) error {
		var t mailq.ThreadInfo
		if err := json.Unmarshal([]byte(line), &t); err != nil {
			return fmt.Errorf("read the scheduler's answer: %w", err)
		}
		list = append(list, t)
		return nil
	})
	slices.SortStableFunc(list, func(a, b mailq.ThreadInfo) int {
		return cmp.Or(byNeed(b.State)-byNeed(a.State), b.Recipients-a.Recipients)
	})
	return list, err
}

// Thread calls info with one thread, and then waiting with each of its open recipients.
// mailq.ErrRefused: there is no such thread.
func (a *SchedulerClient) Thread(channel, host string, info func(*mailq.ThreadInfo) error, waiting func(*mailq.WaitingInfo) error) error {
	first := true
	_, err := a.Ask(mailq.Request{Kind: mailq.JSONThread, Channel: channel, Host: host}, func(line string) (err error) {
		if first {
			first = false
			var t mailq.ThreadInfo
			if err = json.Unmarshal([]byte(line), &t); err == nil {
				return info(&t)
			}
		} else {
			var x mailq.WaitingInfo
			if err = json.Unmarshal([]byte(line), &x); err == nil {
				return waiting(&x)
			}
		}
		return fmt.Errorf("read the scheduler's answer: %w", err)
	})
	return err
}
