package web

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/wire/mailq"
)

// Postoffice is the Source of a postoffice, and its Orderer.
type Postoffice struct {
	po       *postoffice.PostOffice
	dir      string
	settings *config.Config

	giving chan struct{} // holds one token: orders are executed one at a time
}

// Open makes a Postoffice.
func Open(po *postoffice.PostOffice, dir string, settings *config.Config) *Postoffice {
	w := &Postoffice{po: po, dir: dir, settings: settings, giving: make(chan struct{}, 1)}
	w.giving <- struct{}{}
	return w
}

func (w *Postoffice) spool() *view.Spool {
	return view.New(w.po, time.Now())
}

// Survey implements Source, as the methods after it do.
func (w *Postoffice) Survey(ctx context.Context) (*Survey, error) {
	s := w.spool()
	n := NewCounter(s.Now)
	_, err := s.Each(ctx, selector.Selector{}, func(m *view.Message) error {
		n.Add(m)
		return nil
	})
	v := n.Survey()
	if err != nil && (ctx.Err() != nil || v.Messages == 0) {
		return nil, err
	}
	if err != nil {
		v.Problem = human.Clean(err.Error())
	}
	v.Status, err = w.status(ctx)
	if err != nil {
		// What is known is shown all the same.
		v.Problem = strings.TrimPrefix(v.Problem+"; "+human.Clean(err.Error()), "; ")
	}
	return v, nil
}

func (w *Postoffice) List(ctx context.Context, where string, first, most int) (*Listing, error) {
	var sel selector.Selector
	if where != "" {
		one, err := selector.Parse(where)
		if err != nil {
			return nil, err
		}
		sel = one
	}
	n := NewLister(first, most)
	sorted, err := w.spool().Each(ctx, sel, func(m *view.Message) error {
		n.Add(m)
		return nil
	})
	v := n.Settle()
	if err != nil && (ctx.Err() != nil || len(v.Messages) == 0) {
		return nil, err
	}
	if v.Sorted = sorted; err != nil {
		v.Problem = err.Error()
	}
	return v, nil
}

func (w *Postoffice) Look(ctx context.Context, id postoffice.SpoolID) (*Look, error) {
	s := w.spool()
	r, err := view.NewExplainer(s, w.settings).Why(ctx, w.dir, id)
	if r == nil || r.Message == nil && err != nil {
		return nil, fmt.Errorf("message %s: %w: %w", id, ErrNotFound, err)
	}
	l := &Look{ID: r.ID, State: r.State, Why: r.Lines}
	if err != nil {
		l.Why = append(l.Why, human.Clean(err.Error()))
	}
	if l.Steps, err = (view.Histories{Spool: s}).Of(id); err != nil && r.Message != nil {
		l.Why = append(l.Why, human.Clean(err.Error()))
	}
	if r.Message != nil {
		l.Message, l.Header = r.Message, s.Header(r.Message)
	}
	return l, nil
}

func (w *Postoffice) status(ctx context.Context) (*Status, error) {
	s := w.spool()
	survey := view.NewSurvey(s, w.settings)
	st := &Status{Overview: survey.Overview(ctx, w.dir), Suspensions: view.Suspensions(s.Suspended())}
	if st.Scheduler && !slices.ContainsFunc(st.Owners, func(o view.Owner) bool { return o.Alive && o.Role() == "scheduler" }) {
		st.Owners = append(st.Owners, view.Owner{Says: "scheduler", Alive: true})
	}
	var err error
	st.Alarms, err = survey.Alarms()
	return st, err
}

// call calls the scheduler; the call ends with ctx. Call done at the end.
func (w *Postoffice) call(ctx context.Context) (a *view.SchedulerClient, done func(), err error) {
	if a, err = view.CallScheduler(ctx, w.dir); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, a.Close)
	return a, func() { stop(); a.Close() }, nil
}

// Waiting implements Source.
func (w *Postoffice) Waiting(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, view.AskPatience)
	defer cancel()
	a, done, err := w.call(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	st, err := a.Status()
	return st.Messages, err
}

// Threads implements Source.
func (w *Postoffice) Threads(ctx context.Context) ([]mailq.ThreadInfo, error) {
	a, done, err := w.call(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return a.Threads()
}

// shownWaiting is how many recipients of a thread a page shows.
const shownWaiting = 200

func (w *Postoffice) Thread(ctx context.Context, channel, host string) (*Thread, error) {
	if channel == "" || strings.ContainsFunc(channel+host, func(r rune) bool { return r <= ' ' }) {
		return nil, fmt.Errorf("thread %s: %w", human.Clean(channel+"/"+host), ErrNotFound)
	}
	t := &Thread{}
	a, done, err := w.call(ctx)
	if err == nil {
		defer done()
		err = a.Thread(channel, host, func(info *mailq.ThreadInfo) error {
			t.Info = *info
			return nil
		}, func(x *mailq.WaitingInfo) error {
			if len(t.Waiting) == shownWaiting {
				t.More++
				return nil
			}
			t.Waiting = append(t.Waiting, *x)
			return nil
		})
	}
	if errors.Is(err, mailq.ErrRefused) || errors.Is(err, view.ErrNoScheduler) {
		err = fmt.Errorf("thread %s/%s: %w: %w", human.Clean(channel), human.Clean(host), ErrNotFound, err)
	}
	t.State = view.StateWords(&t.Info)
	return t, err
}
