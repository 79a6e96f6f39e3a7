package alarm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"zmailer/internal/run/config"
)

// Limits are how long mail may stay in a state before an alarm is raised; 0: no limit.
type Limits struct {
	Public   time.Duration // accepted there and not moved on
	Router   time.Duration // waiting for a router
	Queue    time.Duration // queued, regardless of its clause in scheduler.conf
	Deferred time.Duration // set aside by a router
	Frozen   time.Duration // in freezer/
	Progress time.Duration // a thread that could deliver and does not
}

// DefaultLimits is the default of ALARMS.
const DefaultLimits = "public=1h router=15m queue=4d deferred=1d frozen=7d progress=15m"

// Place is a directory of messages, and its limit.
type Place struct {
	Dir   string
	Limit time.Duration
}

// Places are the directories that can be checked without the scheduler.
func (l *Limits) Places() []Place {
	return []Place{{"public", l.Public}, {"router", l.Router}, {"deferred", l.Deferred}, {"freezer", l.Frozen}}
}

func (l *Limits) fields() map[string]*time.Duration {
	return map[string]*time.Duration{"public": &l.Public, "router": &l.Router, "queue": &l.Queue,
		"deferred": &l.Deferred, "frozen": &l.Frozen, "progress": &l.Progress}
}

// ParseLimits reads the setting ALARMS: "router=15m queue=4d ...". Names that
// are missing have their default; 0 turns an alarm off, the word off all of them.
func ParseLimits(text string) (Limits, error) {
	var l Limits
	if strings.TrimSpace(text) == "off" {
		return l, nil
	}
	fields := l.fields()
	for word := range strings.FieldsSeq(DefaultLimits + " " + text) {
		name, value, ok := strings.Cut(word, "=")
		to := fields[name]
		if !ok || to == nil {
			var names []string
			for n := range fields {
				names = append(names, n)
			}
			slices.Sort(names)
			return l, fmt.Errorf("%s: it must be NAME=TIME with one of %s", word, strings.Join(names, ", "))
		}
		d, err := config.ParseDuration(value)
		if err != nil {
			return l, fmt.Errorf("%s: %w", word, err)
		}
		*to = d
	}
	return l, nil
}

// Age reports whether the oldest message of a directory is too old. oldest is the time since
// when it has been there, zero if there is none.
func Age(where string, count int, oldest time.Time, limit time.Duration, now time.Time) (Alarm, bool) {
	if oldest.IsZero() || limit <= 0 || now.Sub(oldest) < limit {
		return Alarm{}, false
	}
	return Alarm{Kind: TooOld, Subject: where, Since: now,
		Text: fmt.Sprintf("%d messages, the oldest since %s; the limit is %s", count, oldest.UTC().Format(time.RFC3339), span(limit))}, true
}

// span is a limit as ALARMS has it.
func span(d time.Duration) string {
	switch {
	case d%(24*time.Hour) == 0:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
