package router

import (
	"context"
	"errors"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/watch"
)

// How long is waited after trouble before the next attempt (K12).
const (
	firstPause = time.Second
	longest    = time.Minute
)

// scanGap is the least time between two scans of router/ while messages wait: hints
// that were lost in a flood must not cost a scan each.
const scanGap = time.Second

// dispatcher gives the workers what is to be routed. One goroutine uses it.
type dispatcher struct {
	r     *Router
	hints <-chan watch.Hint
	queue []order // to be routed, in this order

	scanned, recovered time.Time
	wake               *time.Timer // the next scan that nobody else asks for
	wakeAt             time.Time   // zero: none

	pause pause            // of all routing: the storage is in trouble
	later map[string]pause // of single messages
}

// pause is a wait that doubles until something succeeds.
type pause struct {
	length time.Duration // 0: none
	until  time.Time
}

// longer starts the pause or doubles it. Failures that were under way when it
// started do not.
func (p *pause) longer(now time.Time) {
	if now.Before(p.until) {
		return
	}
	p.length = min(max(firstPause, 2*p.length), longest)
	p.until = now.Add(p.length)
}

func newDispatcher(r *Router, hints <-chan watch.Hint) *dispatcher {
	d := &dispatcher{r: r, hints: hints, wake: time.NewTimer(time.Hour), later: map[string]pause{}}
	d.wake.Stop()
	return d
}

// run serves until ctx is done; then what the workers have begun is finished.
func (d *dispatcher) run(ctx context.Context) {
	orders := make(chan order)
	done := make(chan outcome, d.r.c.Workers)
	wait := d.r.startWorkers(orders, done)
	for ctx.Err() == nil {
		d.step(ctx, orders, done)
	}
	close(orders)
	go func() {
		wait()
		close(done)
	}()
	for o := range done {
		d.routed(o)
	}
	d.wake.Stop()
}

// step does one thing.
func (d *dispatcher) step(ctx context.Context, orders chan<- order, done <-chan outcome) {
	var out chan<- order
	var next order
	if len(d.queue) > 0 && !d.now().Before(d.pause.until) {
		out, next = orders, d.queue[0]
	}
	select {
	case <-ctx.Done():
	case out <- next:
		d.queue = d.queue[1:]
	case o := <-done:
		d.routed(o)
	case h := <-d.hints:
		d.hint(h)
	case <-d.wake.C:
		d.wakeAt = time.Time{}
		d.scan()
	}
}

func (d *dispatcher) now() time.Time { return d.r.c.Now() }

// hint takes a name into the queue without a look at the directory, or scans it.
func (d *dispatcher) hint(h watch.Hint) {
	if h.Name != "" {
		if p, waits := d.later[h.Name]; !waits || !d.now().Before(p.until) {
			d.queue = append(d.queue, order{h.Name, true})
		}
		return
	}
	if d.now().Sub(d.recovered) >= d.r.c.Poll*9/10 {
		d.recover()
	}
	if next := d.scanned.Add(scanGap); len(d.queue) > 0 && d.now().Before(next) {
		d.wakeBy(next)
		return
	}
	d.scan()
}

// wakeBy has a scan made at a time, if none is due before.
func (d *dispatcher) wakeBy(at time.Time) {
	if d.wakeAt.IsZero() || at.Before(d.wakeAt) {
		d.wakeAt = at
		d.wake.Reset(at.Sub(d.now()))
	}
}

func (d *dispatcher) recover() {
	d.recovered = d.now()
	if err := d.r.Recover(); err != nil {
		d.trouble(err)
	}
}

// scan makes the queue anew from the directory: all that is in the queue is there
// too, unless somebody else has it by now.
func (d *dispatcher) scan() {
	if d.now().Before(d.pause.until) {
		d.wakeBy(d.pause.until)
		return
	}
	d.scanned = d.now()
	list, err := d.r.po.ListRouter(!d.r.c.Unsorted)
	if err != nil {
		d.trouble(err)
		return
	}
	later := map[string]pause{}
	var again []order
	d.queue = make([]order, 0, len(list))
	for _, p := range list {
		if wait, ok := d.later[p.Name]; ok {
			later[p.Name] = wait
			if d.scanned.Before(wait.until) {
				d.wakeBy(wait.until)
			} else {
				again = append(again, order{name: p.Name})
			}
			continue
		}
		d.queue = append(d.queue, order{name: p.Name})
	}
	// Behind the others: one that fails each time must not be the only one tried.
	d.queue = append(d.queue, again...)
	d.later = later
}

// routed draws the consequences of what became of a message.
func (d *dispatcher) routed(o outcome) {
	switch {
	case o.err == nil:
		d.fine(o.name)
	case errors.Is(o.err, postoffice.ErrGone):
		// Another router has it.
	default:
		d.putBack(o)
	}
}

// fine ends the pauses.
func (d *dispatcher) fine(name string) {
	if d.pause.length != 0 {
		d.pause = pause{}
		d.r.c.Log.Info("storage-recovered")
	}
	if len(d.later) > 0 {
		delete(d.later, name)
	}
}

// putBack has a message wait that could not be routed, and with trouble of the
// storage all others. That the message itself waits longer lets the others pass it
// when the storage is bad in one place only.
func (d *dispatcher) putBack(o outcome) {
	p, again := d.later[o.name]
	p.longer(d.now())
	d.later[o.name] = p
	d.wakeBy(p.until)
	if isStorage(o.err) {
		d.trouble(o.err)
		return
	}
	if !again {
		d.r.c.Log.Error("not-routed", "name", postoffice.Router+"/"+o.name, "reason", o.err, "again", p.length)
	}
}

// trouble pauses all routing. It is said once.
func (d *dispatcher) trouble(err error) {
	if d.pause.length == 0 {
		d.r.c.Log.Error("storage-trouble", "reason", err, "longest", longest)
	}
	d.pause.longer(d.now())
	d.wakeBy(d.pause.until)
}
