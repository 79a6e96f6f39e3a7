package agents

import (
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
)

// Del2 Del3: an agent from which a job was taken back may have the old file open and lock a
// recipient in it, as ZMailer's agents do without a look whether it has its name: the message
// is in doubt, and its history is not summarised, until the agent reports that nothing is
// under way.
func TestDel3MessageIsInDoubtWhileAnAgentMayHaveItsFile(t *testing.T) {
	r := newRig(t)
	a := r.agent(r.group("r", conf.Settings{}, 0))
	a.jobs.slots = 1
	m := r.give(a, 7).Message
	if r.InDoubt(m) {
		t.Error("it is in doubt before the job was taken back")
	}
	if a.takeBack(0); !r.InDoubt(m) {
		t.Error("it is not in doubt while an agent may have it")
	}
	if a.hungry(); r.InDoubt(m) {
		t.Error("it is in doubt when no agent can have it any more")
	}
}

// Del3: what is kept of jobs that were taken back goes when the agent has come to an end with
// them, and when it is given the same recipients again: files that it cannot use, again and
// again, do not add up.
func TestDel3DoubtsDoNotAddUp(t *testing.T) {
	for name, tt := range map[string]struct {
		slots int
		host  string
		free  bool // all slots become free in between
	}{
		"one slot": {1, "", true}, "several slots, all free": {2, "", true}, "several slots, never all free": {2, "", false}, "it names the host": {2, "h", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.agent(r.group("r", conf.Settings{}, 0))
			a.jobs.slots = tt.slots
			v := r.give(a, 7)
			for range 5 {
				a.jobs.free = tt.slots - 1
				a.resync(v.Message.Name(), tt.host)
				if tt.free {
					a.hungry()
				}
				// It is given out again.
				r.core.Wait(v, r.now)
				if got := r.core.Take(a.group.ring, r.now); got != v {
					t.Fatalf("%v is given, want the same one", got)
				}
				a.jobs.list = append(a.jobs.list[:0], Job{Vertex: v, given: r.now, heard: r.now})
			}
			want := 1
			if tt.free || tt.host != "" {
				want = 0
			}
			assert.Equal(t, len(a.doubts), want, "doubts kept")
			// It may have left a lock all the same.
			if a.Ended("killed"); r.unlocked != 1 {
				t.Error("what it has locked is not looked at when it has ended")
			}
		})
	}
}

// Del3: a job that waits in an agent with one slot for those before it is not overdue when
// the answer for the last of these was read, and the #hungry behind it was not.
func TestDel3QueuedJobIsNotOverdueBetweenAnswerAndHungry(t *testing.T) {
	r := newRig(t)
	a := r.agent(r.group("r", conf.Settings{AnswerMax: time.Hour}, 0))
	a.jobs.slots = 1
	r.core.Follow(a.group.ring, thread.Policy{}, r.now)
	r.give(a, 7)
	r.give(a, 8)
	r.Tick(r.now.Add(50 * time.Minute))
	a.jobs.list[0].heard = r.now // for one of its recipients
	r.Tick(r.now.Add(20 * time.Minute))
	a.jobs.answered(0, r.now)
	r.overdueAt = r.now
	r.overdue()
	if a.jobs.list[1].Vertex == nil || len(a.doubts) > 0 {
		t.Error("it is taken back")
	}
	if want := r.now.Add(time.Hour); !r.overdueAt.Equal(want) {
		t.Errorf("the next look is at %v, want %v", r.overdueAt, want)
	}
}
