package protocol

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
)

// A search explores every schedule that deviates at most so many times from the eager one: it
// takes what is due in the order of choices, and lets time pass when nothing else can happen.
// A deviation is a fault, its end, the delay of everything for a tick, or another order. States
// are hashed, so that a state is explored once.
type search struct {
	seed    maphash.Seed
	visited map[uint64]int8 // deviations that were left, plus one
	until   int32
	path    []choice
	states  int
	merged  int
	ends    int
	x       *explorer
	failed  string
	how     []choice
}

// eager returns the choice of the eager schedule.
func eager(list []choice) choice {
	for _, c := range list {
		if c.kind != tick && c.kind < boot && c.kind != takeMail {
			return c
		}
	}
	return choice{kind: tick}
}

func (s *search) explore(w *world, left int8) {
	depth := len(s.path)
	defer func() { s.path = s.path[:depth] }()
	for first := true; w.now < s.until; first = false {
		if first || left > 0 {
			h := w.hash(s.seed)
			if s.visited[h] > left {
				s.merged++
				return
			}
			s.visited[h] = left + 1
			s.states++
		}
		list := w.choices(nil)
		next := eager(list)
		if !slices.Contains(list, next) {
			w.fail("time stands still, and nothing can happen")
		}
		if left > 0 {
			for _, c := range list {
				if c == next {
					continue
				}
				other := w.clone()
				s.path = append(s.path, c)
				other.do(c)
				if other.violation == "" {
					s.explore(other, left-1)
				}
				s.note(other)
				s.path = s.path[:len(s.path)-1]
				if s.failed != "" {
					return
				}
			}
		}
		s.path = append(s.path, next)
		w.do(next)
		if w.violation != "" {
			s.note(w)
			return
		}
	}
	// Every 64th end is followed until all is delivered.
	if s.ends++; s.ends%64 == 0 {
		s.x.pcg.Seed(uint64(s.ends), 2)
		s.x.settle(w)
		s.note(w)
	}
}

// note keeps the first violation and how it came about.
func (s *search) note(w *world) {
	if w.violation != "" && s.failed == "" {
		s.failed, s.how = w.violation, slices.Clone(s.path)
	}
}

// hash returns a number that is the same for worlds that behave the same.
func (w *world) hash(seed maphash.Seed) uint64 {
	h := maphash.Comparable(seed, w.state)
	for i, m := range w.machines[:w.n] {
		copied := *m
		copied.offices, copied.out = nil, nil
		h = h*31 + maphash.String(seed, fmt.Sprint(i, copied, m.offices, w.held[i]))
	}
	for _, p := range w.wire { // packets have no order
		h += maphash.Comparable(seed, p)
	}
	return h
}

// situations are the worlds that the search begins in.
func situations(x *explorer) map[string]*world {
	begin := func() *world {
		w := x.start(2, broken{})
		w.faults = 100
		w.nodes[0].rate, w.nodes[1].rate = 9, 11
		return w
	}
	until := func(w *world, done func() bool) {
		for !done() {
			w.do(eager(w.choices(nil)))
		}
	}
	delivering := begin()
	delivering.accept(0)

	taken := begin()
	taken.powerOff(0)
	until(taken, func() bool { return taken.nodes[1].daemons[0].stage != none })
	taken.do(choice{kind: boot})
	until(taken, func() bool { return taken.asks[0] })
	taken.accept(0)

	dead := begin()
	dead.accept(0)
	dead.powerOff(0)

	cold := newWorld(2, broken{})
	cold.faults = 100
	cold.accept(0)
	return map[string]*world{"a delivers": delivering, "a returns, b serves its postoffice": taken, "a is dead": dead, "both start": cold}
}

func TestEveryScheduleWithinTheBoundDeliversAllAndRepeatsNothingUnrecorded(t *testing.T) {
	for name, start := range situations(newExplorer()) {
		t.Run(name, func(t *testing.T) {
			s := &search{seed: maphash.MakeSeed(), visited: map[uint64]int8{}, until: start.now + int32(*horizon), x: newExplorer()}
			s.explore(start.clone(), int8(*deviations))
			if s.failed != "" {
				t.Fatalf("%s\n%s", s.failed, story(start, s.how))
			}
			t.Logf("%d deviations, %d ticks: %d states, %d merged, %d schedules to their end", *deviations, *horizon, s.states, s.merged, s.ends)
		})
	}
}

// story returns what happened on a path.
func story(start *world, path []choice) string {
	var lines []string
	w := start.clone()
	w.trace = func(l string) { lines = append(lines, l) }
	for _, c := range path {
		w.trace(fmt.Sprintf("%d %s", w.now, c.describe(w)))
		w.do(c)
	}
	return strings.Join(lines, "\n")
}
