package router

import (
	"context"
	"errors"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/machine"
	"zmailer/internal/table"
)

// RouteOne claims router/name and routes it. See the package's Diagnostics.
func (r *Router) RouteOne(name string) error { return r.routeOne(context.Background(), name, false) }

// routeOne is RouteOne; tried: the message has crashed routers before. The message is given
// back if ctx is done while it waits for a lookup.
func (r *Router) routeOne(ctx context.Context, name string, tried bool) error {
	return r.routeFor(ctx, table.NoWaiter{}, name, tried)
}

// routeFor is routeOne with a Waiter.
func (r *Router) routeFor(ctx context.Context, waiter table.Waiter, name string, tried bool) error {
	if err := r.c.Lease.Check(lease.Step); err != nil {
		return err
	}
	c, err := r.po.Router.Claim(r.owner, name)
	if err != nil {
		if c != nil {
			r.hold(c)
		}
		if disbelief := (*postoffice.UntrustedError)(nil); errors.As(err, &disbelief) {
			return r.quarantineUntrusted(postoffice.RouterPath(name), disbelief)
		}
		return err
	}
	if tried {
		c.RemoveMarker()
	}
	return r.routeClaim(ctx, waiter, c, false)
}

// routeClaim routes a claimed message; last: for the last time.
func (r *Router) routeClaim(ctx context.Context, waiter table.Waiter, c *postoffice.Claim, last bool) error {
	start := r.c.Now()
	err := r.outcome(ctx, c, start, r.engine.Route(ctx, waiter, c, last))
	machine.Worked()
	return err
}

// RouteAll routes what is in router/, oldest first unless Unsorted, and returns
// how many messages have left it. It goes on after an error, unless the router stops.
func (r *Router) RouteAll() (int, error) {
	list, err := r.po.Router.List(!r.c.Unsorted, r.c.Now())
	if err != nil {
		return 0, err
	}
	n := 0
	for _, p := range list {
		if r.base.Err() != nil {
			break
		}
		e := r.routeOne(r.base, p.Name, p.Tries > 0)
		if errors.Is(e, postoffice.ErrSubmission) {
			// Of an earlier version's router directory, or put aside by one.
			var taken postoffice.PickedUp
			if taken, e = r.PickUp(postoffice.RouterPath(p.Name)); e == nil && taken.Accepted.Name != "" {
				e = r.routeOne(r.base, taken.Accepted.Name, false)
			}
		}
		switch {
		case e == nil:
			n++
		case !errors.Is(e, postoffice.ErrGone) && !errors.Is(e, errStopped):
			err = errors.Join(err, e)
		}
	}
	return n, err
}
