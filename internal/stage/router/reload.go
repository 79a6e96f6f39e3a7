package router

import (
	"context"

	"zmailer/internal/stage/router/route"
)

// Follower is notified of settings that were read again, as a lastgood.Follower is.
type Follower interface {
	Accept(waiting ...string) (attrs []any) // they are used; attrs are for the log
	Refuse(err error)                       // they cannot be used
}

// renewal is what a reload has read: settings, and the engine with what they name.
type renewal struct {
	c      Config
	engine *route.Engine
}

// rounds serves dir until ctx is done. A reload begins another round, with new settings, when the
// messages of the one before are routed; those that wait for a lookup are given back and routed
// in the next. Settings that cannot be used change nothing.
func (r *Router) rounds(ctx context.Context, dir string) {
	defer context.AfterFunc(ctx, r.c.Service.Stopping)()
	for next := r.round(ctx, dir, false); next != nil; next = r.round(ctx, dir, true) {
		r.resubmits.wait()
		r.take(next)
	}
	r.c.Log.Info("stopped")
}

// round serves dir until ctx is done, or a reload has read settings that can be used.
func (r *Router) round(ctx context.Context, dir string, again bool) (next *renewal) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var stop context.CancelCauseFunc
	r.base, stop = context.WithCancelCause(context.Background())
	defer context.AfterFunc(ctx, func() { stop(errStopped) })()
	reloaded := make(chan struct{})
	go func() {
		defer close(reloaded)
		for next == nil {
			select {
			case <-ctx.Done():
				return
			case <-r.c.Hangup:
				next = r.reread()
			}
		}
		end()
	}()
	r.serve(ctx, dir, again)
	end()
	<-reloaded
	return next
}

// reread reads the settings again; nil: they cannot be used.
func (r *Router) reread() *renewal {
	c, err := r.c.Reread()
	if err == nil {
		c.keep(&r.c)
		c.setDefaults()
		var e *route.Engine
		if e, err = route.New(r.po, c.Config); err == nil {
			return &renewal{c, e}
		}
	}
	r.c.Follow.Refuse(err)
	return nil
}

// take goes by new settings. No message is being routed.
func (r *Router) take(n *renewal) {
	// What is closed was read only.
	_ = r.engine.Close()
	r.c, r.engine = n.c, n.engine
	r.resubmits.ending.Store(false)
	r.po.Submissions.Limit(r.c.MaxSize)
}

// keep takes over what belongs to the process. Settings that a reload does not apply
// (config.Variable.Restart) have their old values already.
func (c *Config) keep(old *Config) {
	c.Metrics, c.Log, c.Service, c.Ledger, c.Now, c.Lease = old.Metrics, old.Log, old.Service, old.Ledger, old.Now, old.Lease
	c.Unsorted, c.Rules.Closed = old.Unsorted, old.Rules.Closed
	c.Hangup, c.Reread, c.Follow = old.Hangup, old.Reread, old.Follow
}
