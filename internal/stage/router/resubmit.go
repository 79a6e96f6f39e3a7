package router

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
)

// A message that could not be routed waits in deferred/. Routers try it again by
// themselves, with waits that double (RESUBMIT), and give it up when it is too old
// (RESUBMITEXPIRY). Nothing is written down for that: the file's own times say when it
// arrived and when it was put aside. Any number of routers does the same; a message goes
// to the one whose rename succeeds.

// mostResubmitted is how many messages one look gives back to router/: new mail is not to
// wait behind all that an outage has left.
const mostResubmitted = 1000

// resubmits is what a router knows of its looks through deferred/.
type resubmits struct {
	mu   sync.Mutex
	next time.Time // of the next look; zero: now
	// last is held while messages have their last attempts, one after the other.
	last   sync.Mutex
	done   sync.WaitGroup
	ending atomic.Bool // no further one begins
}

// wait ends last attempts: the one that is under way is finished.
func (s *resubmits) wait() {
	s.ending.Store(true)
	s.done.Wait()
}

// due reports whether it is time for a look, and reserves it. What is put aside later is not due
// before the first wait has passed.
func (s *resubmits) due(now time.Time, c config.Resubmission) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.next) && s.next.Sub(now) <= c.First {
		return false
	}
	s.next = now.Add(c.First)
	return true
}

func (s *resubmits) lookAt(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Before(s.next) {
		s.next = t
	}
}

// resubmit gives what is due in deferred/ back to router/, the oldest first. What has
// expired gets its last attempt.
func (r *Router) resubmit() error {
	s, now := r.c.Resubmit, r.c.Now()
	if s.IsOff() || !r.resubmits.due(now, s) {
		return nil
	}
	list, err := r.po.Aside.ListWaiting()
	if err != nil {
		r.resubmits.lookAt(now)
		return err
	}
	slices.SortFunc(list, func(a, b postoffice.Waiting) int {
		return cmp.Or(a.Info.CTime.Compare(b.Info.CTime), cmp.Compare(a.Name, b.Name))
	})
	var last []postoffice.Waiting
	n := 0
	for _, w := range list {
		arrived, aside := w.Info.ModTime, w.Info.CTime
		switch {
		case !s.IsDue(arrived, aside, now):
			r.resubmits.lookAt(s.Due(arrived, aside))
		case s.IsExpired(arrived, now):
			last = append(last, w)
		case n == mostResubmitted:
			r.resubmits.lookAt(now)
		default:
			n++
			err = errors.Join(err, r.giveToRouter(w, now))
		}
	}
	if len(last) > 0 {
		err = errors.Join(err, r.attemptLast(last))
	}
	return err
}

func (r *Router) giveToRouter(w postoffice.Waiting, now time.Time) error {
	a, err := r.po.Aside.RecallTo(r.po.Router.Dir(), postoffice.Deferred, w.Name, w.ID)
	if errors.Is(err, postoffice.ErrGone) {
		return nil // another router has given it back
	}
	if err != nil {
		return err
	}
	r.c.Log.Info("resubmitted", "id", w.ID.String(), "name", a.Name, "why", w.Why,
		"waited", now.Sub(w.Info.CTime).Round(time.Second), "age", now.Sub(w.Info.ModTime).Round(time.Second))
	return nil
}

// attemptLast has messages routed for the last time, beside the usual work: each may wait
// for a lookup that does not answer. While some are, others wait for a later look.
func (r *Router) attemptLast(list []postoffice.Waiting) error {
	if !r.resubmits.last.TryLock() {
		r.resubmits.lookAt(r.c.Now())
		return nil
	}
	if r.c.Once {
		defer r.resubmits.last.Unlock()
		return r.routeLast(list)
	}
	r.resubmits.done.Go(func() {
		defer r.resubmits.last.Unlock()
		if err := r.routeLast(list); err != nil {
			r.c.Log.Error("not-routed", "name", postoffice.Deferred, "reason", err, "again", r.c.Resubmit.First)
		}
	})
	return nil
}

// routeLast ends at trouble of the storage, which the next message would meet, too.
func (r *Router) routeLast(list []postoffice.Waiting) error {
	var errs []error
	for _, w := range list {
		if r.resubmits.ending.Load() || r.base.Err() != nil {
			break
		}
		c, err := r.po.Router.ClaimWaiting(r.owner, w)
		if err != nil && c != nil {
			r.hold(c)
		}
		if err == nil {
			err = r.routeClaim(r.base, table.NoWaiter{}, c, true)
		}
		if err != nil && !errors.Is(err, postoffice.ErrGone) && !errors.Is(err, errStopped) {
			errs = append(errs, err)
			if isStorage(err) {
				break
			}
		}
	}
	return errors.Join(errs...)
}
