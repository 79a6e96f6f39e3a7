package config

import "sync"

// Outage raises an alarm, by a Keeper, while something that a program asks does not answer, and
// ends it with the next answer, also that of a process before this one. Many goroutines may use it.
type Outage struct {
	keeper Keeper
	name   string
	after  int // failures in a row from which it counts

	mu       sync.Mutex
	failures int
	raised   bool
	answered bool // the Keeper knows that it answers
}

// NewOutage names what is asked as the alarm will; after is how many failures in a row make one. A
// nil keeper raises nothing.
func NewOutage(k Keeper, name string, after int) *Outage {
	if k != nil {
		k.Names(name)
	}
	return &Outage{keeper: k, name: name, after: after}
}

// Failed notes a failure.
func (o *Outage) Failed(err error) {
	if o.keeper == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures++; o.failures >= o.after && !o.raised {
		o.raised, o.answered = true, false
		o.keeper.Bad(o.name, err, false)
	}
}

// Answers notes an answer.
func (o *Outage) Answers() {
	if o.keeper == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures = 0
	if !o.answered {
		o.raised, o.answered = false, true
		o.keeper.Good(o.name, nil, 0, nil)
	}
}
