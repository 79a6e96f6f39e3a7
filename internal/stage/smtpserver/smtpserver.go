// Package smtpserver is the stage that takes messages by SMTP (RFC 5321): each one
// becomes a file in public/, is fsynced, and moves to router/ by one rename. go-smtp
// speaks the commands; what a message's bytes go through is ours: CRLF becomes LF
// and the dots are undone, streaming, in constant memory.
//
// Only CRLF ends a line and only CRLF.CRLF ends a message. A bare CR and a bare LF
// stand in the message file as they came (a bare LF cannot be told from a line end
// there, and goes out as CRLF): no sequence of them ends the data.
//
// What survives a crash: a message whose client was told 250 is a synced file in
// public/ or router/. Everything else is a file without execute bit in public/, or
// nothing; its client was told nothing and tries again.
//
// Diagnostics: Run's errors say that the postoffice or an address to listen on cannot
// be used. Trouble with one message is answered on its connection: 452 4.3.1 for a
// full disk or quota, 451 4.3.0 for any other fault of ours, never 5xx.
package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/emersion/go-smtp"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/metrics"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/auth"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
)

// Config says where to listen, whom to serve and where messages go.
type Config struct {
	PostOffice string     // directory
	Strict     bool       // sync=strict: directories are synced before the answer too
	FS         durable.FS // nil: the real file system below PostOffice

	// RouterDir is the router directory that mail is put into (SMTPPRIORITY); "": router/.
	RouterDir string

	// Where to listen: host:port; LMTPListen also the path of a Unix socket.
	Listen            []string // for other hosts' mail, RoleMX
	SubmissionListen  []string // for our users' mail
	SubmissionsListen []string // the same in TLS from the start
	LMTPListen        []string
	// ListenUnset: Listen is what holds if nothing is said, unless systemd has passed
	// sockets.
	ListenUnset bool
	// Activated are sockets that are open already, in place of a role's addresses.
	Activated map[Role][]net.Listener

	Hostname      string         // for the greeting
	RelayNets     []netip.Prefix // whose clients may send anywhere
	LocalNames    string         // path of localnames, domains that others may send to; "": the built-in one
	Access        Access         // the rules of who may do what
	Filters       Filters        // who looks at messages
	MaxSize       int64          // bytes of one message, line ends counted as CRLF; 0: no limit
	MaxRecipients int            // of one message; 0: no limit
	// MaxRecipientsUnauth is the same for unauthenticated clients that are neither in
	// RELAYNETS nor exempt from limits; 0: MaxRecipients.
	MaxRecipientsUnauth int
	MaxConnections      int // at once; more are answered 421

	Users  UsersConfig
	Limits LimitsConfig

	// TLS for STARTTLS and SubmissionsListen. Its files are read again when they change.
	TLS        TLSFiles
	TLSTimeout time.Duration // for a handshake; 0: 1 minute

	ProxyNets     []netip.Prefix // whose connections begin with a PROXY header
	XClientNets   []netip.Prefix // whose clients may say for whom they speak
	ReverseLookup bool           // clients' names are looked up
	Resolver      string         // host:port of the name server; "": those of /etc/resolv.conf

	ReadTimeout  time.Duration // for a command, and for content at MinRate; 0: 5 minutes (RFC 5321 §4.5.3.2.7)
	MinRate      int           // bytes of content a second, on average; 0: a byte within each ReadTimeout is enough
	WriteTimeout time.Duration // for one write; 0: 5 minutes
	StopTimeout  time.Duration // for running transactions after the stop; 0: 30 s

	Log     *slog.Logger
	Service *sdnotify.Service // is told how we are; nil: nobody is
	// Metrics counts; nil: nobody wants that.
	Metrics *metrics.Set
	// Confine is called when the addresses are open and before anything else is: it gives
	// up what only that needs. nil: nothing is given up.
	Confine func() error
	// Ready is called once with the addresses listened on, when connections are
	// accepted. May be nil.
	Ready func([]net.Addr)
}

const (
	defaultTimeout     = 5 * time.Minute
	defaultStopTimeout = 30 * time.Second
	// killGrace is how long cut connections may take to return from a system call.
	killGrace = 10 * time.Second
)

// server is what all connections share.
type server struct {
	Config
	po    *postoffice.PostOffice
	relay *relay
	// access are the rules; tables: those that they ask.
	access *access.Rules
	tables complaint
	certs  *certificates // nil: no TLS
	// senders say who may send as whom, rcpts whether there is a recipient; nil: nobody
	// asks.
	senders     *senders
	rcpts       *rcptcheck.Checker
	rcptTrouble complaint
	// ledger is told of each message that is accepted.
	ledger *ledger.Journal
	disk   complaint // storage errors are said once
	// ctx is done when connections are cut: nobody is asked anything any more.
	ctx    context.Context
	cancel context.CancelFunc
	checks *checks.Checker // nil: nothing is checked
	// filters are asked in their order.
	filters []*door
	users   auth.Backend // nil: nobody can authenticate
	limits  *limits.Limits
	meters  meters
	// authTrouble is said once.
	authTrouble complaint
	// commands are answered in front of go-smtp.
	commands map[string]command

	mu        sync.Mutex
	wires     map[*wire]struct{} // open connections
	strangers int                // of them, see isStranger
	stopping  bool
	ended     bool
	idle      chan struct{} // closed when stopping and the last wire is gone
}

// Run serves until ctx is done, then stops in order: no new connections, an end to
// idle ones, running transactions finish within StopTimeout (A17).
func Run(ctx context.Context, c Config) error {
	open, err := []opened(nil), error(nil)
	if c.Confine != nil {
		// The files are read as whom they are read again later.
		if open, err = c.listen(ctx); err != nil {
			return err
		}
		if err = c.Confine(); err != nil {
			return errors.Join(err, closeAll(open))
		}
	}
	s, err := newServer(c)
	if err != nil {
		return errors.Join(err, closeAll(open))
	}
	defer s.ledger.Close()
	defer s.closeAccess()
	defer s.cancel()
	if c.Confine == nil {
		if open, err = c.listen(ctx); err != nil {
			return err
		}
	}
	return s.serve(ctx, s.listeners(open))
}

// newServer fills in what c leaves open and opens the postoffice.
func newServer(c Config) (*server, error) {
	if c.ReadTimeout <= 0 {
		c.ReadTimeout = defaultTimeout
	}
	if c.WriteTimeout <= 0 {
		c.WriteTimeout = defaultTimeout
	}
	if c.StopTimeout <= 0 {
		c.StopTimeout = defaultStopTimeout
	}
	if c.TLSTimeout <= 0 {
		c.TLSTimeout = defaultTLSTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Metrics.Log(c.Log)
	certs, err := c.openTLS()
	if err != nil {
		return nil, err
	}
	po, err := openPostOffice(c)
	if err != nil {
		return nil, err
	}
	s := &server{
		Config: c, po: po, ledger: ledger.New(po, ledger.Config{Role: "smtpserver", Log: c.Log}), relay: newRelay(c.RelayNets, c.Hostname),
		certs:    certs,
		commands: newCommands(), limits: limits.New(c.Limits.Config), meters: newMeters(c.Metrics),
		wires: map[*wire]struct{}{}, idle: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.openUsers(); err != nil {
		return nil, err
	}
	s.openFilters()
	return s, s.openAccess()
}

func openPostOffice(c Config) (*postoffice.PostOffice, error) {
	// Hash levels concern queue/ and transport/, which are not ours.
	if c.FS != nil {
		return postoffice.Open(postoffice.Config{FS: c.FS, Strict: c.Strict})
	}
	po, err := postoffice.OpenDir(c.PostOffice, 0, c.Strict)
	if errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) || errors.Is(err, fs.ErrNotExist) {
		return nil, &config.Error{File: c.PostOffice, Reason: "POSTOFFICE cannot be used", Err: err}
	}
	return po, err
}

// serve accepts on every listener until ctx is done or one of them fails for good.
func (s *server) serve(ctx context.Context, listeners []*listener) error {
	failed := make(chan error, len(listeners))
	var accepting sync.WaitGroup
	entrances := map[Role]*entrance{}
	for _, l := range listeners {
		e := entrances[l.role]
		if e == nil {
			e = s.newEntrance(l.role)
			entrances[l.role] = e
			// It ends when it is closed, and not before.
			accepting.Go(func() { _ = e.library.Serve(e) })
		}
		l.entrance = e
		accepting.Go(func() {
			if err := e.library.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
				failed <- fmt.Errorf("accept on %s: %w", l.Addr(), err)
			}
		})
	}
	// Whoever has read that we listen finds our numbers.
	defer s.serveMetrics(entrances)()
	for _, l := range listeners {
		s.Log.Info("listening", "address", l.Addr().String(), "role", string(l.role), "postoffice", s.PostOffice)
	}
	if s.Ready != nil {
		addrs := make([]net.Addr, len(listeners))
		for i, l := range listeners {
			addrs[i] = l.Addr()
		}
		s.Ready(addrs)
	}
	stopWatch := s.Service.Watch(newRollCall(listeners, s.Service.Alive).ask)
	s.Service.Ready("serves %s", addresses(listeners))
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopWatch()
	s.Service.Stopping()
	for _, l := range listeners {
		// A listener has nothing to lose; Serve returns whatever close says.
		_ = l.Close()
	}
	for _, e := range entrances {
		_ = e.Close()
	}
	accepting.Wait()
	return errors.Join(err, s.stop())
}

// library is go-smtp's server over our wires of a role. It is never told to close: it knows
// only how to cut connections, and stop does better.
func (s *server) library(role Role) *smtp.Server {
	l := smtp.NewServer(smtp.BackendFunc(s.newSession))
	l.LMTP = role == RoleLMTP
	// TLS is below it, where it does not see it: each session says which mechanisms are
	// offered, and capabilities what extensions are.
	l.AllowInsecureAuth = true
	l.EnableREQUIRETLS = true
	l.Domain = s.Hostname
	l.MaxMessageBytes = s.MaxSize
	l.MaxRecipients = s.MaxRecipients
	l.EnableSMTPUTF8 = true
	l.EnableDSN = true
	// The limit would hold inside of messages too; the wire limits command lines.
	l.MaxLineLength = 0
	// The wire keeps the time itself: these only make go-smtp mark each command.
	l.ReadTimeout = s.ReadTimeout
	l.WriteTimeout = s.WriteTimeout
	l.ErrorLog = libraryLog{s.Log}
	return l
}

// stop ends the connections: those without a transaction now, the others as their
// transactions end, all when StopTimeout is over.
func (s *server) stop() error {
	s.mu.Lock()
	s.stopping = true
	for w := range s.wires {
		w.stop()
	}
	s.endIfIdle()
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-time.After(s.StopTimeout):
	}
	s.mu.Lock()
	s.Log.Warn("cut", "connections", len(s.wires), "after", s.StopTimeout)
	for w := range s.wires {
		w.cut()
	}
	s.cancel()
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-time.After(killGrace):
		return fmt.Errorf("stop: connections are still busy %v after they were cut", killGrace)
	}
}

// endIfIdle tells stop that all is over. s.mu is held.
func (s *server) endIfIdle() {
	if s.stopping && !s.ended && len(s.wires) == 0 {
		s.ended = true
		close(s.idle)
	}
}

// opened counts a connection in; false: there are enough, or we are stopping.
func (s *server) opened(w *wire) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || s.MaxConnections > 0 && len(s.wires) >= s.MaxConnections {
		return false
	}
	if w.stranger = s.isStranger(w); w.stranger {
		// A fifth of the places is for our users and LIMITSEXEMPT.
		if s.MaxConnections > 0 && s.strangers >= s.MaxConnections-s.MaxConnections/5 {
			return false
		}
		s.strangers++
	}
	s.wires[w] = struct{}{}
	s.meters.connections.With(string(w.client.role)).Add(1)
	return true
}

// isStranger tells a connection that anybody may have made: to the port for other hosts'
// mail, and not from LIMITSEXEMPT. Who speaks through a proxy is not known yet.
func (s *server) isStranger(w *wire) bool {
	addr := w.client.addr
	return w.client.role == RoleMX && (!s.limits.Exempt(addr.Addr()) || inNets(s.ProxyNets, addr))
}

// gone counts a connection out.
func (s *server) gone(w *wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.wires, w)
	if w.stranger {
		s.strangers--
	}
	s.endIfIdle()
}
