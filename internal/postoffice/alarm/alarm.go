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
	"cmp"
	"slices"
	"time"
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
