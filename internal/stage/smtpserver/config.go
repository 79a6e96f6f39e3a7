package smtpserver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/verified"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/metrics"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/smtpserver/auth"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
	"zmailer/internal/stage/smtpserver/policy/greylist"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

const (
	// DefaultMaxConnections is the default of SMTPCONNECTIONS.
	DefaultMaxConnections = 500
	// DefaultMinRate is the default of MINRATE, bytes of a message per second.
	DefaultMinRate = 100
)

// Config defines where to listen, which clients to serve and where messages go.
type Config struct {
	PostOffice string     // directory
	Strict     bool       // sync=strict: directories are synced before the answer too
	FS         durable.FS // nil: the real file system below PostOffice
	// RouterDir is the router directory that mail is put into (SMTPPRIORITY); "": router/.
	RouterDir string
	Hostname  string // for the greeting

	Ports
	Clients
	Times
	Pregreet Pregreet
	Access   policy.Config // its Hostname and Log are those here
	Filters  Filters
	// BodyRulesSize is how much of each part's body the rules in body-rules look at; 0: the
	// default.
	BodyRulesSize int
	Users         UsersConfig
	Limits        LimitsConfig

	Lease   *lease.Page   // of this machine in a cluster; nil: it is in none
	Keeper  config.Keeper // of the files beside zmailer.conf; may be nil
	Log     *slog.Logger
	Service *sdnotify.Service // gets our state; may be nil
	Metrics *metrics.Set      // counts; may be nil
	// Confine is called when the addresses are open and before anything else is: it drops
	// privileges. May be nil.
	Confine func() error
	// Loaded is called when all files were read. May be nil.
	Loaded func()
	// Hangup asks for the settings to be read again, by Reread; they hold for new connections.
	// Follow is notified of what came of it. May be nil.
	Hangup <-chan os.Signal
	Reread func() (Config, error)
	Follow Follower
	// Ready is called once with the addresses listened on, when connections are
	// accepted. May be nil.
	Ready func([]net.Addr)
}

// Follower is notified of settings that were read again, as a lastgood.Follower is.
type Follower interface {
	// Accept notes that they are used, but for those that wait for a restart; attrs are for the log.
	Accept(waiting ...string) (attrs []any)
	Refuse(err error) // they cannot be used
}

// Ports defines where to listen.
type Ports struct {
	// Listen has addresses, host:port; for LMTP also the paths of Unix sockets.
	Listen map[session.Role][]string
	// ListenUnset: the address of RoleMX is the default, which sockets of systemd replace.
	ListenUnset bool
	// Activated are sockets that are open already, in place of a role's addresses.
	Activated map[session.Role][]net.Listener
	// Privileged opens an address at a reload that only root may open; nil: it waits for a restart.
	Privileged listen.Opener
	// Owner is the user that the sockets are given to which root opens; 0: they stay root's.
	Owner int
	// TLS for STARTTLS and RoleSubmissions. Its files are read again when they change.
	TLS listen.CertificateFiles
}

// Clients defines how the address of a client is found.
type Clients struct {
	ProxyNets     []netip.Prefix // whose connections begin with a PROXY header
	ReinjectNets  []netip.Prefix // whose clients the reinject port serves
	XClientNets   []netip.Prefix // whose clients may name another client
	XForwardNets  []netip.Prefix // whose clients may say where a message comes from; on the reinject port, too, those of ReinjectNets
	RulesExempt   []netip.Prefix // whose clients' mail no rule about header and body concerns
	HeaderNets    []netip.Prefix // whose clients' mail gets missing fields as that of users
	ReverseLookup bool           // clients' names are looked up
	Resolver      string         // host:port of the name server; "": those of /etc/resolv.conf
}

// Times are the time limits of a connection.
type Times struct {
	ReadTimeout  time.Duration // for a command, and for content at MinRate; 0: 5 minutes (RFC 5321 §4.5.3.2.7)
	MinRate      int           // bytes of content a second, on average; 0: a byte within each ReadTimeout is enough
	WriteTimeout time.Duration // for one write; 0: 5 minutes
	TLSTimeout   time.Duration // for a handshake; 0: 1 minute
	StopTimeout  time.Duration // for running transactions after the stop; 0: 30 s
}

// Filters defines which checks and filters read messages before they are accepted (docs/filters.md).
type Filters struct {
	Checks  checks.Config // its Host is HOSTNAME
	Milters []content.Milter
	// DaemonName is the macro {daemon_name} by role, where it is not HOSTNAME.
	DaemonName map[session.Role]string
}

// UsersConfig defines where our users are.
type UsersConfig struct {
	Source    string        // AUTH; "": there are none
	Dir       string        // where paths in it begin
	Plaintext bool          // AUTH is also offered without TLS
	MX        bool          // AUTH is also offered on port 25
	Delay     time.Duration // before the answer to a wrong password; 0: 1 s
}

// LimitsConfig defines where the limits for clients are.
type LimitsConfig struct {
	limits.Config
	MaxConnections int   // at once; more are answered 421; 0: no limit
	MaxSize        int64 // bytes of one message, line ends counted as CRLF; 0: no limit
	MaxRecipients  int   // of one message; 0: no limit
	// MaxRecipientsUnauth is the same for unauthenticated clients that are neither in
	// RELAYNETS nor exempt from limits; 0: MaxRecipients.
	MaxRecipientsUnauth int
	// Memory is how many bytes all transactions together may keep of their recipients; 0: no
	// limit.
	Memory       int64
	Errors       int  // refusals on one connection before it is closed; 0: no limit
	AcceptBareLF bool // SMTPBARELF=accept
}

// portSettings are the settings that name the addresses of the roles.
var portSettings = map[session.Role]string{
	session.RoleMX: "SMTPLISTEN", session.RoleSubmission: "SUBMISSIONLISTEN",
	session.RoleSubmissions: "SUBMISSIONSLISTEN", session.RoleLMTP: "LMTPLISTEN",
	session.RoleReinject: "REINJECTLISTEN",
}

// ports returns the configured addresses, in place of which systemd may have passed sockets.
func (c *Ports) ports() (ports []listen.Port) {
	for _, role := range session.Roles() {
		p := listen.Port{Role: role, Setting: portSettings[role], Addrs: c.Listen[role], Open: c.Activated[role]}
		if len(p.Open) > 0 || role == session.RoleMX && c.ListenUnset && len(c.Activated) > 0 {
			p.Addrs = nil
		}
		if len(p.Addrs)+len(p.Open) > 0 {
			ports = append(ports, p)
		}
	}
	return ports
}

// settings reads zmailer.conf and keeps all errors, each a *config.Error.
type settings struct {
	*config.Config
	all *config.Reader
}

func get[T any](s *settings, read func(name string, def T) (T, error), name string, def T) T {
	v, err := read(name, def)
	s.all.Add(err)
	return v
}

// use notes that a setting cannot be used.
func (s *settings) use(name string, err error) { s.all.Use(name, err) }

// ConfigFrom takes the settings that concern this stage from zmailer.conf. Its error joins an
// *config.Error for each setting that cannot be used.
func ConfigFrom(c *config.Config) (Config, error) {
	s := &settings{Config: c, all: config.NewReader(c)}
	out := Config{
		PostOffice: c.PostOffice(), Strict: c.String("SYNC", "normal") == "strict",
		RouterDir: s.routerDir(),
		Ports:     s.ports(), Users: s.users(), Limits: s.limits(), Access: s.access(), Filters: s.filters(),
		Clients: Clients{
			ProxyNets: s.nets("PROXYNETS", nil), XClientNets: s.nets("XCLIENTNETS", nil), XForwardNets: s.nets("XFORWARDNETS", nil), HeaderNets: s.nets("HEADERNETS", nil), RulesExempt: s.nets("RULESEXEMPT", nil),
			ReinjectNets:  s.nets("REINJECTNETS", []string{"127.0.0.0/8", "::1/128"}),
			ReverseLookup: get(s, c.Bool, "REVERSELOOKUP", false), Resolver: c.String("RESOLVER", ""),
		},
		BodyRulesSize: int(get(s, s.Size, "BODYRULESSIZE", contentrules.DefaultBodySize)),
		Times:         Times{MinRate: get(s, c.Int, "MINRATE", DefaultMinRate)},
	}
	out.Pregreet = Pregreet{Wait: get(s, s.Duration, "PREGREETWAIT", 0), Action: s.String("PREGREETACTION", pregreetEnforce), Keep: get(s, s.Duration, "PREGREETKEEP", 24*time.Hour)}
	out.Hostname = s.all.Hostname()
	out.Keeper, out.Lease = c.Keeper(), lease.Use(s.all)
	out.Access.Source.Keeper, out.Access.Keeper = out.Keeper, out.Keeper
	out.Metrics = metrics.New("smtpserver", s.all.Metrics("smtpserver"))
	return out, s.all.Err()
}

func (s *settings) routerDir() string {
	dirs, err := postoffice.ParseRouterDirs(s.List("ROUTERDIRS"))
	s.use("ROUTERDIRS", err)
	return postoffice.PriorityDir(dirs, get(s, s.Int, "SMTPPRIORITY", 0))
}

func (s *settings) ports() Ports {
	p := Ports{Listen: map[session.Role][]string{}}
	for role, name := range portSettings {
		if addrs := s.List(name); len(addrs) > 0 {
			p.Listen[role] = addrs
		}
	}
	switch mx := p.Listen[session.RoleMX]; {
	case len(mx) == 0:
		p.Listen[session.RoleMX], p.ListenUnset = []string{"127.0.0.1:2525"}, true
	case len(mx) == 1 && mx[0] == "off":
		delete(p.Listen, session.RoleMX)
	}
	for role, addrs := range p.Listen {
		for _, addr := range addrs {
			switch err := CheckListen([]string{addr}); {
			case role != session.RoleLMTP:
				s.use(portSettings[role], err)
			case err != nil && !filepath.IsAbs(addr):
				s.use(portSettings[role], errors.New(addr+" is neither the path of a socket, like /run/zmailer/lmtp, nor host:port"))
			}
		}
	}
	p.TLS = listen.CertificateFiles{Certs: s.beside("TLSCERT"), Keys: s.beside("TLSKEY"), Ask: get(s, s.Bool, "TLSASKCERT", false)}
	s.use("TLSKEY", p.TLS.Check())
	if len(p.Listen[session.RoleSubmissions]) > 0 && len(p.TLS.Certs) == 0 {
		s.all.Add(s.Invalid(portSettings[session.RoleSubmissions], "needs TLSCERT", nil))
	}
	return p
}

// beside reads a list of files; their paths begin beside zmailer.conf.
func (s *settings) beside(name string) (files []string) {
	for _, file := range s.List(name) {
		if path := s.Path(file); path != "" && !filepath.IsAbs(file) {
			file = path
		}
		files = append(files, file)
	}
	return files
}

// CheckListen reports the first address that is not host:port.
func CheckListen(addrs []string) error {
	for _, a := range addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return errors.New(a + " is not host:port, like 127.0.0.1:2525 or [::1]:2525")
		}
	}
	return nil
}

// loopbackNets are the networks of this machine.
var loopbackNets = []string{"127.0.0.0/8", "::1/128"}

// nets reads a setting of networks and single addresses; without it, def.
func (s *settings) nets(name string, def []string) (nets []netip.Prefix) {
	list := s.List(name)
	if len(list) == 0 {
		list = def
	}
	for _, text := range list {
		n, err := config.ParseNet(text)
		s.use(name, err)
		if err == nil {
			nets = append(nets, n)
		}
	}
	return nets
}

func (s *settings) access() policy.Config {
	return policy.Config{
		Dir: s.Dir, LocalNamesFile: s.Path("localnames"),
		Domains: s.domains(), LocalNames: s.sources("LOCALNAMES"), SenderLogin: s.sources("SENDERLOGIN"), RateLimits: s.sources("RATELIMITS"),
		HeaderFrom: s.headerFrom(),
		Source:     table.Options{Timeout: get(s, s.Duration, "LOOKUPTIMEOUT", table.DefaultTimeout), Keep: get(s, s.Duration, "LOOKUPKEEP", table.DefaultTimeout)},
		Subaddress: s.subaddress(),
		RelayNets:  s.nets("RELAYNETS", loopbackNets), ETRNNets: s.nets("ETRNNETS", loopbackNets),
		RcptCheck: s.rcptCheck(), Probe: s.probe(),
		Resolver: s.String("RESOLVER", ""), DNSBL: s.dnsbl(), Greylist: s.greylist(),
	}
}

// subaddress returns the characters that part user and tag; the router checks them.
func (s *settings) subaddress() string {
	if chars := s.Text("SUBADDRESS", "+"); chars != "off" {
		return chars
	}
	return ""
}

// domains are the sources of the virtual and relay domains.
func (s *settings) domains() (list []policy.Domains) {
	for _, kind := range []text.Kind{text.VirtualAliasDomains, text.VirtualMailboxDomains, text.RelayDomains} {
		if names := s.sources(strings.ToUpper(string(kind))); len(names) > 0 {
			list = append(list, policy.Domains{Kind: kind, Sources: names})
		}
	}
	return list
}

// dnsbl reads which DNS lists are asked.
func (s *settings) dnsbl() policy.DNSBL {
	d := policy.DNSBL{
		Threshold: get(s, s.Int, "DNSBL_THRESHOLD", 1), Enforce: s.String("DNSBL_ACTION", "enforce") == "enforce",
		Timeout: get(s, s.Duration, "DNSBL_TIMEOUT", access.DefaultListTime),
	}
	for _, text := range s.List("DNSBL_SITES") {
		site, err := dnslist.ParseSite(text)
		s.use("DNSBL_SITES", err)
		d.Sites = append(d.Sites, site)
	}
	return d
}

// greylist reads which mail is deferred first.
func (s *settings) greylist() policy.Greylist {
	word := s.String("GREYLIST", "no")
	g := policy.Greylist{On: word != "no", RulesOnly: word == "rules", Config: greylist.Config{
		Delay:   get(s, s.Duration, "GREYLISTDELAY", greylist.DefaultDelay),
		Retry:   get(s, s.Duration, "GREYLISTRETRY", greylist.DefaultRetry),
		Keep:    get(s, s.Duration, "GREYLISTKEEP", greylist.DefaultKeep),
		Allow:   get(s, s.Int, "GREYLISTALLOW", greylist.DefaultAllow),
		Entries: get(s, s.Int, "GREYLISTENTRIES", greylist.DefaultEntries),
	}}
	for _, word := range s.List("GREYLISTEXEMPT") {
		switch word {
		case "spf":
			g.ExemptSPF = true
		case "dnswl":
			g.ExemptDNSWL = true
		default:
			s.use("GREYLISTEXEMPT", fmt.Errorf("%s is neither spf nor dnswl; exempt networks by a rule in access", word))
		}
	}
	if g.On && g.Delay >= g.Retry {
		s.use("GREYLISTRETRY", errors.New("it has to be longer than GREYLISTDELAY, or no message is accepted"))
	}
	return g
}

// sources splits a setting into its sources.
func (s *settings) sources(name string) []string {
	list, err := table.Split(s.String(name, ""))
	for _, source := range list {
		if err == nil {
			_, err = table.Parse(source, s.Dir)
		}
	}
	s.use(name, err)
	return list
}

func (s *settings) headerFrom() string {
	word := s.String("HEADERFROM", policy.FromAny)
	if word == policy.FromLogin && s.String("SENDERLOGIN", "") == "" {
		s.use("HEADERFROM", errors.New("login needs SENDERLOGIN: the table of the addresses that each user may use"))
	}
	return word
}

func (s *settings) rcptCheck() *policy.RcptCheck {
	word := s.String("RCPTCHECK", "yes")
	switch word {
	case "no":
		return nil
	case "yes", "all", "untrusted":
	default:
		s.use("RCPTCHECK", fmt.Errorf("%s is not one of yes, untrusted, all, no", word))
	}
	return &policy.RcptCheck{All: word == "all", Untrusted: word == "untrusted", Defer: s.String("RCPTCHECKTROUBLE", "defer") == "defer", Options: rcptcheck.Options{
		Time: get(s, s.Duration, "RCPTCHECKTIME", rcptcheck.DefaultTime),
		Keep: get(s, s.Duration, "RCPTCHECKKEEP", rcptcheck.DefaultKeep),
		Env:  []string{"POSTOFFICE=" + s.PostOffice(), "ZCONFIG=" + s.File, config.DaemonVariable + "=smtpserver"},
	}}
}

// probe reads how next hops are asked for addresses: those that ADDRESSVERIFY or a rule wants.
func (s *settings) probe() *rcptcheck.ProbeOptions {
	o, _, err := ProbeOptions(s.Config)
	s.all.Add(err)
	return &o
}

// ProbeOptions takes the settings of address verification from zmailer.conf; on reports whether
// it is used. Its errors are *config.Error.
func ProbeOptions(c *config.Config) (o rcptcheck.ProbeOptions, on bool, err error) {
	s := config.NewReader(c)
	verify, err := c.AddressVerify()
	s.Add(err)
	o = rcptcheck.ProbeOptions{
		PositiveExpire:  s.Duration("ADDRESSVERIFYPOSITIVEEXPIRE", rcptcheck.DefaultPositiveExpire),
		PositiveRefresh: s.Duration("ADDRESSVERIFYPOSITIVEREFRESH", rcptcheck.DefaultPositiveRefresh),
		NegativeExpire:  s.Duration("ADDRESSVERIFYNEGATIVEEXPIRE", rcptcheck.DefaultNegativeExpire),
		NegativeRefresh: s.Duration("ADDRESSVERIFYNEGATIVEREFRESH", rcptcheck.DefaultNegativeRefresh),
		Wait:            s.Duration("ADDRESSVERIFYTIME", rcptcheck.DefaultProbeWait),
		Most:            s.Int("ADDRESSVERIFYENTRIES", verified.DefaultMost),
	}
	rate, err := limits.ParseRate(c.String("ADDRESSVERIFYRATE", "300/1m"))
	s.Use("ADDRESSVERIFYRATE", err)
	o.Count, o.Per = rate.Count, rate.Per
	return o, verify.On, s.Err()
}

func (s *settings) users() UsersConfig {
	u := UsersConfig{Source: s.String("AUTH", ""), Dir: s.Dir, Plaintext: get(s, s.Bool, "AUTHPLAINTEXT", false), MX: get(s, s.Bool, "AUTHMX", false)}
	if u.Source != "" {
		if err := auth.Check(u.Source); err != nil {
			s.use("AUTH", err)
			u.Source = "" // load would report it again
		}
	}
	return u
}

func (s *settings) limits() LimitsConfig {
	l := LimitsConfig{
		MaxConnections:      get(s, s.Int, "SMTPCONNECTIONS", DefaultMaxConnections),
		MaxSize:             get(s, s.Size, "MAXSIZE", 200<<20),
		MaxRecipients:       get(s, s.Int, "MAXRCPT", 10000),
		MaxRecipientsUnauth: get(s, s.Int, "MAXRCPTUNAUTH", 1000),
		Memory:              get(s, s.Size, "SMTPMEMORY", 100<<20),
		Errors:              get(s, s.Int, "SMTPERRORS", 20),
		AcceptBareLF:        s.String("SMTPBARELF", "reject") == "accept",
		Config: limits.Config{
			PerAddress: get(s, s.Int, "SMTPPERADDRESS", 50),
			MinFree:    get(s, s.Size, "MINFREE", 1<<20),
			MinFiles:   int64(get(s, s.Int, "MINFILES", 100)),
			MaxLoad:    float64(get(s, s.Int, "MAXLOAD", 0)),
			Failures:   limits.Rate{Count: 20, Per: 10 * time.Minute},
		},
	}
	for name, rate := range map[string]*limits.Rate{
		"AUTHFAILURES": &l.Failures, "SMTPCONNECTRATE": &l.Connections, "SMTPMESSAGERATE": &l.Messages, "SMTPRCPTRATE": &l.Recipients,
		"SMTPSENDERMESSAGERATE": &l.SenderMessages, "SMTPSENDERRCPTRATE": &l.SenderRecipients,
	} {
		if text := s.String(name, ""); text != "" {
			var err error
			*rate, err = limits.ParseRate(text)
			s.use(name, err)
		}
	}
	if s.String("LIMITSEXEMPT", "") != "none" {
		l.Exempt = s.nets("LIMITSEXEMPT", loopbackNets)
	}
	return l
}

func (s *settings) filters() Filters {
	f := Filters{DaemonName: s.daemonNames()}
	k := &f.Checks
	var err error
	k.SPF, k.DKIM, k.DMARC, err = checks.ParseNames(s.List("CHECKS"))
	s.use("CHECKS", err)
	k.Server, k.Timeout = s.String("RESOLVER", ""), get(s, s.Duration, "CHECKTIME", 20*time.Second)
	var base content.Milter
	base.Timeout, base.ContentTimeout = get(s, s.Duration, "MILTERTIME", 30*time.Second), get(s, s.Duration, "MILTERCONTENTTIME", 5*time.Minute)
	base.Trouble, err = content.ParseTrouble(s.String("MILTERTROUBLE", "tempfail"))
	s.use("MILTERTROUBLE", err)
	f.Milters, err = content.ParseMilters(s.String("MILTERS", ""), base)
	s.use("MILTERS", err)
	return f
}

// daemonNames reads MILTERDAEMONNAME: a name for all roles, and ROLE=NAME for one.
func (s *settings) daemonNames() map[session.Role]string {
	names, special := map[session.Role]string{}, map[session.Role]string{}
	for _, word := range s.List("MILTERDAEMONNAME") {
		role, name, one := strings.Cut(word, "=")
		switch {
		case !one:
			for _, r := range session.Roles() {
				names[r] = word
			}
		case !slices.Contains(session.Roles(), session.Role(role)) || name == "":
			s.use("MILTERDAEMONNAME", fmt.Errorf("%s is not ROLE=NAME with one of the roles %v", word, session.Roles()))
		default:
			special[session.Role(role)] = name
		}
	}
	maps.Copy(names, special)
	return names
}
