package engine

import "sync"

// pool is the goroutines that wait for the disk, so that the engine never does.
// Changes go before names to load: what is done makes room. What is new goes before what
// a look has found, which never takes all goroutines.
type pool struct {
	load func(names []string)

	mu      sync.Mutex
	more    sync.Cond
	changes []func()
	names   [][]string // one goroutine reads those of a list
	loads   []func()   // many names each
	loading int        // of those
	alone   []func()   // each to be run while nothing else does
	solo    bool       // one of them runs
	running int
	closed  bool
	workers sync.WaitGroup
}

// poolSize is how many goroutines wait for the disk: as many fsyncs can share one
// commit of the file system's journal.
const poolSize = 8

// poolSpare is how many of them read nothing for a look.
const poolSpare = 2

func newPool(load func(names []string)) *pool {
	p := &pool{load: load}
	p.more.L = &p.mu
	for range poolSize {
		p.workers.Go(p.work)
	}
	return p
}

// do runs a change, after those that were given before or beside them.
func (p *pool) do(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes = append(p.changes, fn)
	p.more.Signal()
}

// want has one goroutine load specifications when no change waits.
func (p *pool) want(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, names)
	p.more.Signal()
}

// later runs fn, which reads many specifications, when nothing else waits.
func (p *pool) later(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loads = append(p.loads, fn)
	p.more.Signal()
}

// exclusively runs fn while no change and no load is under way. Who learns from fn that
// it is done may come with the next one before the pool has noticed.
func (p *pool) exclusively(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alone = append(p.alone, fn)
	p.more.Broadcast()
}

// forget drops the names that wait to be loaded.
func (p *pool) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names, p.loads = nil, nil
}

// close lets the changes that wait end and the goroutines with them.
func (p *pool) close() {
	p.mu.Lock()
	p.closed, p.names, p.loads = true, nil, nil
	p.more.Broadcast()
	p.mu.Unlock()
	p.workers.Wait()
}

func (p *pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		fn, names, ok := p.next()
		if !ok {
			if p.closed && p.running == 0 {
				return
			}
			p.more.Wait()
			continue
		}
		p.running++
		p.mu.Unlock()
		if fn != nil {
			fn()
		} else {
			p.load(names)
		}
		p.mu.Lock()
		p.running--
		if p.running == 0 && (p.solo || len(p.alone) > 0 || p.closed) {
			p.solo = false
			p.more.Broadcast()
		}
	}
}

// next takes what is to be done; p.mu is held.
func (p *pool) next() (fn func(), names []string, ok bool) {
	if p.solo || len(p.alone) > 0 {
		if p.running > 0 {
			return nil, nil, false
		}
		fn, p.alone = p.alone[0], p.alone[1:]
		p.solo = true
		return fn, nil, true
	}
	if len(p.changes) > 0 {
		fn = p.changes[0]
		p.changes[0] = nil
		if p.changes = p.changes[1:]; len(p.changes) == 0 {
			p.changes = nil
		}
		return fn, nil, true
	}
	if len(p.names) > 0 {
		names = p.names[0]
		if p.names = p.names[1:]; len(p.names) == 0 {
			p.names = nil
		}
		return nil, names, true
	}
	if len(p.loads) > 0 && p.loading < poolSize-poolSpare {
		run := p.loads[0]
		p.loads[0] = nil
		if p.loads = p.loads[1:]; len(p.loads) == 0 {
			p.loads = nil
		}
		p.loading++
		return func() {
			run()
			p.mu.Lock()
			p.loading--
			p.more.Signal()
			p.mu.Unlock()
		}, nil, true
	}
	return nil, nil, false
}

// commandQueue is how other goroutines have something done by the engine's.
type commandQueue struct {
	mu   sync.Mutex
	list []func()
	slow []func() // see later
	wake chan struct{}
}

func newCommandQueue() *commandQueue { return &commandQueue{wake: make(chan struct{}, 1)} }

func (b *commandQueue) post(fn func()) {
	b.mu.Lock()
	b.list = append(b.list, fn)
	first := len(b.list) == 1
	b.mu.Unlock()
	if first { // else the one before has woken it
		b.rouse()
	}
}

// later is post for what takes some time: the engine does one of those in a turn, after
// all others.
func (b *commandQueue) later(fn func()) {
	b.mu.Lock()
	b.slow = append(b.slow, fn)
	b.mu.Unlock()
	b.rouse()
}

func (b *commandQueue) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what was posted; spare is an old list to use again.
func (b *commandQueue) take(spare []func()) []func() {
	clear(spare)
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.list
	b.list = spare[:0]
	if len(b.slow) > 0 {
		list = append(list, b.slow[0])
		b.slow[0] = nil
		if b.slow = b.slow[1:]; len(b.slow) == 0 {
			b.slow = nil
		} else {
			b.rouse()
		}
	}
	return list
}
