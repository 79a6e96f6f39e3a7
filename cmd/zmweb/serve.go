package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"zmailer/internal/ui/web"
)

const (
	// headerTime is how long a client may take for the head of a request, idleTime how long
	// it may be silent between two, stopTime how long pages may take when we end.
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	stopTime   = 5 * time.Second
)

// serveWeb serves until ctx is done, with the record beside it. At each hangup reload is called;
// after it idle clients connect again if it returns true.
func serveWeb(ctx context.Context, ln net.Listener, pages http.Handler, log *slog.Logger, hangups <-chan os.Signal, reload func() bool, record func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		record(ctx)
	}()
	srv := &http.Server{Handler: pages, ReadHeaderTimeout: headerTime, ReadTimeout: time.Minute, WriteTimeout: web.OrderTime + time.Minute, IdleTimeout: idleTime,
		MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				if reload() {
					srv.SetKeepAlivesEnabled(false) // it closes what is idle
					srv.SetKeepAlivesEnabled(true)
				}
			}
		}
	}()
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		err := srv.Shutdown(late)
		if errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close() // a client does not read its page
		}
		stopped <- err
	})
	err := srv.Serve(ln)
	if errors.Is(err, http.ErrServerClosed) {
		err = <-stopped
	} else {
		stop()
	}
	cancel()
	<-recorded
	<-reloads
	return err
}
