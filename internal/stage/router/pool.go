package router

import (
	"context"
	"sync"
	"time"

	"zmailer/internal/disk/watch"
)

// The workers take turns at leading. Who leads waits for hints and routes what comes by
// itself, so that no other process is woken for a message that comes alone. It gives the lead
// away before it routes when many messages wait, and while it routes when that begins to
// take long; whoever is free then leads (docs/notes/leading.md). A message that waits for
// its lookups gets a place of its own, and its worker's place goes to another (slow.go).

const (
	// manyWaiting is how many messages wait when they are routed side by side: fewer are
	// routed in less time than waking another worker takes.
	manyWaiting = 8
	// jobsPerPoll is how many messages go between two looks for hints while messages wait.
	jobsPerPoll = 16
)

// hintSource gives hints, as a watch.Watcher does.
type hintSource interface {
	Await(until time.Time) []watch.Hint
	Interrupt()
}

// pool is what the workers share beside the dispatcher itself.
type pool struct {
	lead    sync.Mutex // held by the worker that leads
	workers sync.WaitGroup

	// Used by the one who leads.
	unseen int // messages since the last look for hints

	mu    sync.Mutex
	done  []jobResult // of messages that were not routed by the one who leads
	idle  bool        // it waits for hints
	slots slots       // of messages that wait for their lookups
}

// rest is called before the one who leads waits: from now on it is to be interrupted. It
// reports whether there is nothing to settle.
func (p *pool) rest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = len(p.done) == 0
	return p.idle
}

func (p *pool) rested() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = false
}

// add adds what became of a message for the one who leads, and reports whether that one waits
// for hints.
func (p *pool) add(o jobResult) (idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = append(p.done, o)
	return p.idle
}

func (p *pool) reports() []jobResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.done
	p.done = nil
	return list
}

// run serves until ctx is done. What the workers have begun is finished then; what waits
// for a lookup is given back.
func (d *dispatcher) run(ctx context.Context) {
	defer context.AfterFunc(ctx, d.hints.Interrupt)()
	base, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(errStopped) })()
	for range d.r.c.Workers {
		d.workers.Go(func() { d.work(ctx, base) })
	}
	d.workers.Wait()
	d.settle()
}

// work leads, and routes what it finds. ctx ends the work, base the lookups of messages.
func (d *dispatcher) work(ctx, base context.Context) {
	t := newTurn(d, base, func() { d.work(ctx, base) })
	defer func() { t.cancel(nil) }()
	for {
		if !t.leads {
			d.lead.Lock()
			t.leads = true
		}
		o, ok := d.await(ctx)
		if !ok {
			t.Busy()
			return
		}
		d.given(o)
		t.begin(o)
		if o.slow || d.classes.waiting() >= manyWaiting {
			t.Busy()
		}
		end := jobResult{o.name, d.r.routeFor(t.ctx, t, o.name, o.tried)}
		slow := t.end()
		if t.leads {
			d.ended(end)
		} else {
			d.report(end)
		}
		if slow {
			return // another worker has its place
		}
	}
}

// await returns the next message, when there is one. ok is false when ctx is done.
func (d *dispatcher) await(ctx context.Context) (o job, ok bool) {
	for ctx.Err() == nil {
		d.r.c.Service.Alive()
		d.settle()
		if !d.wake.at.IsZero() && !time.Now().Before(d.wake.clock) {
			d.wake = alarm{}
			d.scan()
		}
		o, ok := d.next()
		switch {
		case ok && len(d.classes) == 1 && d.unseen < jobsPerPoll:
			d.unseen++
			return o, true
		case ok:
			d.look(time.Unix(1, 0)) // what has come may go before it
			if o, ok := d.next(); ok {
				return o, true
			}
		case d.rest():
			d.look(d.wake.clock)
			d.rested()
		}
	}
	return job{}, false
}

// look takes the hints, waiting for some until a time.
func (d *dispatcher) look(until time.Time) {
	d.unseen = 0
	for _, h := range d.hints.Await(until) {
		d.hint(h)
	}
}

// report passes what became of a message to the one who leads.
func (d *dispatcher) report(o jobResult) {
	if d.add(o) {
		d.hints.Interrupt()
	}
}

func (d *dispatcher) settle() {
	for _, o := range d.reports() {
		d.ended(o)
	}
}

func (d *dispatcher) ended(o jobResult) {
	d.running--
	d.alone = false
	d.routed(o)
}
