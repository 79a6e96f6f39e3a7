package agents

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// patience bounds every wait for an event.
const testPatience = 30 * time.Second

// rig is a pool whose agents are played by the test, on a virtual clock.
type rig struct {
	*Pool
	lost     []*thread.Vertex
	done     int
	unlocked int
	outcomes []string               // result and last line of the answer
	starts   []func(Process, error) // that are under way
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{}
	core := thread.New(rand.New(rand.NewPCG(1, 2)))
	r.Pool = New(core, r, r, Limits{End: time.Minute}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	r.Tick(time.Unix(1_800_000_000, 0))
	return r
}

// group makes a group with agents that have one slot and a job.
func (r *rig) group(key string, settings conf.Settings, agents int) *Group {
	g := NewGroup(r.core.Ring(key, thread.Policy{}), &settings, "smtp", "h")
	for range agents {
		r.agent(g).jobs = jobs{slots: 1, list: make([]Job, 1)}
	}
	return g
}

func (r *rig) agent(g *Group) *Agent {
	a := &Agent{pool: r.Pool, group: g, proc: played{}, born: r.now}
	g.agents = append(g.agents, a)
	r.agents = append(r.agents, a)
	return a
}

// give hands an agent a message for two recipients.
func (r *rig) give(a *Agent, number uint64) *thread.Vertex {
	m := &thread.Message{Number: number, Open: 2, Total: 2}
	r.core.Add(m, a.group.ring, "smtp", "h", []thread.Recipient{thread.NewRecipient(20, "a@h"), thread.NewRecipient(40, "b@h")}, thread.History{}, r.now)
	v := r.core.Take(a.group.ring, r.now)
	a.jobs.list = append(a.jobs.list, Job{Vertex: v, given: r.now, heard: r.now})
	return v
}

func (r *rig) Start(_ Launch, _, _ string, started func(Process, error)) {
	r.starts = append(r.starts, started)
}
func (r *rig) Given(*Agent, *thread.Vertex)                     {}
func (r *rig) Late(*Doubt, *thread.Outcome, taproto.Word, bool) {}
func (r *rig) Stray(uint64)                                     {}
func (r *rig) Unlocked()                                        { r.unlocked++ }
func (r *rig) Answered(_ *thread.Vertex, x *thread.Recipient, ans *taproto.Answer) {
	r.answered(x.Result, ans.Text)
}
func (r *rig) Done(j *Job) {
	r.done++
	for _, o := range j.Outcomes {
		r.answered(o.Result, o.Text)
	}
}
func (r *rig) answered(result thread.Result, text string) {
	word := map[thread.Result]string{thread.Delivered: "delivered", thread.Failed: "failed", thread.Deferred: "deferred"}[result]
	r.outcomes = append(r.outcomes, word+" "+thread.LastLine(text))
}
func (r *rig) Lost(j *Job) {
	r.lost = append(r.lost, j.Vertex)
	r.core.Stop(j.Vertex, r.now)
}

// played is the process of an agent that the test plays.
type played struct{}

func (played) Pid() int              { return 1 }
func (played) Window() int           { return 1 << 20 }
func (played) Listen(*Agent)         {}
func (played) Write([]byte) error    { return nil }
func (played) CloseInput()           {}
func (played) Unread() int           { return 0 }
func (played) Signal(syscall.Signal) {}
