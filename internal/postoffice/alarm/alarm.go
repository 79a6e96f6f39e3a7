// Package alarm says what in a postoffice needs an operator: mail that stands for too long
// in a state, a host or a daemon that makes no progress, files that belong to nothing or
// twice to the same. It is pure: the scheduler and zmctl status look at the postoffice
// and tell it what they saw; it tells what is raised and what is over.
//
// It owns the format of the file `alarms`, which the scheduler writes into the
// postoffice: a line for each alarm that is raised. Nothing of it is needed after a
// crash: the next look finds the same.
//
// Diagnostics: ParseLimits says which word of the setting ALARMS is wrong. Parse skips
// lines that are none.
package alarm

import (
	"cmp"
	"slices"
	"time"
)

// Kind is what is wrong.
type Kind string

// Kinds.
const (
	TooOld     Kind = "too-old"     // a state's oldest message has been in it for longer than its limit
	NoProgress Kind = "no-progress" // mail could go and nothing has for longer than the limit
	Orphan     Kind = "orphan"      // a file whose other half is missing
	Duplicate  Kind = "duplicate"   // two files of one message
	Unusable   Kind = "unusable"    // a specification that cannot be read
	Unreported Kind = "unreported"  // a message that does not end: a sender was not told of a failure
	Down       Kind = "down"        // mail waits for a daemon that does not run
)

// Alarm is one thing that needs an operator.
type Alarm struct {
	Kind    Kind      `json:"kind"`
	Subject string    `json:"subject"` // directory, thread or file
	Since   time.Time `json:"since"`   // when it was first seen
	Text    string    `json:"text"`    // one line
}

func (a *Alarm) same(b *Alarm) bool { return a.Kind == b.Kind && a.Subject == b.Subject }

// Board is what is raised.
type Board struct{ raised []Alarm }

// Raised are the alarms that stand, by kind and subject.
func (b *Board) Raised() []Alarm { return b.raised }

// Update takes what a look has found. An alarm that was found before keeps its Since.
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
