package agents

import (
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// Job is a vertex that an agent was given.
type Job struct {
	Vertex   *thread.Vertex   // nil: it is answered, its #hungry is still to come
	Outcomes []thread.Outcome // those that the agent leaves to the scheduler to record
	Wait     thread.HostWait  // the agent's answer about the whole host
	Report   bool             // the sender may want to hear of an answer

	bytes int // of its line
	given time.Time
	heard time.Time // when the agent came to it, or last answered for a recipient of it
}

// hostTrouble gives the recipients without an answer that of the host, if there is
// one (deferall, retryat).
func (j *Job) hostTrouble() bool {
	i := slices.IndexFunc(j.Outcomes, func(o thread.Outcome) bool { return o.Result == thread.HostDeferred })
	if i < 0 {
		return false
	}
	list := j.Vertex.Recipients()
	for k := range list {
		r := &list[k]
		if r.Result == thread.None {
			r.Result = thread.HostDeferred
			o := j.Outcomes[i]
			o.Offset, o.Address = r.Offset(), r.Address
			j.Outcomes = append(j.Outcomes, o)
		}
	}
	return true
}

// jobs are what an agent has to do, and the slots that it does it in.
type jobs struct {
	list    []Job // with one slot in the order in which they were given
	slots   int   // #hungry it had outstanding at most
	free    int
	claimed bool // it has announced how many slots it has
	unread  int  // bytes of the lines of jobs that it may not have read yet
	window  int  // how many may be, so that a write never waits
}

func (q *jobs) room() bool { return q.unread < q.window }

func (q *jobs) add(j Job) {
	q.list = append(q.list, j)
	q.unread += j.bytes
	if q.free > 0 {
		q.free--
	}
}

// live returns how many jobs are not answered.
func (q *jobs) live() (n int) {
	for i := range q.list {
		if q.list[i].Vertex != nil {
			n++
		}
	}
	return n
}

// first returns the job that an agent with one slot is at work on, -1 if there is none.
func (q *jobs) first() int {
	return slices.IndexFunc(q.list, func(j Job) bool { return j.Vertex != nil })
}

// find returns the job and recipient that an answer is about.
func (q *jobs) find(ans *taproto.Answer) (int, *thread.Recipient) {
	for i := range q.list {
		v := q.list[i].Vertex
		if v == nil || v.Message.Number != ans.Number {
			continue
		}
		if r := v.Find(ans.Offset); r != nil && r.Result == thread.None {
			return i, r
		}
	}
	return -1, nil
}

// answered notes that a job is over. With one slot its #hungry follows, and the agent may
// go on with the next one from now on.
func (q *jobs) answered(i int, now time.Time) {
	if q.slots > 1 {
		q.drop(i)
		return
	}
	q.list[i].Vertex, q.list[i].Outcomes = nil, nil
	if next := q.first(); next >= 0 {
		q.list[next].heard = now
	}
}

// drop takes a job off the list.
func (q *jobs) drop(i int) Job {
	j := q.list[i]
	q.unread -= j.bytes
	last := len(q.list) - 1
	if q.slots <= 1 {
		copy(q.list[i:], q.list[i+1:])
	} else {
		q.list[i] = q.list[last]
	}
	q.list[last] = Job{}
	q.list = q.list[:last]
	return j
}
