// Package tasmtp is the stage of the transport agent ta-smtp: it brings messages to
// other hosts by SMTP (channels smtp, and smtpx without MX) and to local stores by
// LMTP (channel lmtp).
//
// It owns connections: those in use, and those kept for the next message to the
// same channel and host. Tags, locks and answers to the scheduler are package
// agent's.
//
// What survives a crash: nothing of this package. Right before a final dot
// agent.Delivery.SentTo records which recipients may get the message, so that the next
// attempt knows which deliveries are in doubt.
//
// Diagnostics: no error reaches the caller; every recipient gets a result. Trouble of the
// host or the network is marked (Result.Host), and the whole thread waits; trouble of one
// message or mailbox never stops the thread (K14).
package tasmtp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"zmailer/internal/disk/fenced"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
	"zmailer/internal/stage/agent"
	"zmailer/internal/stage/tasmtp/discard"
	"zmailer/internal/stage/tasmtp/mx"
	"zmailer/internal/stage/tasmtp/replies"
	"zmailer/internal/stage/tasmtp/sign"
	"zmailer/internal/table/text"
	"zmailer/internal/wire/smtpclient"
)

// Config is what an agent process is started with.
type Config struct {
	PostOffice string // directory
	Strict     bool   // SYNC=strict
	Channels   []string
	Hostname   string // our name, for EHLO and to recognize ourselves among MX records
	Port       int    // of other hosts' servers; 0: 25
	// Listeners are the addresses that smtpserver takes mail on, an unspecified one for all
	// of this machine: no MX record sends mail there.
	Listeners []netip.AddrPort
	Resolver  string // host:port of a name server; "": those of /etc/resolv.conf
	// Sources are the addresses that connections are made from, and Helo our name for
	// EHLO there; empty: the system's choice, and Hostname.
	Sources []Source
	Helo    string
	Limits
	Files
	Filter   text.Route     // the content filter, which learns by XFORWARD where mail comes from; zero: none
	SignNets []netip.Prefix // whose clients' mail is ours to sign
	Security Security
	Retired  []*config.Error // settings that are ignored, to be logged
	Keeper   config.Keeper   // of the files beside zmailer.conf; may be nil
	// Named is called with all of these files, and the keys of DKIM, at the start and when the keys
	// are others; may be nil.
	Named func(files []string)
	Lease *lease.Page  // of this machine in a cluster; nil: it is in none
	Log   *slog.Logger // nil: discarded
}

// Limits bound connections and the time that they take.
type Limits struct {
	Slots       int           // deliveries at once
	Connections int           // to one host; 0: as many as slots
	Idle        time.Duration // how long a connection is kept for the next message; 0: not
	// Search bounds the finding and connecting of one server among all addresses of
	// a destination; 0: 3 min.
	Search time.Duration
	// DeadTime is how long an address that did not answer is tried last; 0: it keeps
	// its turn.
	DeadTime time.Duration
	Timeouts smtpclient.Timeouts
	// MinRate and MaxTime bound the time that a server may take over content, as
	// smtpclient.Config has them.
	MinRate int64
	MaxTime time.Duration
}

// Files are paths of tables; "": there is none.
type Files struct {
	Replies string // rules on replies
	Discard string // EHLO keywords to discard
	DKIM    string // keys; without it mail is not signed
}

// ConfigFrom reads the settings SMTPPORT, RESOLVER, DEADTIME, SMTPMINRATE, SMTPMAXTIME,
// SMTPLISTEN and the like, SIGNNETS, HOSTNAME and SYNC, and finds the files beside
// zmailer.conf. The postoffice is the directory above the
// working directory, which is transport/.
func ConfigFrom(c *config.Config) (Config, error) {
	s := config.NewReader(c)
	security := securityFrom(s)
	hostname := s.Hostname()
	if _, err := helloName(hostname); err != nil {
		s.Use("HOSTNAME", err)
	}
	security.Keeper = c.Keeper()
	out := Config{
		PostOffice: "..", Security: security, Strict: c.String("SYNC", "normal") == "strict", Hostname: hostname, Port: s.Int("SMTPPORT", 25),
		Resolver: c.String("RESOLVER", ""), SignNets: signNets(s), Filter: contentFilter(s), Retired: c.Retired(), Lease: lease.Use(s), Listeners: ownListeners(c), Keeper: c.Keeper(),
		Limits: Limits{DeadTime: s.Duration("DEADTIME", 15*time.Minute), MinRate: int64(s.Int("SMTPMINRATE", 500)), MaxTime: s.Duration("SMTPMAXTIME", 6*time.Hour)},
		Files:  Files{Replies: c.Path("replies"), Discard: c.Path(discardFile), DKIM: c.Path("dkim")},
	}
	return out, s.Err()
}

// discardFile is the table of EHLO keywords beside zmailer.conf.
const discardFile = "discard-ehlo-keywords"

// Run serves the scheduler on in and out until in ends or ctx is done; running
// deliveries finish first.
func Run(ctx context.Context, c Config, in io.Reader, out io.Writer) (err error) {
	p, err := postoffice.OpenLeased(c.PostOffice, 0, c.Strict, c.Lease, fenced.Names)
	if err != nil {
		return &config.Error{File: c.PostOffice, Reason: "is no postoffice; the scheduler starts agents in its transport/", Err: err}
	}
	if f, ok := p.FS().(io.Closer); ok {
		defer func() { err = errors.Join(err, f.Close()) }()
	}
	owner, err := p.Owners.Take("ta-smtp " + strings.Join(c.Channels, " "))
	if err != nil {
		return fmt.Errorf("start ta-smtp: %w", err)
	}
	a := &agent.Agent{PostOffice: p, Owner: owner, Name: "smtp", Channels: c.Channels, Log: c.Log, Lease: c.Lease}
	defer func() { err = errors.Join(err, a.Release()) }()
	c.Security.use(p, c.Log)
	relay, err := NewRelay(c)
	if err != nil {
		return fmt.Errorf("start ta-smtp: %w", err)
	}
	defer relay.Close()
	for _, r := range c.Retired {
		relay.log.Warn("setting-retired", "reason", r)
	}
	return a.Run(ctx, in, out, c.Slots, relay)
}

// Relay delivers to other hosts. Its methods may be used by many goroutines.
type Relay struct {
	connector
	zone   zone
	rules  *config.File[*replies.Table] // nil: there are none
	signer signer
	filter text.Route // the content filter
	lease  *lease.Page
}

// connector finds the servers of destinations and opens sessions with them.
type connector struct {
	hostname string // lower case, no final dot
	client   smtpclient.Config
	port     int
	search   time.Duration
	resolver *mx.Resolver
	pool     *pool
	hosts    hostStatus
	self     *selfAddrs
	openings *openings
	discard  *config.File[*discard.Table] // nil: no EHLO keyword is ignored
	security *security
	log      *slog.Logger
	// dialWith connects with a dialer; tests connect to servers in memory.
	dialWith func(d *net.Dialer, ctx context.Context, network, address string) (net.Conn, error)
}

// named reports the files that an agent reads, with those of keys.
func (c *Config) named(keys []string) {
	if c.Named != nil {
		c.Named(append(keys, c.DKIM, c.Replies, c.Discard, c.Security.Policies, c.Security.Credentials))
	}
}

// NewRelay makes a Relay; of the configuration it leaves the postoffice alone. Its error joins
// all that cannot be used.
func NewRelay(c Config) (*Relay, error) {
	hostname, err := helloName(c.Hostname)
	if err != nil {
		return nil, err
	}
	helo := hostname
	if c.Helo != "" {
		if helo, err = helloName(c.Helo); err != nil {
			return nil, err
		}
	}
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	zone, err := newZone(c.Sources, helo)
	var keys *sign.Table
	if c.DKIM != "" {
		var kerr error
		keys, kerr = sign.Open(c.DKIM, sign.Options{Keeper: c.Keeper, Log: log, Named: c.named})
		err = errors.Join(err, kerr)
	}
	timeouts := c.Timeouts.WithDefaults()
	resolver := mx.New(mx.Config{Server: c.Resolver, Trust: c.Security.Trust})
	security, serr := newSecurity(&c.Security, resolver, log)
	if err = errors.Join(err, serr); err != nil {
		return nil, err
	}
	return &Relay{
		lease: c.Lease,
		connector: connector{
			hostname: hostname,
			client:   smtpclient.Config{Hostname: helo, Timeouts: timeouts, MinRate: c.MinRate, MaxTime: c.MaxTime},
			port:     cmp.Or(c.Port, 25),
			search:   cmp.Or(c.Search, 3*time.Minute),
			resolver: resolver,
			pool:     newPool(c.Idle, max(c.Slots, 1), cmp.Or(c.Connections, max(c.Slots, 1))),
			hosts:    hostStatus{keep: c.DeadTime, now: time.Now},
			self:     &selfAddrs{listeners: c.Listeners, now: time.Now, interfaces: net.InterfaceAddrs},
			openings: newOpenings(max(c.Slots, 1), log),
			discard:  openRules(c.Discard, discard.Parse, "EHLO keywords are discarded", time.Now, c.Keeper, log),
			security: security,
			log:      log,
			dialWith: (*net.Dialer).DialContext,
		},
		zone:   zone,
		rules:  openRules(c.Replies, replies.Parse, "rules on replies", time.Now, c.Keeper, log),
		signer: signer{keys: keys, nets: c.SignNets, log: log},
		filter: c.Filter,
	}, nil
}

// helloName is our name in the form that it is sent and compared in.
func helloName(hostname string) (string, error) {
	// An address literal (RFC 5321 §4.1.3), as helo= may have it.
	if inside, ok := strings.CutPrefix(hostname, "["); ok {
		inside, ok = strings.CutSuffix(inside, "]")
		if _, err := netip.ParseAddr(strings.TrimPrefix(inside, "IPv6:")); err != nil || !ok {
			return "", errors.New(hostname + " is no address literal")
		}
		return hostname, nil
	}
	m := address.Mailbox{Local: "x", Domain: strings.TrimSuffix(hostname, ".")}
	name, err := m.ASCIIDomain()
	if err != nil {
		return "", err
	}
	if name == "" {
		return "", errors.New("our host name is empty")
	}
	return name, nil
}

// Close closes all kept connections with QUIT. No delivery may be running.
func (r *Relay) Close() {
	r.pool.close()
	r.security.reports.Close()
}
