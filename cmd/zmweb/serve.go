package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/ui/web"
)

const (
	// headerTime is how long a client may take for the head of a request, idleTime how long
	// it may be silent between two, stopTime how long pages may take when we end.
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	stopTime   = 5 * time.Second
)

// serveWeb serves until ctx is done, with the record beside it.
func serveWeb(ctx context.Context, ln net.Listener, pages http.Handler, log *slog.Logger, record func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		record(ctx)
	}()
	srv := &http.Server{Handler: pages, ReadHeaderTimeout: headerTime, ReadTimeout: time.Minute, WriteTimeout: web.OrderTime + time.Minute, IdleTimeout: idleTime,
		MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
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
	return err
}

// open listens. Beyond this machine it needs a certificate.
func (w *webSettings) open(settings *config.Config) (ln net.Listener, secure bool, err error) {
	ln, err = net.Listen("tcp", w.listen)
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		return nil, false, fmt.Errorf("listen on %s: %w", w.listen, err)
	}
	if err != nil {
		return nil, false, settings.Invalid("WEBLISTEN", "cannot be used", err)
	}
	if w.cert == "" {
		if at, ok := ln.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
			_ = ln.Close()
			return nil, false, settings.Invalid("WEBLISTEN", "cannot be used",
				errors.New(w.listen+" is reached from other machines: set WEBCERT and WEBKEY, or use 127.0.0.1 and ssh -L"))
		}
		return ln, false, nil
	}
	log := w.log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	certs, err := listen.OpenCertificates(listen.CertificateFiles{Certs: []string{w.cert}, Keys: []string{w.key}, Keeper: w.keys}, time.Now, log)
	if err != nil {
		_ = ln.Close()
		return nil, false, settings.Invalid("WEBCERT", "cannot be used", err)
	}
	// A renewed certificate is used from the next connection on.
	current := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := certs.Config().Clone()
		c.NextProtos = []string{"http/1.1"}
		return c, nil
	}
	return tls.NewListener(ln, &tls.Config{GetConfigForClient: current, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), true, nil
}

// names returns those that requests may be made to.
func (w *webSettings) names(at net.Addr, hostname string) []string {
	names := slices.Concat(w.hosts, []string{"localhost", "127.0.0.1", "::1", hostname})
	if host, _, err := net.SplitHostPort(w.listen); err == nil && host != "" {
		names = append(names, host)
	}
	if at, ok := at.(*net.TCPAddr); ok && !at.IP.IsUnspecified() {
		names = append(names, at.IP.String())
	}
	return names
}

func portOf(a net.Addr) string {
	if at, ok := a.(*net.TCPAddr); ok {
		return strconv.Itoa(at.Port)
	}
	return ""
}
