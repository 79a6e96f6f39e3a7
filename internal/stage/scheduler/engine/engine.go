// Package engine is the running scheduler. It joins the core (package thread), the disk
// (store), the agents and the query sockets: one goroutine takes what the disk, the agents,
// the watched directories and the clock report, and decides what is done next. That
// goroutine never blocks: a pool of others makes the changes on the disk, those of one
// message one after the other.
//
// What survives a crash: everything that matters is in the work specifications: tags,
// diagnostics, the history's attempts and next times, and the names of reports that are
// prepared. A start reads them all; nothing else is remembered.
//
// Diagnostics: Run's error is why the scheduler cannot run: *config.Error for its
// configuration, durable.ErrLocked when another one does, agents.ErrLauncher when the agent
// launcher has ended. Trouble with one message or one agent is logged, and the rest goes on.
package engine

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/query"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// base is what every part of the engine works on. All of it belongs to the goroutine of run;
// others post functions that are to be called.
type base struct {
	conf   Config
	po     *postoffice.PostOffice
	spool  *store.Store
	core   *thread.Core
	agents *agents.Pool
	pool   *pool // for the disk
	log    *slog.Logger
	events *events.Stream
	box    *commandQueue

	now      time.Time // of this turn
	stopping bool
	messages table
	inodes   map[uint64]uint64 // number in the name, of messages with another one in the spool ID
	counts   query.Counts
}

// engine joins core, disk and agents. Its parts have each the state that is its own, and
// the parts that they call.
type engine struct {
	*base
	clock           clock
	changes         changes
	ends            ends
	intake          intake
	placement       placement
	attempts        attempts
	scanner         scanner
	monitor         monitor
	superseder      superseder
	reconfiguration reconfiguration
	suspender       suspender
	heap            heap
	books           books

	query    *query.Server
	deadline time.Time // of a stop
}

func newEngine(c Config, po *postoffice.PostOffice) *engine {
	tune := &c.tuning
	tune.alone = cmp.Or(tune.alone, aloneGrace)
	c.MonitorEvery = cmp.Or(c.MonitorEvery, DefaultMonitorEvery)
	tune.locked = cmp.Or(tune.locked, lockedAfter)
	tune.clocks = tune.clocks.orSystem()
	stream := &events.Stream{}
	c.Log = c.Metrics.Log(c.Log)
	m := newMeters(c.Metrics)
	e := &engine{base: &base{
		conf: c, po: po, log: c.Log, box: newCommandQueue(), events: stream, inodes: map[uint64]uint64{},
		spool: store.New(&store.Env{PostOffice: po, Conf: c.Conf, Hostname: c.Hostname, Postmaster: c.Postmaster,
			Now: tune.clocks.now, Started: tune.clocks.now(), KeepRemoved: c.KeepRemoved, Log: c.Log, Stream: stream, Resolver: c.Resolver,
			Ledger: ledger.New(po, ledger.Config{Role: "scheduler", Log: c.Log}), Meters: store.Meters{Recipients: m.recipients, Reports: m.reports, Life: m.life}}),
		core: thread.New(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))),
	}}
	b := e.base
	e.clock = clock{base: b, intake: &e.intake, placement: &e.placement, scanner: &e.scanner, monitor: &e.monitor, heap: &e.heap, deadline: &e.deadline}
	e.changes = changes{base: b, ends: &e.ends, intake: &e.intake, busy: map[*thread.Message]*ops{}}
	e.ends = ends{base: b, changes: &e.changes, intake: &e.intake, placement: &e.placement, superseder: &e.superseder, books: &e.books}
	e.suspender = suspender{base: b}
	e.intake = intake{base: b, suspender: &e.suspender, changes: &e.changes, ends: &e.ends, placement: &e.placement, scanner: &e.scanner, superseder: &e.superseder,
		heap: &e.heap, loading: map[string]bool{}, notes: map[string]bool{}, refused: map[string]refusal{}}
	e.placement = placement{base: b, changes: &e.changes, ends: &e.ends, attempts: &e.attempts, reconfiguration: &e.reconfiguration,
		locked: map[*thread.Message]bool{}, unserved: map[*thread.Message]bool{}, lockedWait: tune.locked}
	e.attempts = attempts{base: b, changes: &e.changes, ends: &e.ends, placement: &e.placement, scanner: &e.scanner, meters: m}
	e.scanner = scanner{base: b, changes: &e.changes, intake: &e.intake, placement: &e.placement, monitor: &e.monitor, heap: &e.heap,
		books: &e.books, quit: make(chan struct{})}
	e.monitor = monitor{base: b, suspender: &e.suspender, intake: &e.intake, scanner: &e.scanner}
	e.superseder = superseder{base: b, changes: &e.changes, intake: &e.intake, placement: &e.placement}
	e.reconfiguration = reconfiguration{base: b, placement: &e.placement, suspender: &e.suspender, serveOn: func(socket string) { e.query.Follow(socket) },
		lookEvery: func(d time.Duration) { e.scanner.watch.SetInterval(d) }}
	e.heap, e.books = heap{base: b}, books{base: b}
	start := tune.spawner
	if start == nil {
		start = &agents.Processes{Dir: e.transport(), ZConfig: c.ZConfig, Launcher: c.Launcher, Keys: c.Keys, Post: e.post}
	}
	e.agents = agents.New(e.core, &e.attempts, start, agents.Limits{End: c.StopTimeout, Restart: tune.restart, Deaf: tune.deaf}, e.log)
	return e
}

// emit emits an event.
func (b *base) emit(k events.Kind, args ...any) { b.emitter().Emit(k, args...) }

func (b *base) emitter() events.Emitter { return events.Emitter{Log: b.log, Stream: b.events} }

// transport returns the path of transport/, where agents run.
func (b *base) transport() string { return filepath.Join(b.conf.Dir, postoffice.Transport) }

// run works until ctx is done and everything has ended.
func (e *engine) run(ctx context.Context) error {
	defer e.spool.Ledger.Close()
	defer e.scanner.listers.Wait()
	e.books.startLedger(ctx)
	e.clock.tick()
	e.scanner.began = e.now
	e.pool = newPool(e.intake.load)
	defer e.pool.close()
	e.suspender.begin()
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	e.scanner.listers.Go(func() { e.reconfiguration.follow(watching) })
	e.scanner.listers.Go(func() { e.suspender.follow(watching) })
	e.scanner.watch = watch.New(watching, []string{e.transport()}, e.conf.Look, acceptName, e.log)
	e.query = query.Start(ctx, e, query.Config{Dir: e.conf.Dir, ZConfig: e.conf.ZConfig, Conf: e.conf.Conf, PostOffice: e.po, Store: e.spool,
		Now: e.conf.tuning.clocks.now, Log: e.log, Stream: e.events})
	defer e.query.Measure(e.conf.Metrics)() // readers ask the engine until the query has stopped
	defer e.query.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := ctx.Done()
	hints := e.scanner.watch.C()
	defer e.conf.Service.Watch(func() { e.post(e.conf.Service.Alive) })()
	e.conf.Service.Ready("serves %s", e.conf.Dir)
	var list []func()
	for !e.ended() {
		select {
		case <-done:
			done, hints = nil, nil
			stopWatching()
			e.clock.tick()
			e.stop()
		case <-e.box.wake:
		case <-timer.C:
		case h := <-hints:
			e.intake.hint(h)
			for more := true; more; {
				select {
				case h := <-hints:
					e.intake.hint(h)
				default:
					more = false
				}
			}
			e.intake.wantHinted()
		}
		e.clock.tick()
		list = e.box.take(list)
		for _, fn := range list {
			fn()
		}
		e.turn()
		e.arm(timer)
	}
	stopWatching()
	e.scanner.watch.Wait()
	return nil
}

// post has fn done by run's goroutine.
func (b *base) post(fn func()) { b.box.post(fn) }

// turn does what is due, feeds agents and writes to them.
func (e *engine) turn() {
	if !e.conf.Start.Freeze {
		e.advance()
	}
	e.agents.Turn()
	e.placement.lookAtLocked()
	e.monitor.check()
	e.suspender.readSenders()
	e.heap.trimSoon()
	if !e.scanner.lookAt.IsZero() && !e.now.Before(e.scanner.lookAt) {
		e.scanner.lookAtAll()
	}
	for r := e.core.Touched(); r != nil; r = e.core.Touched() {
		e.attempts.feed(r)
	}
	e.agents.Flush()
	e.changes.finishAll()
}

// advance does what the time has come for.
func (e *engine) advance() {
	expired, due := e.core.Advance(e.now)
	for _, v := range expired {
		e.ends.expire(v)
	}
	for _, m := range due {
		e.ends.remind(m)
	}
}

// arm sets the one timer there is to what comes next.
func (e *engine) arm(timer *time.Timer) {
	next := store.Earliest(store.Earliest(e.agents.Next(), e.heap.trimAt), store.Earliest(e.placement.lockedAt, e.scanner.lookAt))
	if !e.conf.Start.Freeze {
		next = store.Earliest(next, e.core.Next())
	}
	if e.stopping {
		next = store.Earliest(next, e.deadline)
	} else if !e.monitor.looking {
		next = store.Earliest(next, e.monitor.at)
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
	e.stopping, e.scanner.lookAt = true, time.Time{}
	close(e.scanner.quit)
	e.conf.Service.Stopping()
	e.deadline = e.now.Add(e.conf.StopTimeout)
	running, _ := e.agents.Len()
	e.log.Info("stopping", "agents", running, "deliveries", e.agents.Running(), "timeout", e.conf.StopTimeout)
	e.pool.forget()
	e.agents.Stop()
}

// ended reports whether everything has ended after stop, or has to.
func (e *engine) ended() bool {
	if !e.stopping {
		return false
	}
	if e.agents.Ended() && len(e.changes.busy) == 0 {
		return true
	}
	if e.now.Before(e.deadline) {
		return false
	}
	if e.agents.Ended() {
		// The disk does not take our changes: the next start finds what is to be done.
		e.log.Error("stopped-early", "changes", len(e.changes.busy))
		return true
	}
	// Crash: as if these agents had been killed: their locks are a dead owner's.
	e.agents.Kill()
	e.deadline = e.now.Add(killGrace)
	return false
}

// killGrace is what an agent gets between SIGTERM and SIGKILL.
const killGrace = 2 * time.Second

func idOf(m *thread.Message) postoffice.SpoolID {
	return postoffice.SpoolID{Ino: m.Inode(), MTime: m.Stamp}
}

// atMost returns a number of specifications, or what -E allows.
func (c *Start) atMost(n int) int {
	if c.AtOnce > 0 {
		return min(n, c.AtOnce)
	}
	return n
}

// startsNothing reports whether deliveries are not to begin, at all or not yet.
func (e *scanner) startsNothing() bool {
	return e.conf.Start.Freeze || e.conf.Start.ReadFirst && e.scan != scanLogged
}

// apart reports whether a thread is none of those that are served. Its recipients stay in
// their files.
func (e *placement) apart(channel, host string) bool {
	c := &e.conf.Start
	if c.OnlyChannel == "" {
		return false
	}
	return c.OnlyChannel != "*" && c.OnlyChannel != channel || c.OnlyHost != "*" && !strings.EqualFold(c.OnlyHost, host)
}

// ahead returns how many specifications may wait to be read when more are listed.
func (c *Start) ahead() int {
	if c.AtOnce > 0 {
		return 0
	}
	return loadsAhead
}
