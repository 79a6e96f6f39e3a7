package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// look is the longest time between two looks at a deadline that is waited for: timers do not run
// while a machine sleeps.
const look = 200 * time.Millisecond

// AtEnd calls f once, when the lease has ended, unless stop is called before. When stop has
// returned f is not running and is not called any more, so f must not call it. With a nil Page f is
// never called.
func (p *Page) AtEnd(f func()) (stop func()) {
	if p == nil {
		return func() {}
	}
	w := &waiter{page: p, f: f}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.wait(), w.look)
	return w.stop
}

// waiter waits for the end of a lease.
type waiter struct {
	page  *Page
	f     func()
	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

func (w *waiter) wait() time.Duration { return min(w.page.Left(), look) }

func (w *waiter) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if wait := w.wait(); wait > 0 {
		w.timer.Reset(wait)
		return
	}
	w.over = true
	w.f()
}

func (w *waiter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// Run runs a program that works under a lease alone: it waits for one, and calls Under. With a nil
// Page it calls f.
func (p *Page) Run(ctx context.Context, log *slog.Logger, f func(context.Context) error) error {
	if p != nil && !p.await(ctx, log) {
		return nil
	}
	return p.Under(ctx, log, f)
}

// Under calls f, and ends f's context when a lease that this program has seen is lost. The error is then
// that of f and one that wraps ErrNoLease: the program is to end, and belongs to another lease when it
// is started again. With a nil Page it calls f.
func (p *Page) Under(ctx context.Context, log *slog.Logger, f func(context.Context) error) error {
	if p == nil {
		return f(ctx)
	}
	under, cancel := p.While(ctx)
	defer cancel()
	err := f(under)
	if cause := context.Cause(under); errors.Is(cause, ErrNoLease) {
		log.Error("lease-lost", "reason", cause, "advice", "the program ends, and waits for the next lease when it is started again")
		err = errors.Join(err, cause)
	}
	return err
}

// await waits for a lease. False: ctx is done.
func (p *Page) await(ctx context.Context, log *slog.Logger) bool {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for first := true; ; first = false {
		err := p.Check(Step)
		if err == nil {
			if !first {
				log.Info("lease-held")
			}
			return true
		}
		if first {
			log.Warn("lease-awaited", "reason", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// While returns a context that ends when a lease that this program has seen is lost: its cause
// wraps ErrNoLease. A program that has seen none goes on, and waits for one. With a nil Page it
// is ctx.
func (p *Page) While(ctx context.Context) (context.Context, context.CancelFunc) {
	if p == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(look)
		defer tick.Stop()
		for {
			err := p.Check(0)
			if err != nil && p.Joined() {
				cancel(fmt.Errorf("the lease is lost: %w", err))
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
