// Package smtpserver is the stage that takes messages by SMTP (RFC 5321): each one becomes a
// file in public/, is fsynced, and moves to router/ by one rename; then the client gets 250.
//
// The parts: package listen accepts connections, session speaks the protocol with each, policy
// decides which clients may send what to whom, auth checks passwords, content has messages
// checked and filtered. This package is what they have in common: it counts connections,
// applies limits, and its handler, which implements session.Handler, puts the decisions
// together and stores messages.
//
// What survives a crash: a message whose client got 250 is a synced file in router/ or
// freezer/. Everything else is a file without execute bit in public/, or nothing; its client
// got no reply and tries again.
//
// Diagnostics: Run's errors say that the postoffice or an address to listen on cannot
// be used. Trouble with one message is a reply to its client: 452 4.3.1 for a full disk or
// quota, 451 4.3.0 for any other fault of ours, never 5xx.
package smtpserver

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/fenced"
	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/verified"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/ports"
	"zmailer/internal/stage/smtpserver/auth"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/greylist"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/policy/remember"
	"zmailer/internal/stage/smtpserver/session"
)

const (
	defaultTimeout     = 5 * time.Minute
	defaultStopTimeout = 30 * time.Second
	defaultTLSTimeout  = time.Minute
	// lastReplyTime is how long the last reply to a client may take when smtpserver stops.
	lastReplyTime = time.Second
	// killGrace is how long cut connections may take to return from a system call.
	killGrace = 10 * time.Second
)

// server is what the connections of one state of the settings share. A reload makes another one
// for the connections that come then.
type server struct {
	Config
	*shared
	rules   *policy.Policy
	limits  *limits.Limits
	users   auth.Backend    // nil: no one can authenticate
	checks  *checks.Checker // nil: nothing is checked
	filters *content.Filters
	// contentRules are about header and body; nil: there is no configuration directory.
	contentRules *contentrules.Set
	certs        *listen.Certificates // nil: no TLS
	waited       *remember.Table      // clients that have waited for the greeting; nil: that is not tested
	protocols    map[session.Role]*session.Server

	open    int  // its connections; mu guards it
	retired bool // another server has taken its place; mu guards it
}

// shared is what all connections share, whatever settings they began with.
type shared struct {
	po     *postoffice.PostOffice
	ledger *ledger.Journal
	meters meters
	flood  *slog.Logger // for what connections without a greeting can cause

	drain drain
	// greeted are clients that have waited for the greeting; nil: that was never tested. With grey
	// it belongs to the goroutine of serve: servers have their own pointers.
	greeted *remember.Table
	grey    *greylist.List // nil: there was never any greylisting

	workers           workers
	memory            memory
	holders           holders
	disk, authTrouble logging.Trouble
	unleased          logging.Trouble

	ctx    context.Context // done when connections are cut: nothing is asked any more
	cancel context.CancelFunc

	mu          sync.Mutex
	connections map[*connection]struct{}
	places      places
	stopping    bool
	ended       bool
	idle        chan struct{} // closed when stopping and the last connection is gone
}

// Run serves until ctx is done, then stops in order: no new connections, an end to
// idle ones, running transactions finish within StopTimeout (A17).
func Run(ctx context.Context, c Config) error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Metrics.Log(c.Log)
	var listeners []*listen.Listener
	var err error
	if c.Confine != nil {
		// The addresses are opened with the privileges that Confine drops, files without, as
		// they are read again later.
		if listeners, err = c.listen(ctx); err != nil {
			return err
		}
		for _, l := range listeners {
			if c.Owner > 0 {
				err = errors.Join(err, ports.Own(l.Listener, c.Owner))
			}
		}
		err = errors.Join(err, confine.AsOwner(c.PostOffice, c.makeDirs))
		if err = errors.Join(err, c.Confine()); err != nil {
			return errors.Join(err, listen.CloseAll(listeners))
		}
	}
	s, err := newServer(c)
	if err != nil {
		return errors.Join(err, listen.CloseAll(listeners))
	}
	defer s.ledger.Close()
	defer s.closeClients()
	defer s.cancel()
	if c.Confine == nil {
		if listeners, err = c.listen(ctx); err != nil {
			return err
		}
	}
	return s.serve(ctx, listeners)
}

// setDefaults fills in what c leaves open.
func (c *Config) setDefaults() {
	c.ReadTimeout = cmp.Or(c.ReadTimeout, defaultTimeout)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, defaultTimeout)
	c.StopTimeout = cmp.Or(c.StopTimeout, defaultStopTimeout)
	c.TLSTimeout = cmp.Or(c.TLSTimeout, defaultTLSTimeout)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Users.Delay <= 0 {
		c.Users.Delay = defaultAuthDelay
	}
}

// newServer fills in what c leaves open and opens the postoffice, the rules and the users.
func newServer(c Config) (*server, error) {
	c.setDefaults()
	po, err := openPostOffice(c)
	if err != nil {
		return nil, err
	}
	l, err := c.open(po)
	if err != nil {
		return nil, err
	}
	h := &shared{
		po: po, ledger: ledger.New(po, ledger.Config{Role: "smtpserver", Log: c.Log}), meters: newMeters(c.Metrics), flood: logging.Bounded(c.Log),
		workers: newWorkers(), memory: memory{log: c.Log}, connections: map[*connection]struct{}{}, idle: make(chan struct{}),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	s := h.server(c, l, limits.New(c.Limits.Config))
	if c.Loaded != nil {
		c.Loaded()
	}
	return s, nil
}

// open reads what the settings name, for a server of the postoffice.
func (c *Config) open(po *postoffice.PostOffice) (loaded, error) {
	if g := &c.Access.Greylist; g.On && g.ExemptSPF {
		g.SPF = spfPasses(checks.Config{SPF: true, Host: c.Hostname, Server: c.Resolver, Timeout: c.Filters.Checks.Timeout})
	}
	c.openVerify(po)
	return c.load()
}

// server returns a server with settings and what they name.
func (h *shared) server(c Config, l loaded, counts *limits.Limits) *server {
	h.memory.most.Store(c.Limits.Memory)
	h.openPregreet(&c)
	h.openGreylist(&c)
	if c.Access.Greylist.On {
		l.rules.SetGreylist(h.grey)
	}
	check := c.Filters.Checks
	check.Host = c.Hostname
	s := &server{
		Config: c, shared: h, limits: counts, checks: checks.New(check), certs: l.certs, users: l.users, rules: l.rules, contentRules: l.content, waited: h.greeted,
		protocols: map[session.Role]*session.Server{},
	}
	s.filters = content.NewFilters(content.FilterConfig{
		Milters: c.Filters.Milters, Hostname: c.Hostname, DaemonName: c.Filters.DaemonName,
		Connections: s.limits.Open, MaxSize: c.Limits.MaxSize, Log: c.Log, Keeper: c.Keeper,
	})
	for _, role := range session.Roles() {
		s.protocols[role] = s.newProtocol(role)
	}
	return s
}

// openVerify has the prober use the postoffice's cache.
func (c *Config) openVerify(po *postoffice.PostOffice) {
	if c.Access.Probe == nil {
		return
	}
	probe := *c.Access.Probe
	probe.Cache, probe.Log = verified.Open(po.FS(), verified.Options{Most: probe.Most, Log: c.Log}), c.Log
	c.Access.Probe = &probe
	if err := po.Ensure(verified.Dir); err != nil {
		c.Log.Warn("directory-missing", "dir", verified.Dir, "reason", err)
	}
}

// makeDirs makes the directories of caches while we may: a postoffice that an earlier version
// has made does not have them. Trouble is met again when they are used, which may be after a
// reload.
func (c *Config) makeDirs() {
	if po, err := openPostOffice(*c); err == nil {
		_ = po.Ensure(verified.Dir)
		_ = po.Ensure(postoffice.Clients)
		_ = po.PlaceSuspensions()
		if f, ok := po.FS().(io.Closer); ok && c.FS == nil {
			_ = f.Close()
		}
	}
}

// policy returns the configuration of the rules.
func (c *Config) policy() policy.Config {
	p := c.Access
	p.Hostname, p.Log = c.Hostname, c.Log
	return p
}

// clientsFS returns where facts about clients are kept.
func clientsFS(c Config, po *postoffice.PostOffice) (durable.FS, error) {
	if err := po.Ensure(postoffice.Clients); err != nil {
		return nil, err
	}
	if c.FS != nil {
		return c.FS, nil
	}
	return durable.NewOS(c.PostOffice)
}

// spfPasses returns a test of senders by SPF.
func spfPasses(cfg checks.Config) func(context.Context, netip.Addr, string, address.Mailbox) bool {
	k := checks.New(cfg)
	return func(ctx context.Context, client netip.Addr, helo string, from address.Mailbox) (ok bool) {
		// The library parses what any domain publishes; a panic in it is no pass.
		defer func() {
			if recover() != nil {
				ok = false
			}
		}()
		ctx, cancel := k.Limit(ctx)
		defer cancel()
		return k.SPF(ctx, client, helo, from).Value == checks.Pass
	}
}

func openPostOffice(c Config) (*postoffice.PostOffice, error) {
	// Hash levels concern queue/ and transport/, which are not ours.
	if c.FS != nil {
		return postoffice.Open(postoffice.Config{FS: c.FS, Strict: c.Strict})
	}
	po, err := postoffice.OpenLeased(c.PostOffice, 0, c.Strict, c.Lease, fenced.Names)
	if errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) || errors.Is(err, fs.ErrNotExist) {
		return nil, &config.Error{File: c.PostOffice, Reason: "POSTOFFICE cannot be used", Err: err}
	}
	return po, err
}

// openTLS reads the certificates and reports what is missing.
func (c *Config) openTLS() (*listen.Certificates, error) {
	if err := c.TLS.Check(); err != nil {
		return nil, &config.Error{File: "TLSKEY", Reason: "cannot be used", Err: err}
	}
	files := c.TLS
	files.Keeper = c.Keeper
	certs, err := listen.OpenCertificates(files, time.Now, c.Log)
	switch {
	case err != nil:
		return nil, err
	case certs == nil && c.listensFor(session.RoleSubmissions):
		return nil, &config.Error{File: "SUBMISSIONSLISTEN", Reason: "needs TLSCERT"}
	case certs == nil && c.listensFor(session.RoleSubmission):
		c.Log.Warn("no-tls", "role", string(session.RoleSubmission),
			"advice", "set TLSCERT: without it passwords would be sent in the clear, so that clients of other machines cannot log in")
	}
	return certs, nil
}

func (c *Config) listen(ctx context.Context) ([]*listen.Listener, error) {
	return listen.Open(ctx, c.ports(), c.Log)
}

// listensFor reports whether there is a port of a role.
func (c *Config) listensFor(role session.Role) bool {
	return slices.ContainsFunc(c.ports(), func(p listen.Port) bool { return p.Role == role })
}

// serve accepts on every listener until ctx is done or one of them fails for good.
func (s *server) serve(ctx context.Context, listeners []*listen.Listener) error {
	defer s.followDrain(ctx)()
	// The metrics are served before a program can read in the log that we listen.
	defer s.serveMetrics()()
	a := s.acceptOn(listeners)
	addrs, text := a.addrs()
	if s.Ready != nil {
		s.Ready(addrs)
	}
	stopWatch := s.Service.Watch(a.check)
	s.Service.Ready("serves %s", text)
	var err error
	for serving := true; serving; {
		select {
		case <-ctx.Done():
			serving = false
		case err = <-a.failed:
			serving = false
		case <-s.Hangup:
			a.reload(ctx)
		}
	}
	stopWatch()
	s.Service.Stopping()
	a.stop()
	last := a.current.Load()
	defer last.retire()
	return errors.Join(err, last.stop())
}

// keep takes over what belongs to the process. Settings that a reload does not apply
// (config.Variable.Restart) have their old values already.
func (c *Config) keep(old *Config) {
	c.Activated, c.Privileged = old.Activated, old.Privileged
	c.PostOffice, c.FS, c.Strict, c.Confine, c.Lease = old.PostOffice, old.FS, old.Strict, old.Confine, old.Lease
	c.Metrics, c.Log, c.Service, c.Ready, c.Loaded = old.Metrics, old.Log, old.Service, old.Ready, old.Loaded
	c.Hangup, c.Reread, c.Follow = old.Hangup, old.Reread, old.Follow
}

// retire closes what belongs to a server when its last connection is gone.
func (s *server) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.closeIfUnused()
}

// closeIfUnused closes what a retired server has opened. s.mu is held.
func (s *server) closeIfUnused() {
	if s.retired && s.open == 0 {
		go s.rules.Close()
	}
}
