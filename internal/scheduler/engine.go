package scheduler

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/scheduler/thread"
	"zmailer/internal/watch"
)

// engine joins core, disk and agents. All its state belongs to the goroutine of
// run; others post to the mailbox what they want done.
type engine struct {
	conf  Config
	po    *postoffice.PostOffice
	spool *Spool
	core  *thread.Core
	log   *slog.Logger
	box   *mailbox
	pool  *pool
	watch *watch.Watcher

	now time.Time // of this turn

	// Messages.
	messages           map[uint64]*thread.Message // by number
	loading            map[string]bool
	refused            map[string]refusal // names that cannot be used
	locked             map[*thread.Message]bool
	busy               map[*thread.Message]*ops
	look               uint32 // number of the last look at transport/
	looking, lookAgain bool

	// Agents.
	agents   map[*agent]bool
	starting int
	dirty    []*agent // with something to write
	starved  []*thread.Ring
	wakeAt   time.Time // when agents want attention: idle ones, new starts

	stopping bool
	deadline time.Time
}

// refusal is why a specification is left alone.
type refusal struct {
	why  string
	look uint32
	kept bool // until it changes by hand; else it is tried again
}

// recoverEvery is how many looks at transport/ come before queue/ and transport/
// are compared again.
const recoverEvery = 20

func newEngine(c Config, po *postoffice.PostOffice) *engine {
	c.restart = cmp.Or(c.restart, defaultRestart)
	e := &engine{
		conf: c, po: po, log: c.Log, box: newMailbox(),
		spool: &Spool{PostOffice: po, Conf: c.Conf, Hostname: c.Hostname, Postmaster: c.Postmaster,
			Now: time.Now, Started: time.Now(), Log: c.Log},
		core: thread.New(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))),

		messages: map[uint64]*thread.Message{}, loading: map[string]bool{}, refused: map[string]refusal{},
		locked: map[*thread.Message]bool{}, busy: map[*thread.Message]*ops{}, agents: map[*agent]bool{},
	}
	return e
}

// transport is the path of transport/, where agents run.
func (e *engine) transport() string { return filepath.Join(e.conf.Dir, postoffice.Transport) }

// run works until ctx is done and everything has ended.
func (e *engine) run(ctx context.Context) error {
	if err := e.spool.Recover(); err != nil {
		return err
	}
	e.pool = newPool(e.load)
	defer e.pool.close()
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	e.watch = watch.New(watching, []string{e.transport()}, e.conf.Look, acceptName, e.log)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := ctx.Done()
	hints := e.watch.C()
	var list []func()
	for !e.ended() {
		select {
		case <-done:
			done, hints = nil, nil
			stopWatching()
			e.now = time.Now()
			e.stop()
		case <-e.box.wake:
		case <-timer.C:
		case h := <-hints:
			e.hint(h)
			for more := true; more; {
				select {
				case h := <-hints:
					e.hint(h)
				default:
					more = false
				}
			}
		}
		e.now = time.Now()
		list = e.box.take(list)
		for _, fn := range list {
			fn()
		}
		e.turn()
		e.arm(timer)
	}
	stopWatching()
	e.watch.Wait()
	return nil
}

// post has fn done by run's goroutine.
func (e *engine) post(fn func()) { e.box.post(fn) }

// turn does what is due, feeds agents and writes to them.
func (e *engine) turn() {
	expired, due := e.core.Advance(e.now)
	for _, v := range expired {
		e.expire(v)
	}
	for _, m := range due {
		e.remind(m)
	}
	if !e.wakeAt.IsZero() && !e.now.Before(e.wakeAt) {
		e.attend()
	}
	for r := e.core.Touched(); r != nil; r = e.core.Touched() {
		e.feed(r)
	}
	for _, a := range e.dirty {
		a.flush(e)
	}
	e.dirty = e.dirty[:0]
}

// arm sets the one timer there is to what comes next.
func (e *engine) arm(timer *time.Timer) {
	next := earliest(e.core.Next(), e.wakeAt)
	if e.stopping {
		next = earliest(next, e.deadline)
	}
	if next.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(max(time.Until(next), 0))
}

// earliest is the earlier of two times of which zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// wake has attend called at a time.
func (e *engine) wake(at time.Time) { e.wakeAt = earliest(e.wakeAt, at) }

// stop ends deliveries in good order (A17): nothing new is begun, what runs may end
// until the deadline.
func (e *engine) stop() {
	e.stopping = true
	e.deadline = e.now.Add(e.conf.StopTimeout)
	e.log.Info("stopping", "agents", len(e.agents), "deliveries", e.running(), "timeout", e.conf.StopTimeout)
	e.pool.forget()
	for a := range e.agents {
		a.stop(e)
	}
}

// ended tells whether everything has ended after stop, or has to.
func (e *engine) ended() bool {
	if !e.stopping {
		return false
	}
	if len(e.agents) == 0 && e.starting == 0 && len(e.busy) == 0 {
		return true
	}
	if e.now.Before(e.deadline) {
		return false
	}
	if len(e.agents) == 0 && e.starting == 0 {
		// The disk does not take our changes: the next start finds what is to be done.
		e.log.Error("stopped-early", "changes", len(e.busy))
		return true
	}
	// Crash: as if these agents had been killed: their locks are a dead owner's.
	for a := range e.agents {
		a.kill(e)
	}
	e.deadline = e.now.Add(killGrace)
	return false
}

// killGrace is what an agent gets between SIGTERM and SIGKILL.
const killGrace = 2 * time.Second

// running counts deliveries under way.
func (e *engine) running() int {
	n := 0
	for a := range e.agents {
		n += len(a.deliveries)
	}
	return n
}

// ops are the changes of one message that are to be made one after the other.
type ops struct {
	list    []op
	running bool
	delay   time.Duration // before the next try of one that failed; 0: none failed
	ending  bool          // the message's end is among them
	again   string        // a name with the message's number that came meanwhile
}

// op is one change.
type op struct {
	run  func() error // by the pool
	then func()       // by the engine, when run succeeded
}

// do makes a change of a message when those before it are made. One that fails is
// tried again until it succeeds; one whose file is gone ends the message.
func (e *engine) do(m *thread.Message, o op) *ops {
	w := e.busy[m]
	if w == nil {
		w = &ops{}
		e.busy[m] = w
	}
	w.list = append(w.list, o)
	if !w.running && w.delay == 0 {
		e.dispatch(m, w)
	}
	return w
}

func (e *engine) dispatch(m *thread.Message, w *ops) {
	w.running = true
	run := w.list[0].run
	e.pool.do(func() {
		err := run()
		e.post(func() { e.changed(m, w, err) })
	})
}

// changed takes the end of a change.
func (e *engine) changed(m *thread.Message, w *ops, err error) {
	w.running = false
	if e.busy[m] != w {
		return // the message is gone
	}
	switch {
	case errors.Is(err, postoffice.ErrGone):
		e.vanish(m, err)
		return
	case err != nil:
		// A full or failing disk: back off, say so once, go on (K12).
		if w.delay == 0 {
			e.log.Error("disk", "id", idOf(m), "name", m.Name, "reason", err, "retry", "until it works")
		}
		w.delay = min(max(2*w.delay, time.Second), time.Minute)
		e.core.Remind(m, e.now.Add(w.delay))
		return
	}
	o := w.list[0]
	w.list = w.list[1:]
	recovered := w.delay > 0
	w.delay = 0
	if o.then != nil {
		o.then()
	}
	if e.busy[m] != w {
		return
	}
	if recovered {
		// The reminder was used for the retries.
		e.core.Remind(m, e.now)
	}
	if w.running {
		return
	}
	if len(w.list) > 0 {
		e.dispatch(m, w)
		return
	}
	delete(e.busy, m)
}

// remind takes a message's reminder: a change to try again, or a report that is due.
func (e *engine) remind(m *thread.Message) {
	if w := e.busy[m]; w != nil && w.delay > 0 {
		if !w.running {
			e.dispatch(m, w)
		}
		return
	}
	e.settle(m)
}

func idOf(m *thread.Message) postoffice.SpoolID {
	return postoffice.SpoolID{Ino: m.Number, MTime: m.Stamp}
}
