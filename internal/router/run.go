package router

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"zmailer/internal/config"
	"zmailer/internal/ledger"
	"zmailer/internal/postoffice"
	"zmailer/internal/watch"
)

// Run routes until ctx is done; messages on their way are finished then. With Once
// it routes what is there and returns.
func Run(ctx context.Context, c Config) (err error) {
	p, err := openPostOffice(c)
	if err != nil {
		return err
	}
	c.Ledger = ledger.New(p, ledger.Config{Role: "router", Log: c.Log, Now: c.Now})
	defer c.Ledger.Close()
	r, err := New(p, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.settleUnfinished(); err != nil {
		return err
	}
	if c.Once {
		rerr := r.Recover()
		_, err := r.RouteAll()
		return errors.Join(rerr, err)
	}
	if err := p.EnsureRouterDirs(c.RouterDirs); err != nil {
		return &config.Error{File: c.PostOffice, Reason: "ROUTERDIRS cannot be used; zmctl init, run by the postoffice's owner, makes what is missing", Err: err}
	}
	r.serve(ctx, filepath.Join(c.PostOffice, postoffice.Router))
	return nil
}

// serve routes what appears in dir, the path of router/, and in the directories beside
// it until ctx is done.
func (r *Router) serve(ctx context.Context, dir string) {
	// A context of its own: the watcher has ended before the owner's number is free.
	watching, stop := context.WithCancel(ctx)
	hints := watch.New(watching, []string{dir}, r.c.Poll, isNews, r.c.Log)
	r.c.Log.Info("started", "dir", dir, "owner", r.owner.Number(), "workers", r.c.Workers)
	d := newDispatcher(r, hints.C())
	d.watch = func(name string) {
		// An error means that it is gone again; the periodic look tries again.
		_ = hints.Add(filepath.Join(filepath.Dir(dir), name))
		r.c.Log.Info("router-directory", "name", name)
	}
	d.run(ctx)
	stop()
	hints.Wait()
	r.c.Log.Info("stopped")
}

// isMessage tells a name in router/ that is free to be claimed.
func isMessage(name string) bool {
	n, ok := postoffice.ParseName(name)
	return ok && n.Owner == 0
}

// isNews tells a name in router/ that is worth a hint: a message, or the marker of one
// that has ended a router.
func isNews(name string) bool {
	_, marker := postoffice.TriesMarker(name)
	return marker || isMessage(name)
}

// order is a message that a worker is to route.
type order struct {
	name   string // as Claim takes it
	hinted bool   // nobody has looked whether it is a regular file
	tried  bool   // it has ended routers: nothing else is routed beside it
	aged   bool   // it has its turn because it has waited for too long
	since  time.Time
}

// outcome is what routing it came to.
type outcome struct {
	name string
	err  error
}

// work routes what it is given. It tells of each message, because a success ends a
// pause, too; a name that is gone when its hint comes is none.
func (r *Router) work(orders <-chan order, done chan<- outcome) {
	for o := range orders {
		err := postoffice.ErrGone
		if !o.hinted || r.isRegular(o.name) {
			err = r.routeOne(o.name, o.tried)
		}
		done <- outcome{o.name, err}
	}
}

// isRegular tells whether a name as Claim takes it is a file: anybody may make a pipe or a link
// of that name there (M5).
func (r *Router) isRegular(name string) bool {
	info, err := r.po.FS().Stat(postoffice.RouterPath(name))
	return err == nil && info.Mode.IsRegular()
}

// startWorkers keeps c.Workers goroutines until orders is closed; wait returns when
// they have ended.
func (r *Router) startWorkers(orders <-chan order, done chan<- outcome) (wait func()) {
	var running sync.WaitGroup
	for range r.c.Workers {
		running.Go(func() { r.work(orders, done) })
	}
	return running.Wait
}
