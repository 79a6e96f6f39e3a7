// Package alarm determines what in a postoffice needs an operator: mail that is too long in
// a state, a host or a daemon that makes no progress, orphan files and duplicates. It is
// pure: the scheduler and zmctl status inspect the postoffice and pass what they found; it
// returns the alarms that are raised and cleared.
//
// It owns the format of the file `alarms`, which the scheduler writes into the
// postoffice: a line for each alarm that is raised. It is not needed after a
// crash: the next inspection finds the same.
//
// Diagnostics: the error of ParseLimits names the invalid word of the setting ALARMS. Parse
// skips invalid lines.
package alarm

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"zmailer/internal/run/config"
)

// Kind is the kind of an alarm.
type Kind string

// Kinds.
const (
	TooOld     Kind = "too-old"     // a state's oldest message has been in it for longer than its limit
	NoProgress Kind = "no-progress" // mail could be delivered, and none was for longer than the limit
	Orphan     Kind = "orphan"      // a file whose other half is missing
	Duplicate  Kind = "duplicate"   // two files of one message
	Unusable   Kind = "unusable"    // a specification that cannot be read
	Unreported Kind = "unreported"  // a message that is not removed: its sender has no report of a failure
	Down       Kind = "down"        // mail waits for a daemon that is not running
	Refused    Kind = "refused"     // a table, key or certificate that cannot be used as it is now
	// Certificate is one that ends soon, or has ended.
	Certificate Kind = "certificate"
)

// Alarm is one condition that needs an operator.
type Alarm struct {
	Kind    Kind      `json:"kind"`
	Subject string    `json:"subject"` // directory, thread or file
	Since   time.Time `json:"since"`   // when it was first seen
	Text    string    `json:"text"`    // one line
}

func (a *Alarm) same(b *Alarm) bool { return a.Kind == b.Kind && a.Subject == b.Subject }

// Board holds the raised alarms.
type Board struct{ raised []Alarm }

// Raised returns the current alarms, sorted by kind and subject.
func (b *Board) Raised() []Alarm { return b.raised }

// Update sets the alarms that an inspection has found. An alarm that was found before keeps its Since.
func (b *Board) Update(found []Alarm) (raised, cleared []Alarm) {
	found = slices.Clone(found)
	slices.SortStableFunc(found, func(x, y Alarm) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Subject, y.Subject))
	})
	found = slices.CompactFunc(found, func(x, y Alarm) bool { return x.same(&y) })
	for i := range found {
		a := &found[i]
		if old := find(b.raised, a); old != nil {
			a.Since = old.Since
		} else {
			raised = append(raised, *a)
		}
	}
	for i := range b.raised {
		if find(found, &b.raised[i]) == nil {
			cleared = append(cleared, b.raised[i])
		}
	}
	b.raised = found
	return raised, cleared
}

func find(list []Alarm, a *Alarm) *Alarm {
	for i := range list {
		if list[i].same(a) {
			return &list[i]
		}
	}
	return nil
}

// Limits are how long mail may stay in a state before an alarm is raised; 0: no limit.
type Limits struct {
	Public   time.Duration // accepted there and not moved on
	Router   time.Duration // waiting for a router
	Queue    time.Duration // queued, regardless of its clause in scheduler.conf
	Deferred time.Duration // set aside by a router
	Frozen   time.Duration // in freezer/
	Progress time.Duration // a thread that could deliver and does not
	Backend  time.Duration // what a program asks gives no answer (config.Outage)
}

// DefaultLimits is the default of ALARMS.
const DefaultLimits = "public=1h router=15m queue=4d deferred=1d frozen=7d progress=15m backend=10s"

// Place is a directory of messages, and its limit.
type Place struct {
	Dir   string
	Limit time.Duration
}

// Places returns the directories that can be checked without the scheduler.
func (l *Limits) Places() []Place {
	return []Place{{"public", l.Public}, {"router", l.Router}, {"deferred", l.Deferred}, {"freezer", l.Frozen}}
}

func (l *Limits) fields() map[string]*time.Duration {
	return map[string]*time.Duration{"public": &l.Public, "router": &l.Router, "queue": &l.Queue,
		"deferred": &l.Deferred, "frozen": &l.Frozen, "progress": &l.Progress, "backend": &l.Backend}
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

// span returns a limit as ALARMS has it.
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

// Append writes alarms as the lines of the file `alarms`: SINCE KIND SUBJECT TEXT.
func Append(b []byte, list []Alarm) []byte {
	for i := range list {
		a := &list[i]
		b = a.Since.UTC().AppendFormat(b, time.RFC3339)
		for _, word := range []string{string(a.Kind), strings.ReplaceAll(line(a.Subject), " ", "?")} {
			b = append(append(b, ' '), word...)
		}
		b = append(append(append(b, ' '), line(a.Text)...), '\n')
	}
	return b
}

// line keeps a text on its line.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}

// Parse reads what Append wrote; lines that are none are left out.
func Parse(b []byte) []Alarm {
	var list []Alarm
	for l := range bytes.Lines(b) {
		f := strings.SplitN(strings.TrimSuffix(string(l), "\n"), " ", 4)
		if len(f) != 4 {
			continue
		}
		since, err := time.Parse(time.RFC3339, f[0])
		if err != nil || !strings.HasSuffix(string(l), "\n") {
			continue
		}
		list = append(list, Alarm{Kind: Kind(f[1]), Subject: f[2], Since: since, Text: f[3]})
	}
	return list
}
