package engine

import (
	"errors"
	"path/filepath"
	"sync"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// A look at transport/ is the truth behind the hints. However much lies there, it goes
// in small steps: the lister gives the engine so many names and waits until it is asked
// for more, which it is while few specifications wait to be read. Deliveries go on
// meanwhile, and what was read is delivered while the rest is still to be listed
// (docs/notes/scale.md).
const (
	namesAtOnce = 512  // of a listing, in one turn
	loadsAtOnce = 64   // specifications that are read and taken in together
	loadsAhead  = 1024 // may wait to be read before the lister waits
	passAtOnce  = 4096 // messages, in one turn of a pass over all of them
)

// These bound what looks cost: the next one is at least so many times as far away as the
// last one took, or as far if hints were lost.
const (
	lookShare = 40
	deafShare = 10 // when some directories are not watched, and looks alone find new mail
)

// recoverEvery is how many looks at transport/ come before queue/ is compared with it
// again.
const recoverEvery = 20

// scan is how far the first look is.
type scan uint8

const (
	scanBegun scan = iota
	scanListed
	scanLogged
)

// scanner lists transport/ and queue/.
type scanner struct {
	*base
	changes   *changes
	intake    *intake
	placement *placement
	monitor   *monitor
	heap      *heap
	books     *books
	watch     *watch.Watcher
	quit      chan struct{} // closed by the stop

	look      uint32 // number of the last listing
	looks     int    // scans so far
	whole     bool   // the next one compares queue/ too, whatever its number
	looking   bool
	lookAgain bool            // as soon as that one ends
	lookLater bool            // when its turn comes
	lookAt    time.Time       // when a scan is to be
	lookEnded time.Time       // when the last one ended
	lookTook  time.Duration   // what that one took
	more      chan<- []string // where the lister waits to be asked for more
	ahead     int             // specifications that are listed and not read yet
	listers   sync.WaitGroup
	began     time.Time // the first scan
	scan      scan
}

// lister is the goroutine of one look.
type lister struct {
	e     *scanner
	look  uint32        // its number
	names []string      // to be given
	ready chan []string // the engine asks for more, and gives the names that it does not know
	work  time.Duration // without the time that it waited
	since time.Time     // when it last began to work
}

// lookAtAll lists transport/ in the background.
func (e *scanner) lookAtAll() {
	if e.looking {
		e.lookAgain = true
		return
	}
	if e.stopping {
		return
	}
	e.looking, e.lookAgain, e.lookAt = true, false, time.Time{}
	e.look++
	e.looks++
	l := &lister{e: e, look: e.look, ready: make(chan []string, 1), since: time.Now()}
	whole := e.whole || e.looks == 1 || e.looks%recoverEvery == 0
	e.whole = false
	first := e.looks == 1
	e.listers.Go(func() {
		err := l.run(whole)
		work := l.work + time.Since(l.since)
		e.post(func() { e.looked(work, err) })
		if first {
			trimHeap()
		}
	})
}

// lookSoon is lookAtAll, but not while the last look was too short ago. When hints were
// lost, new mail is waiting.
func (e *scanner) lookSoon(lost bool) {
	if e.looking && !lost {
		e.lookLater = true
		return
	}
	after := e.lookTook * lookShare
	switch {
	case lost:
		after = e.lookTook
	case e.watch != nil && e.watch.Refused():
		after = e.lookTook * deafShare
	}
	next := e.lookEnded.Add(after)
	if !e.looking && e.now.Before(next) {
		e.lookAt = store.Earliest(e.lookAt, next)
		return
	}
	e.lookAtAll()
}

// run lists transport/, and if it is to be whole, queue/ too.
func (l *lister) run(whole bool) error {
	e := l.e
	// Watched before they are listed, so that nothing falls between.
	e.watchDirs()
	var copies []string
	err := e.po.Queue.ListWithNotes(func(name string) error {
		_, err := l.give(name, e.listed)
		return err
	}, func(name string) error {
		if about, ok := postoffice.ParseNote(name); ok {
			e.post(func() { e.intake.noted(about) })
		} else if of, ok := postoffice.ParseCopy(name); ok {
			copies = append(copies, of)
		}
		return nil
	})
	if err == nil {
		e.spool.SweepCopies(copies)
	}
	if err == nil {
		_, err = l.flush(e.listed)
	}
	if err == nil {
		err = l.pass()
	}
	e.post(func() { e.listedAll(l.look, err) })
	if err != nil || !whole {
		return err
	}
	if err := l.compare(); err != nil {
		return err
	}
	e.spool.Sweep()
	return nil
}

// compare lists queue/, for messages without specification and for specifications
// whose message is gone.
func (l *lister) compare() error {
	e := l.e
	var prepared []string
	var perr error
	if err := l.exclusively(func() { prepared, perr = e.po.Submissions.ListPrepared(e.spool.Now()) }); err != nil {
		return err
	}
	began := make(chan uint32, 1)
	e.post(func() {
		e.look++
		began <- e.look
	})
	var err error
	if l.look, err = await(l, began); err != nil {
		return err
	}
	err = e.po.Queue.ListMessages(func(name string) error {
		unknown, err := l.give(name, e.queued)
		return errors.Join(err, l.requeue(unknown))
	})
	if err == nil {
		var unknown []string
		unknown, err = l.flush(e.queued)
		err = errors.Join(err, l.requeue(unknown))
	}
	if err == nil {
		err = l.pass()
	}
	if err != nil {
		return err
	}
	done := perr != nil
	if perr == nil {
		done, perr = e.spool.SweepPrepared(prepared)
	}
	if !done {
		e.post(func() { e.whole = true })
	}
	e.spool.LogPreparedError(perr)
	return nil
}

// requeue has messages in queue/ that the engine does not know looked at while nothing
// else is changed.
func (l *lister) requeue(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return l.exclusively(func() { l.e.spool.Requeue(names) })
}

// exclusively runs fn while no change and no load is under way.
func (l *lister) exclusively(fn func()) error {
	done := make(chan struct{}, 1)
	l.e.pool.exclusively(func() {
		fn()
		done <- struct{}{}
	})
	_, err := await(l, done)
	return err
}

// pass goes over all messages for those that were not seen.
func (l *lister) pass() error {
	next := make(chan int, 1)
	look := l.look
	for part := 0; part < tableParts; {
		from := part // the engine may come to it after we have gone
		l.e.box.later(func() { next <- l.e.unseen(look, from) })
		var err error
		if part, err = await(l, next); err != nil {
			return err
		}
	}
	return nil
}

// errStopping ends a look early.
var errStopping = errors.New("the scheduler stops")

// await waits for the engine or the disk, which is no work of the lister's.
func await[T any](l *lister, c <-chan T) (v T, err error) {
	l.work += time.Since(l.since)
	defer func() { l.since = time.Now() }()
	select {
	case v = <-c:
		return v, nil
	case <-l.e.quit:
		return v, errStopping
	}
}

// taking is what the engine does with names that were listed; it asks for more by ready.
type taking func(look uint32, names []string, ready chan<- []string)

// give has the engine take a name, with others.
func (l *lister) give(name string, take taking) (unknown []string, err error) {
	if l.names = append(l.names, name); len(l.names) < l.e.conf.Start.atMost(namesAtOnce) {
		return nil, nil
	}
	return l.flush(take)
}

func (l *lister) flush(take taking) (unknown []string, err error) {
	if l.e.conf.tuning.listing != nil {
		l.e.conf.tuning.listing()
	}
	names, look := l.names, l.look
	l.e.box.later(func() { take(look, names, l.ready) })
	unknown, err = await(l, l.ready)
	l.names = names[:0]
	return unknown, err
}

// watchDirs watches the hash directories that exist.
func (e *scanner) watchDirs() {
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		// An error means that it is gone again; the next scan shows it.
		_ = e.po.Queue.HashDirs(dir, func(name string) {
			sub := filepath.Join(dir, name)
			_ = e.watch.Add(filepath.Join(e.transport(), sub))
			if depth > 1 {
				walk(sub, depth-1)
			}
		})
	}
	walk("", 2)
}

// listed takes names in transport/. Those that are not known are read, and more names
// are asked for when few are still to be read.
func (e *scanner) listed(_ uint32, names []string, ready chan<- []string) {
	list := make([]string, 0, loadsAtOnce)
	for _, name := range names {
		if !e.intake.wants(name) {
			continue
		}
		if list = append(list, name); len(list) == loadsAtOnce {
			e.loadAll(list)
			list = make([]string, 0, loadsAtOnce)
		}
	}
	if len(list) > 0 {
		e.loadAll(list)
	}
	e.more = ready
	e.askForMore()
}

// askForMore lets the lister go on.
func (e *scanner) askForMore() {
	if e.more != nil && e.ahead <= e.conf.Start.ahead() {
		e.more <- nil
		e.more = nil
	}
}

// loadAll has specifications read, one after the other, and takes them in.
func (e *scanner) loadAll(names []string) {
	e.ahead += len(names)
	e.pool.later(func() {
		take := e.intake.read(names)
		e.box.later(func() {
			e.ahead -= len(names)
			take()
			e.askForMore()
			e.scanEnds()
		})
	})
}

// queued takes names in queue/, and returns those that are not known to have a specification.
func (e *scanner) queued(look uint32, names []string, ready chan<- []string) {
	var unknown []string
	for _, name := range names {
		n, _ := postoffice.ParseName(name)
		if m := e.messages.get(n.Ino); m != nil && m.Named(name) {
			m.Seen = look
		} else if !e.intake.loading[name] {
			unknown = append(unknown, name)
		}
	}
	ready <- unknown
}

// unseen reads what a look has not seen, from a part of the table on, and returns the
// next part. It may have been finished or moved meanwhile; the file itself shows it (K10).
func (e *scanner) unseen(look uint32, part int) int {
	var list []*thread.Message
	for n := 0; part < tableParts && n < passAtOnce; part++ {
		e.messages.parts[part].each(func(m *thread.Message) {
			n++
			e.monitor.see(m)
			if m.Seen < look && e.changes.busy[m] == nil {
				list = append(list, m)
			}
		})
	}
	if part == tableParts {
		e.monitor.passed()
	}
	for _, m := range list {
		e.placement.reload(m, nil)
	}
	return part
}

// listedAll ends the listing of transport/: what was locked may be free (M18).
func (e *scanner) listedAll(look uint32, err error) {
	e.books.keepLedger()
	if err != nil {
		return
	}
	if e.scan == scanBegun {
		e.scan = scanListed
	}
	for name, r := range e.intake.refused {
		if r.look < look {
			delete(e.intake.refused, name)
		}
	}
	e.placement.reloadLocked()
	e.agents.CheckReading()
	e.heap.tuneHeap()
	e.scanEnds()
}

// scanEnds logs when everything that lay in transport/ at the start is known.
func (e *scanner) scanEnds() {
	if e.scan == scanListed && e.ahead == 0 {
		e.scan = scanLogged
		e.core.Rings(e.core.Touch) // with ReadFirst they have waited for this
		e.log.Info("scanned", "messages", e.messages.len(), "refused", len(e.intake.refused), "took", store.Since(e.began, e.now).Round(time.Millisecond))
	}
}

// looked ends a look.
func (e *scanner) looked(work time.Duration, err error) {
	e.looking, e.more = false, nil
	e.lookEnded, e.lookTook = e.now, work
	if err != nil && !errors.Is(err, errStopping) {
		e.log.Error("disk", "reason", err)
	}
	e.log.Debug("looked", "messages", e.messages.len(), "took", work)
	later := e.lookLater
	e.lookLater = false
	switch {
	case e.lookAgain:
		e.lookAtAll()
	case later:
		e.lookSoon(false)
	}
}
