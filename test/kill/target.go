package kill

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zmailer/test/inject"
	"zmailer/test/load"
)

// Phase is when a program makes a step.
type Phase string

// Phases. A step that belongs to several is a steady one.
const (
	Steady Phase = "steady" // with every round of messages
	Start  Phase = "start"  // when it starts
	Stop   Phase = "stop"   // when it ends in order
	// Learning: with mail that smtpserver learns from.
	Learning Phase = "learning"
)

// Step is a step that the reference run has seen.
type Step struct {
	inject.Pair
	Phase Phase
	Count int // in one round, if steady; at least 1
}

// pickupCall reports whether a step of a router is one of the copy of what a user has
// submitted.
func pickupCall(p inject.Pair) bool {
	return p.Program == "router" && (strings.Contains(p.Path, "/.pickup.") || strings.HasPrefix(p.Path, "public/"))
}

// Target is one kill.
type Target struct {
	inject.Pair
	Phase      Phase
	Occurrence int // from the kill's preparation on; 1 is the first
	// Whole: everything dies at that moment, not the process alone.
	Whole bool
	// Torn: the first half of what the call writes is written.
	Torn bool
	// Fresh: in a system in which nothing was done yet.
	Fresh bool
	// After: this kill first; then the step is one of the recovery.
	After *Target
}

func (t Target) String() string {
	text := fmt.Sprintf("%v, occurrence %d", t.Pair, t.Occurrence)
	if t.Phase == Start || t.Phase == Stop {
		text += ", at its " + string(t.Phase)
	}
	if t.Torn {
		text += ", in its middle"
	}
	if t.Whole {
		text += ", the whole system"
	}
	if t.Fresh {
		text += ", in a new system"
	}
	if t.After != nil {
		text += ", after " + t.After.String()
	}
	return text
}

// targets returns the kills for a list of steps: each step once, those of a history that is
// summarised and of an operator at each occurrence, and unless it is to be
// quick the writes in their middle, the steady steps in the middle and at the end of a
// round too, the whole system at each, and pickup twice in a row.
func targets(steps []Step, quick bool) []Target {
	slices.SortFunc(steps, func(a, b Step) int {
		return cmp.Or(cmp.Compare(program(a.Program), program(b.Program)), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Name, b.Name))
	})
	var once, torn, again, whole, twice []Target
	for i, s := range steps {
		if !killed(s.Program) {
			continue
		}
		// Which message of the round is met: another one with each step.
		first := 1 + i%3
		if s.Phase != Steady || first > s.Count {
			first = 1
		}
		once = append(once, Target{Pair: s.Pair, Phase: s.Phase, Occurrence: first})
		each := load.Summarises(s.Path) || s.Program == load.Operator
		if each {
			// One specification is replaced in a round, and an operator suspends and resumes, so
			// each occurrence is another step.
			for n := range s.Count {
				if n+1 != first {
					once = append(once, Target{Pair: s.Pair, Phase: s.Phase, Occurrence: n + 1})
				}
			}
		}
		if slices.Contains([]string{"write", "pwrite64", "sendto"}, s.Name) {
			torn = append(torn, Target{Pair: s.Pair, Phase: s.Phase, Occurrence: 1 + (i+1)%max(1, min(4, s.Count)), Torn: true})
		}
		if s.Phase == Steady {
			for _, n := range []int{1, 2, (s.Count + 1) / 2, s.Count} {
				t := Target{Pair: s.Pair, Phase: s.Phase, Occurrence: n}
				if n > 0 && n <= s.Count && n != first && !each && !slices.Contains(again, t) {
					again = append(again, t)
				}
			}
		}
		if pickupCall(s.Pair) && s.Phase == Steady {
			t := Target{Pair: s.Pair, Phase: s.Phase, Occurrence: 1}
			twice = append(twice, Target{Pair: s.Pair, Phase: s.Phase, Occurrence: 1, After: &t})
		}
		if s.Program != "submit" { // that is no part of the system that can be killed with it
			whole = append(whole, Target{Pair: s.Pair, Phase: s.Phase, Occurrence: 1 + (i+1)%max(1, min(3, s.Count)), Whole: true})
		}
	}
	if quick {
		return once
	}
	return slices.Concat(once, twice, torn, again, whole)
}

// program returns a program's place in the table.
func program(name string) int { return slices.Index(Programs(), name) }
