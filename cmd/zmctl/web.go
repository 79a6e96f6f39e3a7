package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/config"
	"zmailer/internal/ledger"
	"zmailer/internal/logging"
	"zmailer/internal/passwd"
	"zmailer/internal/web"
)

const (
	// defaultWeb is WEBLISTEN's default.
	defaultWeb = "127.0.0.1:2580"
	// webHeader is how long a client may take for the head of a request, webIdle how long
	// it may be silent between two, webStop how long pages may take when we end.
	webHeader = 10 * time.Second
	webIdle   = 2 * time.Minute
	webStop   = 5 * time.Second
)

func webCommand() *cli.Command {
	return &cli.Command{
		Name:      "web",
		Usage:     "show the postoffice to a browser",
		UsageText: "zmctl web [--write] [--listen HOST:PORT] [--token-file FILE] [--accounts FILE]",
		Description: `Serves pages: the queue by host and age, the threads of the scheduler, each message with its
history, what came and went in the last hours, and what people have ordered. With --write
they can hold, release, freeze, thaw, retry, reroute, give up and remove mail, each after a
question, and undo it. The pages need no JavaScript.

    zmctl web
    zmctl web --write --listen 127.0.0.1:8080

It listens on 127.0.0.1:2580 until WEBLISTEN or --listen says otherwise; beyond this
machine only with a certificate (WEBCERT, WEBKEY). From elsewhere: ssh -L 2580:127.0.0.1:2580.
Who comes needs the token in .web.token of the postoffice, which is made at the first start
and readable by its owner alone, or a name and password of the file of accounts that
--accounts or WEBACCOUNTS names (zmctl passwd writes it). What is read and done is what the
user may who runs it: root, or the one of the daemons.

Exit codes: 0 ended by a signal, 1 it cannot listen, 78 bad configuration.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "write", Usage: "take orders; else the pages are for reading alone"},
			&cli.StringFlag{Name: "listen", Usage: "serve on `HOST:PORT`"},
			&cli.StringFlag{Name: "token-file", Usage: "the token is in `FILE`, made if it is missing; off: there is none"},
			&cli.StringFlag{Name: "accounts", Usage: "names and passwords are in `FILE`"},
		},
		Action: runWeb,
	}
}

// webSettings are what zmctl web is told by flags and zmailer.conf.
type webSettings struct {
	listen, token, accounts string
	write                   bool
	hosts                   []string
	cert, key               string
}

func webSettingsFrom(c *cli.Context, settings *config.Config) (webSettings, error) {
	of := func(flag, text string) string {
		if s := c.String(flag); s != "" {
			return s
		}
		return text
	}
	w := webSettings{
		listen: of("listen", settings.String("WEBLISTEN", defaultWeb)), token: of("token-file", settings.String("WEBTOKEN", "")),
		accounts: of("accounts", settings.String("WEBACCOUNTS", "")), hosts: settings.List("WEBHOSTS"),
		cert: settings.String("WEBCERT", ""), key: settings.String("WEBKEY", ""),
	}
	write, err := settings.Bool("WEBWRITE", false)
	w.write = write || c.Bool("write")
	switch {
	case err != nil:
	case (w.cert == "") != (w.key == ""):
		err = settings.Invalid("WEBCERT", "cannot be used", errors.New("WEBCERT and WEBKEY belong together"))
	case w.token == "off" && w.accounts == "":
		err = cli.Exit("zmctl web: without a token there must be accounts", config.ExitUsage)
	}
	return w, err
}

func runWeb(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	w, err := webSettingsFrom(c, settings)
	if err != nil {
		return err
	}
	log, err := logging.New(c.App.ErrWriter, settings.String("LOG", ""), settings.String("LOGLEVEL", ""), "zmctl-web")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	hostname, err := settings.Hostname()
	if err != nil {
		return err
	}
	ln, secure, err := w.open(settings)
	if err != nil {
		return err
	}
	defer ln.Close()
	samples, err := web.NewSamples(po.FS())
	if err != nil {
		log.Warn("samples-trouble", "reason", err)
	}
	source := &webSource{po: po, dir: dir, settings: settings}
	page := web.Config{
		Source: source, Samples: samples, Hosts: w.names(ln.Addr(), hostname), Secure: secure,
		Cookie: portOf(ln.Addr()), Hostname: hostname, Now: time.Now, Log: log,
	}
	if w.write {
		page.Orders = &webOrders{args: callArguments(c, settings.File, dir)}
	}
	if err := w.access(&page, dir); err != nil {
		return err
	}
	w.banner(c, &page, ln.Addr(), dir)
	log.Info("started", "address", ln.Addr().String(), "write", w.write, "postoffice", dir)
	err = serveWeb(c.Context, ln, web.New(page), log, func(ctx context.Context) {
		tail := ledger.NewTail(po, true)
		defer tail.Close()
		samples.Record(ctx, tail, source.waiting, log)
	})
	log.Info("stopped")
	return err
}

// serveWeb serves until ctx is done, with the record beside it.
func serveWeb(ctx context.Context, ln net.Listener, pages http.Handler, log *slog.Logger, record func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		record(ctx)
	}()
	srv := &http.Server{Handler: pages, ReadHeaderTimeout: webHeader, ReadTimeout: time.Minute, WriteTimeout: orderTime + time.Minute, IdleTimeout: webIdle,
		MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), webStop)
		defer cancel()
		err := srv.Shutdown(late)
		if errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close() // a page that nobody reads
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
	pair, err := tls.LoadX509KeyPair(w.cert, w.key)
	if err != nil {
		_ = ln.Close()
		return nil, false, settings.Invalid("WEBCERT", "cannot be used", err)
	}
	return tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), true, nil
}

// names are those that requests may be made to.
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

// access says who may come in.
func (w *webSettings) access(page *web.Config, dir string) error {
	if w.accounts != "" {
		page.Accounts = func() (*passwd.Accounts, error) {
			text, err := os.ReadFile(w.accounts)
			if err != nil {
				return nil, err
			}
			return passwd.Parse(w.accounts, text)
		}
		if _, err := page.Accounts(); err != nil {
			return &config.Error{File: w.accounts, Reason: "WEBACCOUNTS cannot be used", Err: err}
		}
	}
	if w.token == "off" {
		w.token = ""
		return nil
	}
	if w.token == "" {
		w.token = filepath.Join(dir, web.TokenFile)
	}
	var err error
	page.Token, err = webToken(w.token, dir)
	return err
}

// leastToken is the shortest token that is taken, in characters.
const leastToken = 16

// webToken reads the token's file, or makes it.
func webToken(path, dir string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newWebToken(path, dir)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	b := make([]byte, 1024)
	n, _ := f.Read(b) // what is too short is told below
	token := strings.TrimSpace(string(b[:n]))
	switch {
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("its mode is %v: others may read it; chmod 600", info.Mode().Perm())
	case len(token) < leastToken:
		err = fmt.Errorf("it has fewer than %d characters; remove it, and the next start makes one", leastToken)
	default:
		return token, nil
	}
	return "", &config.Error{File: path, Reason: "WEBTOKEN cannot be used", Err: err}
}

func newWebToken(path, dir string) (string, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("make a token: %w", err)
	}
	token := web.NewToken()
	_, err = f.WriteString(token + "\n")
	if info, serr := os.Stat(dir); err == nil && serr == nil && os.Geteuid() == 0 {
		// The daemons' user may read it, as all else of the postoffice.
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			err = f.Chown(int(st.Uid), int(st.Gid))
		}
	}
	// Crash: a token that is not whole is too short and refused, or there is none.
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return "", errors.Join(fmt.Errorf("make a token: %w", err), os.Remove(path))
	}
	return token, nil
}

func portOf(a net.Addr) string {
	if at, ok := a.(*net.TCPAddr); ok {
		return strconv.Itoa(at.Port)
	}
	return ""
}

// banner tells a person where the page is. The token itself is for a terminal: what is
// not one may be a log.
func (w *webSettings) banner(c *cli.Context, page *web.Config, at net.Addr, dir string) {
	scheme := "http"
	if page.Secure {
		scheme = "https"
	}
	orders := "refused; --write takes them"
	if w.write {
		orders = "taken"
	}
	text := fmt.Sprintf("postoffice  %s\npage        %s://%s/\norders      %s\n", dir, scheme, at, orders)
	if w.token != "" {
		text += "token       in " + w.token + "\n"
		if out, ok := c.App.Writer.(*os.File); ok && terminal(out) {
			text += "            " + page.Token + "\n"
		}
	}
	if w.accounts != "" {
		text += "accounts    " + w.accounts + "\n"
	}
	fmt.Fprint(c.App.Writer, text+"stop        Ctrl-C or kill "+strconv.Itoa(os.Getpid())+"\n")
}

// callArguments are what a command of ours is called with to mean the same postoffice.
func callArguments(c *cli.Context, conf, dir string) []string {
	// An empty one is the built-in configuration, also where the machine has one.
	return []string{c.App.Name, "--postoffice=" + dir, "--config=" + conf}
}
