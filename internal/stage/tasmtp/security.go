package tasmtp

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/agent"
	"zmailer/internal/stage/tasmtp/credentials"
	"zmailer/internal/stage/tasmtp/mx"
	"zmailer/internal/stage/tasmtp/sts"
	"zmailer/internal/stage/tasmtp/tlspolicy"
	"zmailer/internal/stage/tasmtp/tlsrpt"
	"zmailer/internal/wire/smtpclient"
)

// Security configures TLS and logins of a Relay.
type Security struct {
	Policies    string // path of the file tls; "": there is none
	Credentials string // path of the file credentials; "": there is none
	// Clause is the policy of the agent's clause in scheduler.conf, and Account the
	// name of the account for its hosts; "": it has none.
	Clause, Account string
	Trust           bool           // name servers elsewhere may call answers validated
	Roots           *x509.CertPool // of SMTP and HTTPS servers; nil: the system's
	STSPort         int            // of HTTPS servers; 0: 443
	// Disk is the postoffice's, for sts/ and tlsrpt/; nil: policies are forgotten and
	// nothing is counted.
	Disk   durable.FS
	Look   bool          // Disk is only read, whatever Report is
	Report bool          // tlsrpt/ is written
	Keep   time.Duration // days of it stay so long; 0: for ever
	Keeper config.Keeper // of the files; may be nil
}

// securityFrom reads the settings of zmailer.conf: DANETRUST, TLSRPT, TLSRPTKEEP, and the places
// of the files tls and credentials beside it.
func securityFrom(c *config.Reader) Security {
	return Security{
		Trust: c.Bool("DANETRUST", false), Report: c.Bool("TLSRPT", true), Keep: c.Duration("TLSRPTKEEP", 30*24*time.Hour),
		Policies: c.Path("tls"), Credentials: c.Path("credentials"),
	}
}

// clause reads the environment that the scheduler sets for a clause: TLSPOLICY, its tls=,
// and ACCOUNT, its auth=.
func (s *Security) clause(getenv func(string) string) error {
	s.Clause, s.Account = getenv("TLSPOLICY"), getenv("ACCOUNT")
	if s.Clause == "" {
		return nil
	}
	if _, err := tlspolicy.ParsePolicy(s.Clause, ""); err != nil {
		return &config.Error{File: "environment", Reason: "TLSPOLICY", Err: err}
	}
	return nil
}

// use takes the postoffice's disk. Directories that cannot be made are logged, and their
// features stay off.
func (s *Security) use(p *postoffice.PostOffice, log *slog.Logger) {
	s.Disk = p.FS()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []string{postoffice.STS, postoffice.TLSRPT} {
		if _, err := s.Disk.Stat(dir); err == nil {
			continue
		}
		if err := p.Ensure(dir); err != nil {
			log.Warn("directory-missing", "dir", dir, "reason", err)
		}
	}
	if err := sts.Sweep(s.Disk, time.Now()); err != nil {
		log.Warn("sts-not-swept", "reason", err)
	}
}

// security is that in use.
type security struct {
	resolver *mx.Resolver
	log      *slog.Logger
	policies *config.File[*tlspolicy.Table]
	accounts *config.File[*credentials.Table]
	clause   *tlspolicy.Policy // nil: there is none
	account  string
	may      *tlspolicy.Policy // the default
	roots    *x509.CertPool
	sts      *sts.Store
	reports  *tlsrpt.Recorder // nil: nothing is counted
	sessions tls.ClientSessionCache
	warned   atomic.Bool // that DANE cannot be used, in the log
	far      bool        // this machine's servers are treated as others', for tests
}

// sessionsKept is how many hosts a TLS session is remembered of, to go on with.
const sessionsKept = 1000

func newSecurity(c *Security, resolver *mx.Resolver, log *slog.Logger) (*security, error) {
	s := &security{resolver: resolver, log: log, account: c.Account, roots: c.Roots, sessions: tls.NewLRUClientSessionCache(sessionsKept),
		may: &tlspolicy.Policy{Text: "may", Where: "built in"}}
	var err, aerr error
	s.policies, err = config.OpenFile(c.Policies, tlspolicy.Parse, config.FileOptions{Keeper: c.Keeper, Log: log})
	s.accounts, aerr = config.OpenFile(c.Credentials, credentials.Parse, config.FileOptions{Secret: true, Keeper: c.Keeper, Log: log})
	if err = errors.Join(err, aerr); err != nil {
		return nil, err
	}
	if c.Clause != "" {
		p, err := tlspolicy.ParsePolicy(c.Clause, "")
		if err != nil {
			return nil, &config.Error{File: "scheduler.conf", Reason: "tls=", Err: err}
		}
		p.Where = "scheduler.conf"
		s.clause = &p
	}
	s.sts = sts.New(sts.Config{FS: c.Disk, Look: c.Look, Text: resolver.Text, Addrs: resolver.Addrs, Roots: c.Roots, Port: c.STSPort, Log: log})
	if c.Disk != nil && c.Report && !c.Look {
		s.reports = tlsrpt.New(c.Disk, c.Keep, time.Now, log)
	}
	return s, nil
}

// terms are what messages require of the connection that they use.
type terms struct {
	policy   *tlspolicy.Policy // nil: a socket on this machine
	explicit bool              // the policy is of this destination or clause, not the one for all
	account  *credentials.Account
	require  bool // REQUIRETLS (RFC 8689)
	relaxed  bool // TLS-Required: No
}

// setTerms puts the terms of a part's recipients into a key. An invalid host is reported
// when it is connected to.
func (r *Relay) setTerms(d *agent.Delivery, key *poolKey, rcpts []*agent.Recipient) *refusal {
	first := rcpts[0]
	dest, err := parseDestination(key.channel, key.host, r.port)
	if err != nil {
		return nil
	}
	if key.terms, err = r.security.terms(&dest, sender(first), requiresTLS(first), d.Header(first.Group)); err != nil {
		return &refusal{code: badSetup, weight: weightOurs, reply: err.Error()}
	}
	return nil
}

// requiresTLS reports whether a recipient's N line has REQUIRETLS=YES.
func requiresTLS(rcpt *agent.Recipient) bool {
	return strings.EqualFold(rcpt.Param("REQUIRETLS"), "YES")
}

// terms of a part of a message: where it goes, from whom, whether a recipient's N line
// requires TLS and whether the header waives it.
func (s *security) terms(d *destination, from string, require bool, header []byte) (terms, error) {
	if d.unix != "" {
		return terms{}, nil
	}
	name := d.name
	if d.addr.IsValid() {
		name = d.addr.String()
	}
	t := terms{require: require, relaxed: !require && relaxesTLS(header)}
	table := s.policies.Current()
	var ok bool
	if t.policy, ok = table.Find(name, d.port); ok || s.clause != nil {
		if t.explicit = true; !ok {
			t.policy = s.clause
		}
	} else if t.policy, ok = table.Default(); !ok {
		t.policy = s.may
	}
	t.account = s.accounts.Current().Find(name, d.port, from, s.account)
	if t.account == nil && s.account != "" {
		return t, fmt.Errorf("no account %s for %s in the file credentials", s.account, name)
	}
	if t.account != nil {
		t.relaxed = false // the sender's mail may do without, the password may not
	}
	return t, nil
}

// login returns what the client needs of an account.
func (t *terms) login() smtpclient.Account {
	return smtpclient.Account{User: t.account.User, Password: t.account.Password}
}

// relaxesTLS reports whether a header has "TLS-Required: No" (RFC 8689 §5).
func relaxesTLS(header []byte) bool {
	name := []byte("tls-required:")
	for line := range bytes.Lines(header) {
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], name) {
			return bytes.EqualFold(bytes.TrimSpace(line[len(name):]), []byte("no"))
		}
	}
	return false
}
