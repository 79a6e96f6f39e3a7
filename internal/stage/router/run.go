package router

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
)

// Run routes until ctx is done; messages on their way are finished then, those that wait for
// a lookup are given back. With Once
// it routes what is there and returns. In a cluster it works while this machine has its lease.
func Run(ctx context.Context, c Config) error {
	return c.Lease.Run(ctx, c.Log, func(ctx context.Context) error { return run(ctx, c) })
}

func run(ctx context.Context, c Config) (err error) {
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
	r.secure()
	if c.Once {
		var stop context.CancelCauseFunc
		r.base, stop = context.WithCancelCause(context.Background())
		defer context.AfterFunc(ctx, func() { stop(errStopped) })()
		rerr := errors.Join(r.Recover(), r.pickUpAll())
		_, err := r.RouteAll()
		return errors.Join(rerr, err)
	}
	if err := p.Router.EnsureDirs(c.RouterDirs); err != nil {
		return &config.Error{File: c.PostOffice, Reason: "ROUTERDIRS cannot be used; zmctl init, run by the postoffice's owner, makes what is missing", Err: err}
	}
	defer c.Metrics.Serve(c.PostOffice, socket.ListenAlone, r.c.Log)()
	r.rounds(ctx, filepath.Join(c.PostOffice, p.Router.Dir()))
	return nil
}

// serve routes what appears in dir, the path of router/, and in the directories beside
// it until ctx is done. again: a reload has read other settings.
func (r *Router) serve(ctx context.Context, dir string, again bool) {
	hints := watch.Open([]string{dir}, r.c.Poll, isHinted, r.c.Log)
	defer hints.Close()
	if again {
		r.c.Log.Info("conf-read", r.c.Follow.Accept()...)
	} else {
		r.c.Log.Info("started", "dir", dir, "owner", r.owner.Number(), "workers", r.c.Workers)
	}
	d := newDispatcher(r, hints)
	inboxes := r.po.Submissions.Inboxes()
	for i, inbox := range inboxes {
		inboxes[i] = filepath.Join(filepath.Dir(dir), inbox)
	}
	renamed := watch.Renamed(inboxes, r.c.Poll, postoffice.IsSubmission, slog.New(slog.DiscardHandler)) // a refusal was logged for hints
	defer renamed.Close()
	d.submissions = newCollector(r, renamed)
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		d.submissions.run(ctx)
	}()
	defer func() { <-collected }()
	d.watch = func(name string) {
		// An error means that it is gone again; the periodic look tries again.
		_ = hints.Add(filepath.Join(filepath.Dir(dir), name))
		r.c.Log.Info("router-directory", "name", name)
	}
	defer r.c.Service.Watch(hints.Interrupt)()
	r.c.Service.Ready("routes %s with %d workers", dir, r.c.Workers)
	d.run(ctx)
}

// isMessage reports whether a name in router/ can be claimed.
func isMessage(name string) bool {
	n, ok := postoffice.ParseName(name)
	return ok && n.Owner == 0
}

// isHinted reports whether a name in router/ is worth a hint: a message, or the marker of one
// that has crashed a router.
func isHinted(name string) bool {
	_, marker := postoffice.TriesMarker(name)
	return marker || isMessage(name)
}

// job is a message that a worker is to route.
type job struct {
	name  string // as Claim takes it
	tried bool   // it has crashed routers: nothing else is routed beside it
	slow  bool   // it waits for lookups: it has a place of its own
	aged  bool   // it has its turn because it has waited for too long
	since time.Time
}

// jobResult is what routing it came to.
type jobResult struct {
	name string
	err  error
}
