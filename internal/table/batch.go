package table

import (
	"context"
	"errors"
	"sync"
)

// Waiter is notified by the lookups of a message of how long the message may take.
type Waiter interface {
	// Busy is called before work that may take about a millisecond: the file of a list.
	Busy()
	// Waits is called before the message waits for a server, a program or a writer.
	Waits()
}

// NoWaiter is a Waiter that does nothing.
type NoWaiter struct{}

// Busy implements Waiter.
func (NoWaiter) Busy() {}

// Waits implements Waiter.
func (NoWaiter) Waits() {}

// Permits bound how many lookups are made ahead at the same time, for all messages
// together. Their messages take turns, in the order in which their lookups came.
type Permits chan struct{}

// NewPermits returns n permits, at least one.
func NewPermits(n int) Permits { return make(Permits, max(n, 1)) }

// Window is how many places of its list a message is looked up ahead.
const Window = 64

// batchAnswers bounds what a batch remembers: the answers of the last 4,096 to 8,192 keys.
// It is far more than Window places need, and does not grow with the message.
const batchAnswers = 4096

// Batch is the lookups of one message. One goroutine calls Lookup, in the order in which
// the message's recipients come; what it will ask next, Go has asked in the background, so
// that the answer is there when its turn comes. A key is asked once, whoever needs it.
type Batch struct {
	ctx     context.Context
	waiter  Waiter
	permits Permits

	mu            sync.Mutex
	background    context.Context // of the lookups ahead; nil: there were none
	cancel        context.CancelFunc
	recent, older map[question]*reply
	generation    int // how often recent became older
	tasks         []func()
	workers       int
	working       sync.WaitGroup
}

type question struct {
	t   Table
	key string
}

// reply is the answer to a question, once it is there.
type reply struct {
	begun bool          // somebody asks; else it waits for a permit
	done  chan struct{} // closed when the rest is there
	lost  bool          // the lookup panicked: there is no answer
	v     Value
	ok    bool
	err   error
}

// Begin starts the lookups of another message; the last one's have ended.
func (b *Batch) Begin(ctx context.Context, w Waiter, p Permits) {
	b.ctx, b.waiter, b.permits = ctx, w, p
}

// End ends what is looked up ahead and forgets all answers.
func (b *Batch) End() {
	b.mu.Lock()
	b.tasks = nil
	if b.cancel != nil {
		b.cancel()
	}
	b.mu.Unlock()
	b.working.Wait()
	b.ctx, b.waiter, b.permits = nil, nil, nil
	b.background, b.cancel, b.recent, b.older, b.generation = nil, nil, nil, nil, 0
}

// Busy and Waits notify the message's Waiter.
func (b *Batch) Busy()  { b.waiter.Busy() }
func (b *Batch) Waits() { b.waiter.Waits() }

// Asked reports whether anything was asked that had to be waited for.
func (b *Batch) Asked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.recent != nil
}

// Generation grows when answers are forgotten: those of two generations ago are gone.
func (b *Batch) Generation() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.generation
}

// Lookup returns the answer of a table, as Table.Lookup does. The Waiter is notified if it
// has to be waited for.
func (b *Batch) Lookup(t Table, key string) (Value, bool, error) {
	if a, here := atHand(b.ctx, t, key); here {
		return a.v, a.ok, a.err
	}
	b.mu.Lock()
	r, known := b.find(question{t, key})
	ours := !known || !r.begun // what still waits for a permit is asked here
	r.begun = true
	b.mu.Unlock()
	if ours {
		b.waiter.Waits()
		b.ask(b.ctx, r, t, key)
		return r.v, r.ok, r.err
	}
	select {
	case <-r.done:
	default:
		b.waiter.Waits()
	}
	v, ok, err := r.wait(b.ctx)
	if errors.Is(err, errLost) {
		b.waiter.Waits()
		return t.Lookup(b.ctx, key) // it panics here too, where it is known which message it was
	}
	return v, ok, err
}

// Prefetch is Lookup for the functions that Go calls.
func (b *Batch) Prefetch(t Table, key string) (Value, bool, error) {
	if a, here := atHand(b.background, t, key); here {
		return a.v, a.ok, a.err
	}
	b.mu.Lock()
	r, known := b.find(question{t, key})
	b.mu.Unlock()
	if known {
		return r.wait(b.background)
	}
	select {
	case b.permits <- struct{}{}:
		defer func() { <-b.permits }()
	case <-r.done: // Lookup has asked meanwhile
		return r.wait(b.background)
	case <-b.background.Done():
		return Value{}, false, b.background.Err()
	}
	b.mu.Lock()
	ours := !r.begun
	r.begun = true
	b.mu.Unlock()
	if ours {
		b.ask(b.background, r, t, key)
	}
	return r.wait(b.background)
}

// find returns the reply to a question, a new one if it was not asked yet. b.mu is held.
func (b *Batch) find(q question) (r *reply, known bool) {
	if r, known = b.recent[q]; known {
		return r, true
	}
	if r, known = b.older[q]; !known {
		r = &reply{done: make(chan struct{})}
	}
	if b.recent == nil {
		b.recent = map[question]*reply{}
	}
	if len(b.recent) >= batchAnswers {
		b.recent, b.older = map[question]*reply{}, b.recent
		b.generation++
	}
	b.recent[q] = r
	return r, known
}

func (b *Batch) ask(ctx context.Context, r *reply, t Table, key string) {
	r.lost = true
	defer close(r.done) // also in a panic: others may wait
	r.v, r.ok, r.err = t.Lookup(ctx, key)
	r.lost = false
}

// errLost is returned by wait if the lookup panicked.
var errLost = errors.New("the lookup panicked")

func (r *reply) wait(ctx context.Context) (Value, bool, error) {
	select {
	case <-r.done:
		if r.lost {
			return Value{}, false, errLost
		}
		return r.v, r.ok, r.err
	case <-ctx.Done():
		return Value{}, false, ctx.Err()
	}
}

// Go has a function called in the background, which asks by Prefetch and shares nothing
// else with the message. If too many wait it is not called: what it would have asked,
// Lookup asks when its turn comes.
func (b *Batch) Go(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.tasks) >= Window || b.ctx.Err() != nil {
		return
	}
	if b.background == nil {
		b.background, b.cancel = context.WithCancel(b.ctx)
	}
	b.tasks = append(b.tasks, do)
	if b.workers < cap(b.permits) {
		b.workers++
		b.working.Go(b.work)
	}
}

// Background returns the context of the functions that Go calls, for them.
func (b *Batch) Background() context.Context { return b.background }

// work calls one function after the other.
func (b *Batch) work() {
	for {
		b.mu.Lock()
		if len(b.tasks) == 0 || b.background.Err() != nil {
			b.workers--
			b.mu.Unlock()
			return
		}
		do := b.tasks[0]
		b.tasks = b.tasks[1:]
		b.mu.Unlock()
		guarded(do)
	}
}

// guarded survives a panic: the message meets it too when its turn comes, and there it is
// known which message it was.
func guarded(do func()) {
	defer func() { _ = recover() }()
	do()
}

// Asks reports whether lookups in a table ask a server or a program.
func Asks(t Table) bool {
	switch t := t.(type) {
	case *db, *file:
		return false
	case *cached:
		return Asks(t.Table)
	}
	return true
}

// Ask is t.Lookup; w is notified if it has to be waited for.
func Ask(ctx context.Context, t Table, key string, w Waiter) (Value, bool, error) {
	if a, here := atHand(ctx, t, key); here {
		return a.v, a.ok, a.err
	}
	w.Waits()
	return t.Lookup(ctx, key)
}

// atHand returns an answer for which no source has to be asked. here is false if there is none.
func atHand(ctx context.Context, t Table, key string) (a reply, here bool) {
	if !Asks(t) {
		a.v, a.ok, a.err = t.Lookup(ctx, key)
		return a, true
	}
	if c, is := t.(*cached); is {
		kept, known := c.answers.Get(key, c.now())
		a.v, a.ok, here = kept.value, kept.ok, known
	}
	return a, here
}
