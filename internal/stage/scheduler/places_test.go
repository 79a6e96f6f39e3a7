package scheduler

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
)

// M24: a clause that has no agent gets one from a clause that has several, though all
// of them are at work, and before that one takes the place again.
func TestAClauseWithoutAgentsGetsAPlace(t *testing.T) {
	e := &engine{core: thread.New(rand.New(rand.NewPCG(1, 2))), agents: map[*agent]bool{}}
	newCrew := func(key string, agents int) *crew {
		c := &crew{ring: e.core.Ring(key, thread.Policy{}), settings: &conf.Settings{MaxTA: 3}}
		c.ring.Serve = c
		for range agents {
			a := &agent{crew: c, slots: 1, deliveries: make([]delivery, 1)}
			c.agents = append(c.agents, a)
			e.agents[a] = true
		}
		return c
	}
	rich, poor := newCrew("rich", 3), newCrew("poor", 0)
	closing := func() (n int) {
		for _, a := range rich.agents {
			if a.closing {
				n++
			}
		}
		return n
	}
	if !e.noPlace(rich) || closing() != 0 {
		t.Fatalf("%d of its own agents end for the rich one", closing())
	}
	for range 3 {
		if !e.noPlace(poor) || closing() != 1 {
			t.Fatalf("%d agents make room, want 1", closing())
		}
	}
	for i, a := range rich.agents {
		if a.closing {
			rich.agents = append(rich.agents[:i:i], rich.agents[i+1:]...)
			delete(e.agents, a)
		}
	}
	if !e.noPlace(rich) {
		t.Error("the rich one takes the place that it has given")
	}
	if e.noPlace(poor) {
		t.Error("the poor one does not get the place")
	}
	e.satisfied(poor)
	if e.noPlace(rich) || len(e.starved) != 1 {
		t.Errorf("the rich one waits for nobody; %d in the queue", len(e.starved))
	}
}

// M24: with fewer places than clauses that want one, each has its turn.
func TestClausesTakeTurnsWherePlacesAreFew(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	e := &engine{core: thread.New(rand.New(rand.NewPCG(1, 2))), agents: map[*agent]bool{}, now: now}
	var crews []*crew
	for _, key := range []string{"has", "first", "second"} {
		c := &crew{ring: e.core.Ring(key, thread.Policy{}), settings: &conf.Settings{MaxTA: 1}}
		c.ring.Serve = c
		crews = append(crews, c)
	}
	has, first, second := crews[0], crews[1], crews[2]
	a := &agent{crew: has, slots: 1, deliveries: make([]delivery, 1), born: now}
	has.agents, e.agents[a] = []*agent{a}, true
	if !e.noPlace(first) || a.closing || !first.grace.Equal(now.Add(serves)) {
		t.Fatalf("closing %v, the next look in %v, want %v", a.closing, first.grace.Sub(now), serves)
	}
	e.now = now.Add(serves)
	if !e.noPlace(second) || !a.closing {
		t.Fatal("its only agent keeps the place for ever")
	}
	has.agents = nil
	delete(e.agents, a)
	if !e.noPlace(has) || !e.noPlace(second) || e.noPlace(first) {
		t.Error("the place does not go to who waits longest")
	}
}

// A clause that cannot take a place now keeps nobody from it: one that a new scheduler.conf
// does not have any more, and one whose agents do not start.
func TestNobodyWaitsForAClauseThatTakesNoPlace(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, change := range map[string]func(e *engine, c *crew){
		"it is gone": func(e *engine, c *crew) {
			c.retired = true
			e.feed(c.ring)
		},
		"its agents do not start": func(e *engine, c *crew) {
			c.notBefore = now.Add(time.Minute)
			e.wantAgent(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{core: thread.New(rand.New(rand.NewPCG(1, 2))), agents: map[*agent]bool{}, now: now}
			var crews []*crew
			for key, agents := range map[string]int{"one": 0, "other": 1} {
				c := &crew{ring: e.core.Ring(key, thread.Policy{}), settings: &conf.Settings{MaxTA: 5}, agents: make([]*agent, agents)}
				c.ring.Serve = c
				crews = append(crews, c)
			}
			slices.SortFunc(crews, func(a, b *crew) int { return len(a.agents) - len(b.agents) })
			one, other := crews[0], crews[1]
			one.waiting, e.starved = true, []*thread.Ring{one.ring}
			if !e.noPlace(other) {
				t.Fatal("the other one comes first")
			}
			change(e, one)
			if e.noPlace(other) {
				t.Error("the other one waits still")
			}
		})
	}
}

// An agent that never asked for anything gives its place up, too, and is ended if it does
// not end by itself.
func TestSilentAgentGivesItsPlace(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	e := &engine{core: thread.New(rand.New(rand.NewPCG(1, 2))), agents: map[*agent]bool{}, now: now}
	e.conf.StopTimeout = time.Minute
	has := &crew{ring: e.core.Ring("has", thread.Policy{}), settings: &conf.Settings{MaxTA: 1}}
	poor := &crew{ring: e.core.Ring("poor", thread.Policy{}), settings: &conf.Settings{MaxTA: 1}}
	has.ring.Serve, poor.ring.Serve = has, poor
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	a := &agent{crew: has, in: in, born: now.Add(-serves), idle: now.Add(-serves)}
	has.agents, e.agents[a] = []*agent{a}, true
	if !e.noPlace(poor) || !a.closing {
		t.Fatal("it keeps its place")
	}
	if a.closedAt.IsZero() || e.wakeAt.IsZero() {
		t.Error("nobody looks whether it ends")
	}
}
