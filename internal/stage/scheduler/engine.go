package scheduler

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// engine joins core, disk and agents. All its state belongs to the goroutine of
// run; others post to the mailbox what they want done.
type engine struct {
	conf  Config
	po    *postoffice.PostOffice
	spool *store.Store
	core  *thread.Core
	log   *slog.Logger
	box   *mailbox
	pool  *pool
	watch *watch.Watcher

	now   time.Time     // of this turn
	base  time.Time     // the time of day when the steady clock
	since time.Duration // was at this

	// Messages.
	messages          table
	inodes            map[uint64]uint64 // number in the name, of messages with another one in the spool ID
	loading           map[string]bool
	hinted            []string           // to be loaded, see wantHinted
	notes             map[string]bool    // of those that are being read
	refused           map[string]refusal // names that cannot be used
	locked            map[*thread.Message]bool
	unserved          map[*thread.Message]bool // those with recipients that nothing serves
	lockedAt          time.Time                // when those are looked at
	lockedWait        time.Duration            // how long that was put off
	busy              map[*thread.Message]*ops
	endings           []ending                               // messages that were delivered, see finishAll
	finishing         int                                    // lots of them that the pool has
	obsoleters        map[*thread.Message]*store.Superseding // those that make others void
	keeping, unkept   bool                                   // the ledger: it is being folded; it could not be
	look              uint32                                 // number of the last listing of transport/ or queue/
	looks             int                                    // how many looks there were
	whole             bool                                   // the next one compares queue/ too, whatever its number
	looking           bool
	lookAgain         bool            // as soon as that one ends
	lookLater         bool            // when its turn comes
	lookAt, lookEnded time.Time       // when a look is to be, and when the last one ended
	lookTook          time.Duration   // what that one took
	more              chan<- []string // where the lister waits to be asked for more
	ahead             int             // specifications that are listed and not read yet
	listers           sync.WaitGroup
	began             time.Time // the first look
	scan              scan
	gcPercent         int           // see tuneHeap; 0: as it was
	trimAt            time.Time     // when the heap is trimmed, see grown
	trimmed           int           // messages that there were then
	grownTo           int           // most messages since
	quit              chan struct{} // closed by stop

	// Agents.
	agents *agents.Pool
	next   map[*thread.Ring]*conf.Settings // by a new scheduler.conf, while it takes effect

	lookout lookout

	// Those who ask and listen.
	query  *query
	events *events.Stream
	counts counts
	meters meters

	stopping bool
	deadline time.Time
}

// refusal is why a specification is left alone.
type refusal struct {
	why  string
	look uint32
	kept bool // until it changes by hand; else it is tried again
	// alone is since when its message is missing.
	alone time.Time
	cut   bool // it was whole before
	kind  alarm.Kind
}

func newEngine(c Config, po *postoffice.PostOffice) *engine {
	c.alone = cmp.Or(c.alone, aloneGrace)
	c.Lookout = cmp.Or(c.Lookout, DefaultLookout)
	c.locked = cmp.Or(c.locked, lockedAfter)
	c.clocks = c.clocks.orSystem()
	stream := &events.Stream{}
	c.Log = c.Metrics.Log(c.Log)
	m := newMeters(c.Metrics)
	e := &engine{
		events: stream,
		conf:   c, po: po, log: c.Log, box: newMailbox(),
		spool: store.New(&store.Env{PostOffice: po, Conf: c.Conf, Hostname: c.Hostname, Postmaster: c.Postmaster,
			Now: c.clocks.now, Started: c.clocks.now(), KeepRemoved: c.KeepRemoved, Log: c.Log, Stream: stream, Resolver: c.Resolver,
			Ledger: ledger.New(po, ledger.Config{Role: "scheduler", Log: c.Log}), Meters: store.Meters{Recipients: m.recipients, Reports: m.reports, Life: m.life}}),
		meters: m,
		core:   thread.New(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))),

		quit: make(chan struct{}), loading: map[string]bool{}, notes: map[string]bool{}, refused: map[string]refusal{},
		inodes: map[uint64]uint64{}, locked: map[*thread.Message]bool{}, unserved: map[*thread.Message]bool{}, lockedWait: c.locked, busy: map[*thread.Message]*ops{},
	}
	start := c.starter
	if start == nil {
		start = &agents.Processes{Dir: e.transport(), ZConfig: c.ZConfig, Launcher: c.Launcher, Post: e.post}
	}
	e.agents = agents.New(e.core, attempts{e}, start, agents.Limits{End: c.StopTimeout, Restart: c.restart, Deaf: c.deaf}, e.log)
	return e
}

// emit emits an event.
func (e *engine) emit(k events.Kind, args ...any) { e.emitter().Emit(k, args...) }

func (e *engine) emitter() events.Emitter { return events.Emitter{Log: e.log, Stream: e.events} }

// transport is the path of transport/, where agents run.
func (e *engine) transport() string { return filepath.Join(e.conf.Dir, postoffice.Transport) }

// run works until ctx is done and everything has ended.
func (e *engine) run(ctx context.Context) error {
	defer e.spool.Ledger.Close()
	defer e.listers.Wait()
	e.startLedger(ctx)
	e.tick()
	e.began = e.now
	e.pool = newPool(e.load)
	defer e.pool.close()
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	e.listers.Go(func() { e.follow(watching) })
	e.watch = watch.New(watching, []string{e.transport()}, e.conf.Look, acceptName, e.log)
	e.startQuery(ctx)
	defer e.serveMetrics()() // those who read ask the engine until the query has stopped
	defer e.query.stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := ctx.Done()
	hints := e.watch.C()
	defer e.conf.Service.Watch(func() { e.post(e.conf.Service.Alive) })()
	e.conf.Service.Ready("serves %s", e.conf.Dir)
	var list []func()
	for !e.ended() {
		select {
		case <-done:
			done, hints = nil, nil
			stopWatching()
			e.tick()
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
			e.wantHinted()
		}
		e.tick()
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
	if !e.conf.Freeze {
		e.advance()
	}
	e.agents.Turn()
	e.lookAtLocked()
	e.lookOut()
	e.trimSoon()
	if !e.lookAt.IsZero() && !e.now.Before(e.lookAt) {
		e.lookAtAll()
	}
	for r := e.core.Touched(); r != nil; r = e.core.Touched() {
		e.feed(r)
	}
	e.agents.Flush()
	e.finishAll()
}

// advance does what the time has come for.
func (e *engine) advance() {
	expired, due := e.core.Advance(e.now)
	for _, v := range expired {
		e.expire(v)
	}
	for _, m := range due {
		e.remind(m)
	}
}

// arm sets the one timer there is to what comes next.
func (e *engine) arm(timer *time.Timer) {
	next := store.Earliest(store.Earliest(e.agents.Next(), e.trimAt), store.Earliest(e.lockedAt, e.lookAt))
	if !e.conf.Freeze {
		next = store.Earliest(next, e.core.Next())
	}
	if e.stopping {
		next = store.Earliest(next, e.deadline)
	} else if !e.lookout.looking {
		next = store.Earliest(next, e.lookout.at)
	}
	if next.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(max(next.Sub(e.now), 0))
}

// stop ends deliveries in good order (A17): nothing new is begun, what runs may end
// until the deadline.
func (e *engine) stop() {
	e.stopping, e.lookAt = true, time.Time{}
	close(e.quit)
	e.conf.Service.Stopping()
	e.deadline = e.now.Add(e.conf.StopTimeout)
	running, _ := e.agents.Len()
	e.log.Info("stopping", "agents", running, "deliveries", e.agents.Running(), "timeout", e.conf.StopTimeout)
	e.pool.forget()
	e.agents.Stop()
}

// ended tells whether everything has ended after stop, or has to.
func (e *engine) ended() bool {
	if !e.stopping {
		return false
	}
	if e.agents.Ended() && len(e.busy) == 0 {
		return true
	}
	if e.now.Before(e.deadline) {
		return false
	}
	if e.agents.Ended() {
		// The disk does not take our changes: the next start finds what is to be done.
		e.log.Error("stopped-early", "changes", len(e.busy))
		return true
	}
	// Crash: as if these agents had been killed: their locks are a dead owner's.
	e.agents.Kill()
	e.deadline = e.now.Add(killGrace)
	return false
}

// killGrace is what an agent gets between SIGTERM and SIGKILL.
const killGrace = 2 * time.Second

// ops are the changes of one message that are to be made one after the other.
type ops struct {
	list    []op
	running bool
	delay   time.Duration // before the next try of one that failed; 0: none failed
	ending  bool          // the message's end is among them
	again   string        // a name with the message's number that came meanwhile
}

// op is one change. Its run may read the message's name, which no other op changes
// meanwhile; taken earlier, it may have been changed since.
type op struct {
	run  func() error // by the pool
	then func()       // by the engine, when run succeeded
	ends bool         // instead of both: the message was delivered, its files go
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
	if w.list[0].ends {
		e.endings = append(e.endings, ending{store.Ending{ID: idOf(m), Name: m.Name(), Total: int(m.Total)}, m, w})
		return
	}
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
	case errors.Is(err, store.ErrMessageGone), errors.Is(err, store.ErrCut), errors.Is(err, store.ErrUnreported), errors.Is(err, workspec.ErrUnknownFormat), errors.As(err, new(*workspec.SyntaxError)):
		// Its tags tell what was done when it can be read again.
		name := m.Name()
		e.forget(m)
		e.refuse(name, err)
		return
	case err != nil:
		// A full or failing disk: back off, say so once, go on (K12).
		if w.delay == 0 {
			e.log.Error("disk", "id", idOf(m), "name", m.Name(), "reason", err, "retry", "until it works")
		}
		w.delay = min(max(2*w.delay, time.Second), time.Minute)
		e.core.Remind(m, e.now.Add(w.delay))
		return
	}
	o := w.list[0]
	w.list = w.list[1:]
	recovered := w.delay > 0
	w.delay = 0
	switch {
	case o.ends:
		e.forget(m)
	case o.then != nil:
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
	if e.messages.get(m.Number) != m {
		return // an agent has it still, and the disk does not
	}
	if w := e.busy[m]; w != nil && w.delay > 0 {
		if !w.running {
			e.dispatch(m, w)
		}
		return
	}
	e.settle(m)
}

func idOf(m *thread.Message) postoffice.SpoolID {
	return postoffice.SpoolID{Ino: m.Inode(), MTime: m.Stamp}
}
