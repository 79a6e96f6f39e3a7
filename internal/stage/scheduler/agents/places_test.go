package agents

import (
	"slices"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
)

// M24: a clause that has no agent gets one from a clause that has several, though all
// of them are at work, and before that one takes the place again.
func TestAClauseWithoutAgentsGetsAPlace(t *testing.T) {
	r := newRig(t)
	rich, poor := r.group("rich", conf.Settings{MaxTA: 3}, 3), r.group("poor", conf.Settings{MaxTA: 3}, 0)
	closing := func() int { return len(rich.agents) - rich.staying() }
	if !r.places.noPlace(rich) || closing() != 0 {
		t.Fatalf("%d of its own agents end for the rich one", closing())
	}
	for range 3 {
		if !r.places.noPlace(poor) || closing() != 1 {
			t.Fatalf("%d agents make room, want 1", closing())
		}
	}
	for i, a := range rich.agents {
		if a.closing {
			rich.agents = append(rich.agents[:i:i], rich.agents[i+1:]...)
			r.agents = slices.DeleteFunc(r.agents, func(o *Agent) bool { return o == a })
		}
	}
	if !r.places.noPlace(rich) {
		t.Error("the rich one takes the place that it has given")
	}
	if r.places.noPlace(poor) {
		t.Error("the poor one does not get the place")
	}
	r.places.satisfied(poor)
	if r.places.noPlace(rich) || len(r.places.waiting) != 1 {
		t.Errorf("the rich one waits for nothing; %d in the queue", len(r.places.waiting))
	}
}

// A clause that has no agent gets a place though the agent that was to make room for it
// still delivers after a while.
func TestDel6AgentThatStillDeliversDoesNotKeepThePlace(t *testing.T) {
	r := newRig(t)
	rich, poor := r.group("rich", conf.Settings{MaxTA: 3}, 3), r.group("poor", conf.Settings{MaxTA: 3}, 0)
	for want := 1; want <= 3; want++ {
		for range 2 {
			if !r.places.noPlace(poor) || 3-rich.staying() != want {
				t.Fatalf("%d agents make room, want %d", 3-rich.staying(), want)
			}
		}
		if !poor.lookAt.Equal(r.now.Add(turnLength)) {
			t.Errorf("the next look is in %v, want %v", poor.lookAt.Sub(r.now), turnLength)
		}
		r.Tick(r.now.Add(turnLength))
		poor.lookAt = time.Time{}
	}
}

// M24: with fewer places than clauses that want one, each has its turn.
func TestClausesTakeTurnsWherePlacesAreFew(t *testing.T) {
	r := newRig(t)
	start := r.now
	has, first, second := r.group("has", conf.Settings{MaxTA: 1}, 1), r.group("first", conf.Settings{MaxTA: 1}, 0), r.group("second", conf.Settings{MaxTA: 1}, 0)
	a := has.agents[0]
	if !r.places.noPlace(first) || a.closing || !first.lookAt.Equal(start.Add(turnLength)) {
		t.Fatalf("closing %v, the next look in %v, want %v", a.closing, first.lookAt.Sub(start), turnLength)
	}
	r.Tick(start.Add(turnLength))
	if !r.places.noPlace(second) || !a.closing {
		t.Fatal("its only agent keeps the place for ever")
	}
	has.agents = nil
	r.agents = slices.DeleteFunc(r.agents, func(o *Agent) bool { return o == a })
	if !r.places.noPlace(has) || !r.places.noPlace(second) || r.places.noPlace(first) {
		t.Error("the place does not go to the one that waits longest")
	}
}

// A clause that cannot take a place now keeps no other from it: one that a new scheduler.conf
// does not have any more, and one whose agents do not start.
func TestClauseThatTakesNoPlaceKeepsNoneWaiting(t *testing.T) {
	for name, change := range map[string]func(r *rig, g *Group){
		"it is gone":              func(r *rig, g *Group) { r.Withdraw(g) },
		"its agents do not start": func(r *rig, g *Group) { g.notBefore = r.now.Add(time.Minute); r.wantAgent(g) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			one, other := r.group("one", conf.Settings{MaxTA: 5}, 0), r.group("other", conf.Settings{MaxTA: 5}, 1)
			one.waiting, r.places.waiting = true, []*Group{one}
			if !r.places.noPlace(other) {
				t.Fatal("the other one comes first")
			}
			change(r, one)
			if r.places.noPlace(other) {
				t.Error("the other one waits still")
			}
		})
	}
}

// An agent that never asked for anything gives its place up, too, and is ended if it does
// not end by itself.
func TestSilentAgentGivesItsPlace(t *testing.T) {
	r := newRig(t)
	has, poor := r.group("has", conf.Settings{MaxTA: 1}, 0), r.group("poor", conf.Settings{MaxTA: 1}, 0)
	a := r.agent(has)
	a.born, a.idle = r.now.Add(-turnLength), r.now.Add(-turnLength)
	if !r.places.noPlace(poor) || !a.closing {
		t.Fatal("it keeps its place")
	}
	if a.closedAt.IsZero() || r.wakeAt.IsZero() {
		t.Error("its end is not looked after")
	}
}

// Agents that die together put their next start off once, not once each.
func TestAgentsThatDieTogetherCountOnce(t *testing.T) {
	r := newRig(t)
	g := r.group("g", conf.Settings{}, 0)
	for want := time.Second; want <= 2*time.Second; want *= 2 {
		for range 6 {
			r.putOff(g)
		}
		if !g.notBefore.Equal(r.now.Add(want)) {
			t.Errorf("the next start is put off by %v, want %v", g.notBefore.Sub(r.now), want)
		}
		r.Tick(g.notBefore)
	}
}

// A clock that is set by an hour makes no agent deaf.
func TestClockThatIsSetMovesTheTimesOfAgents(t *testing.T) {
	r := newRig(t)
	now := r.now
	a := r.agent(r.group("g", conf.Settings{}, 0))
	a.jobs.list = []Job{{given: now, heard: now}}
	a.spoke, a.idle, a.leftAt, a.closedAt = now, now, now, now
	r.Shift(time.Hour)
	want := now.Add(time.Hour)
	for name, got := range map[string]time.Time{"a job": a.jobs.list[0].given, "its answer": a.jobs.list[0].heard, "the last line": a.spoke, "its start": a.born,
		"its rest": a.idle, "its leave": a.leftAt, "its end": a.closedAt} {
		if !got.Equal(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
