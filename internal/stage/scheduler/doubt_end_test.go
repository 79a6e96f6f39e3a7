package scheduler

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
)

// doubtful is an engine with an agent to which a job was given.
func doubtful(slots int) (*engine, *agent) {
	now := time.Unix(1_800_000_000, 0)
	e := &engine{core: thread.New(rand.New(rand.NewPCG(1, 2))), agents: map[*agent]bool{}, busy: map[*thread.Message]*ops{}, now: now,
		log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	a := &agent{slots: slots, crew: &crew{ring: e.core.Ring("r", thread.Policy{}), settings: &conf.Settings{}}}
	e.agents[a] = true
	return e, a
}

// giveOne hands the agent a message for two recipients.
func (e *engine) giveOne(a *agent, number uint64) *thread.Vertex {
	m := &thread.Message{Number: number, Open: 2, Total: 2}
	e.core.Add(m, a.crew.ring, "smtp", "h", []thread.Recipient{thread.NewRecipient(20, "a@h"), thread.NewRecipient(40, "b@h")}, thread.History{}, e.now)
	v := e.core.Take(a.crew.ring, e.now)
	a.deliveries = append(a.deliveries, delivery{v: v, given: e.now, heard: e.now})
	return v
}

// Del2 Del3: an agent from which a job was taken back may have the old file open and lock a
// recipient in it, as ZMailer's agents do without a look whether it has its name: the history
// is not summarised until the agent says that nothing is under way.
func TestDel3NoSummaryWhileAnAgentMayHaveTheFile(t *testing.T) {
	e, a := doubtful(1)
	v := e.giveOne(a, 7)
	m := v.Message
	e.takeBackFrom(a, 0)
	v = e.core.Add(m, a.crew.ring, "smtp", "g", []thread.Recipient{thread.NewRecipient(60, "c@g")}, thread.History{}, e.now)
	e.core.Park(v, e.now)
	w := &ops{delay: time.Second} // nothing is begun
	e.busy[m] = w
	if e.summarise(m, v) || len(w.list) > 0 {
		t.Error("it is summarised while an agent may have it")
	}
	e.hungry(a)
	if !e.summarise(m, v) || len(w.list) != 1 {
		t.Error("it is not summarised when no agent can have it any more")
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
			e, a := doubtful(tt.slots)
			v := e.giveOne(a, 7)
			m := v.Message
			e.messages.put(m)
			e.busy[m] = &ops{delay: time.Second} // nothing is begun
			for range 5 {
				a.free = tt.slots - 1
				e.resync(a, m.Name(), tt.host)
				if tt.free {
					e.hungry(a)
				}
				// It is given out again.
				e.core.Wait(v, e.now)
				if got := e.core.Take(a.crew.ring, e.now); got != v {
					t.Fatalf("%v is given, want the same one", got)
				}
				a.deliveries = append(a.deliveries[:0], delivery{v: v, given: e.now, heard: e.now})
			}
			want := 1
			if tt.free || tt.host != "" {
				want = 0
			}
			if len(a.doubts) != want {
				t.Errorf("%d doubts are kept, want %d", len(a.doubts), want)
			}
			// It may have left a lock all the same.
			e.conf.locked, e.lockedWait = time.Second, time.Hour
			if e.releaseDoubts(a); e.lockedWait != time.Second {
				t.Error("what it has locked is not looked at when it has ended")
			}
		})
	}
}

// Del3: a job that waits in an agent with one slot for those before it is not overdue when
// the answer for the last of these was read, and the #hungry behind it was not.
func TestDel3QueuedJobIsNotOverdueBetweenAnswerAndHungry(t *testing.T) {
	e, a := doubtful(1)
	a.crew.settings.AnswerMax = time.Hour
	e.giveOne(a, 7)
	e.giveOne(a, 8)
	e.now = e.now.Add(50 * time.Minute)
	a.deliveries[0].heard = e.now // for one of its recipients
	e.now = e.now.Add(20 * time.Minute)
	a.answered(0, e.now)
	e.overdueAt = e.now
	e.overdue()
	if a.deliveries[1].v == nil || len(a.doubts) > 0 {
		t.Error("it is taken back")
	}
	if want := e.now.Add(time.Hour); !e.overdueAt.Equal(want) {
		t.Errorf("it is looked again at %v, want %v", e.overdueAt, want)
	}
}
