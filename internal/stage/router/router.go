// Package router is the stage between router/ and queue/ with transport/: it claims
// each accepted message, decides by package rules where its recipients go, writes
// that as a work specification, and hands both files to the scheduler.
//
// It owns a message from the claim, router/I-P, until the hand-over; the header
// lines that it puts on top; and the work file router/..I-P. What stands below, the
// message's own header and body, goes on byte for byte.
//
// What survives a crash: everything. A claim of a dead router is given back and
// routed again from the start; the two renames of a hand-over are finished or
// undone (postoffice.RecoverRouter, at every start and every poll).
//
// Diagnostics: RouteOne returns nil when the message has left router/ in an orderly
// way: to queue/, to deferred/ (a lookup failed; it is tried again by Config.Resubmit), or to postman/
// (its envelope is broken, or it has made too many routers end; the only copy).
// postoffice.ErrGone: another router has it. ErrPanic: it has made this one panic and
// is in router/ again, to be tried after all others. Any other error is the disk's or the administrator's; the message is in
// router/ again. Unusable settings and tables are *config.Error, exit code 78.
package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/metrics"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
)

// Config says how to route.
type Config struct {
	PostOffice string // directory
	HashLevels int    // of queue/ and transport/
	Strict     bool   // SYNC=strict
	Hostname   string // for Received, Message-ID and addresses without a domain
	Rules      rules.Config
	// Masquerade are the sources of MASQUERADE; none: the file masquerade, if it is there.
	Masquerade                []string
	LookupTimeout, LookupKeep time.Duration
	LookupParallel            int // lookups of one source at the same time; 0: table's default
	// Trusted are the uids whose files' privileged envelope lines are believed,
	// beside root's and our own.
	Trusted []uint32
	// OwnSenders: of other users only their own address is taken as the sender
	// (SENDERCHECK=owner).
	OwnSenders bool
	// PostmanCopy: a message whose header is broken, or that has gone in circles,
	// also leaves a copy in postman/.
	PostmanCopy bool
	// RouterDirs are further directories beside router/, each scanned when those before
	// it are empty (M3). Run makes them.
	RouterDirs []string
	// Aging is how long a message waits in such a directory before it gets each fourth
	// turn; 0: an hour.
	Aging time.Duration
	// MaxSize bounds the files that users submit, bytes; 0: they are of any size.
	MaxSize int64
	// Unsorted: messages are taken in the directory's order, which spares a stat(2)
	// for each; else oldest first (M4).
	Unsorted bool
	// Once: route what is there and return.
	Once bool
	// StrictStart: do not start while unfinished files are in public/ (A7).
	StrictStart bool
	Workers     int           // messages at the same time; 0: 2
	Poll        time.Duration // between two looks at the whole directory; 0: 15 s
	// Tries is how many routers a message may end, by their death or by a panic,
	// before it is put into postman/; 0: 5.
	Tries int
	// Resubmit is when messages in deferred/ are tried again; the zero value: never.
	Resubmit config.Resubmission
	// PublicKeep is how long another program's unfinished file stays in public/ before
	// it goes to quarantine/; 0: for ever.
	PublicKeep time.Duration
	// PostmanKeep is how long a copy for the postmaster stays in postman/; 0: for ever.
	PostmanKeep time.Duration
	// PolicySteps and PolicyTime bound each call of router.star; 0: policy's defaults.
	PolicySteps int
	PolicyTime  time.Duration
	Log         *slog.Logger      // nil: discarded
	Service     *sdnotify.Service // is told how we are; nil: nobody is
	Now         func() time.Time
	// Metrics counts; nil: nobody wants that.
	Metrics *metrics.Set
	// Ledger is told of each message that is handed over. Run makes one; nil: nobody is.
	Ledger *ledger.Journal
}

const (
	defaultWorkers = 2
	defaultPoll    = 15 * time.Second
	defaultAging   = time.Hour
)

// ConfigFrom takes the settings that concern this stage from zmailer.conf. Its
// errors are *config.Error.
func ConfigFrom(c *config.Config) (Config, error) {
	out := Config{PostOffice: c.PostOffice(), Strict: c.String("SYNC", "normal") == "strict"}
	var err error
	if out.Hostname, err = c.Hostname(); err != nil {
		return Config{}, err
	}
	if out.HashLevels, err = c.Int("HASHLEVELS", 0); err != nil {
		return Config{}, err
	}
	if out.Workers, err = c.Int("ROUTERWORKERS", defaultWorkers); err != nil {
		return Config{}, err
	}
	if out.Poll, err = c.Duration("ROUTERPOLL", defaultPoll); err != nil {
		return Config{}, err
	}
	if out.MaxSize, err = c.Size("MAXSIZE", 200<<20); err != nil {
		return Config{}, err
	}
	if out.Tries, err = c.Int("ROUTERTRIES", postoffice.DefaultTries); err != nil {
		return Config{}, err
	}
	if out.Resubmit, err = c.Resubmission(); err != nil {
		return Config{}, err
	}
	if out.RouterDirs, err = postoffice.ParseRouterDirs(c.List("ROUTERDIRS")); err != nil {
		return Config{}, c.Invalid("ROUTERDIRS", "cannot be used", err)
	}
	if out.Aging, err = c.Duration("ROUTERAGING", defaultAging); err != nil {
		return Config{}, err
	}
	if out.PublicKeep, err = c.Duration("PUBLICKEEP", postoffice.DefaultPublicKeep); err != nil {
		return Config{}, err
	}
	if out.PostmanKeep, err = c.Duration("POSTMANKEEP", postoffice.DefaultPostmanKeep); err != nil {
		return Config{}, err
	}
	if out.PostmanCopy, err = c.Bool("POSTMANCOPY", false); err != nil {
		return Config{}, err
	}
	if out.Trusted, err = uidsOf(c.List("TRUSTED")); err != nil {
		return Config{}, c.Invalid("TRUSTED", "cannot be used", err)
	}
	out.OwnSenders = c.String("SENDERCHECK", "any") == "owner"
	if out.Masquerade, err = table.Split(c.String("MASQUERADE", "")); err != nil {
		return Config{}, c.Invalid("MASQUERADE", "cannot be used", err)
	}
	if out.LookupTimeout, err = c.Duration("LOOKUPTIMEOUT", table.DefaultTimeout); err != nil {
		return Config{}, err
	}
	if out.LookupKeep, err = c.Duration("LOOKUPKEEP", table.DefaultTimeout); err != nil {
		return Config{}, err
	}
	if out.LookupParallel, err = c.Int("LOOKUPPARALLEL", table.DefaultParallel); err != nil {
		return Config{}, err
	}
	if out.PolicySteps, err = c.Int("POLICYSTEPS", policy.DefaultSteps); err != nil {
		return Config{}, err
	}
	if out.PolicyTime, err = c.Duration("POLICYTIME", policy.DefaultTime); err != nil {
		return Config{}, err
	}
	place, err := c.Metrics("router")
	if err != nil {
		return Config{}, err
	}
	out.Metrics = metrics.New("router", place)
	out.Rules, err = rulesFrom(c)
	out.Rules.Source = table.Options{Timeout: out.LookupTimeout, Keep: out.LookupKeep, Parallel: out.LookupParallel}
	return out, err
}

// ErrPanic means that routing a message ended in a panic, which was caught.
var ErrPanic = errors.New("the router panicked on it")

// Router routes the messages of one postoffice. It may be used by many goroutines.
type Router struct {
	c       Config
	po      *postoffice.PostOffice
	owner   *postoffice.Owner
	rules   *rules.Rules
	logins  *logins
	self    uint32          // the uid that routers run as
	base    context.Context // of the lookups of messages that no worker has: done when the router stops
	permits table.Permits   // of lookups that are made ahead
	idle    sync.Pool       // of *worker
	meters  meters

	masquerade  *masquerade
	headerRules *config.File[*headerRules] // nil: no directory to have some in
	policy      *policy.Policy
	play        bool // somebody asks what would be: nothing is counted

	large sync.Mutex // held by the worker that writes very many recipients as they are found

	mu   sync.Mutex
	held []*postoffice.Claim // could not be given back: tried again
	// sweptAside is when what is put aside was looked through.
	sweptAside time.Time
	resubmits  resubmits
	told       map[told]struct{} // what recovery found and cannot mend was said
}

// New takes an owner number in the postoffice and reads the tables.
func New(p *postoffice.PostOffice, c Config) (*Router, error) {
	r, err := assemble(c)
	if err != nil {
		return nil, err
	}
	if r.owner, err = p.Owners.Take("router"); err != nil {
		return nil, fmt.Errorf("start router: %w", err)
	}
	r.po = p
	p.OnRenumber(c.Ledger.Moved)
	p.Submissions.Limit(c.MaxSize)
	return r, nil
}

// assemble reads the tables. Its router has no postoffice: it can decide, and not act.
func assemble(c Config) (*Router, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Workers <= 0 {
		c.Workers = defaultWorkers
	}
	if c.Poll <= 0 {
		c.Poll = defaultPoll
	}
	if c.Aging <= 0 {
		c.Aging = defaultAging
	}
	if c.Tries <= 0 {
		c.Tries = postoffice.DefaultTries
	}
	c.Log = c.Metrics.Log(c.Log)
	c.Rules.Hostname, c.Rules.Now, c.Rules.Log = c.Hostname, c.Now, c.Log
	tables, err := rules.New(c.Rules)
	if err != nil {
		return nil, err
	}
	r := &Router{c: c, base: context.Background(), permits: permitsOf(c.Rules.Source), rules: tables, logins: newLogins(c.Now), meters: newMeters(c.Metrics), self: uint32(os.Geteuid()), told: map[told]struct{}{}}
	if r.masquerade, err = newMasquerade(c); err == nil {
		r.headerRules, err = openHeaderRules(c)
	}
	if err == nil {
		r.policy, err = policy.New(policyConfig(c))
	}
	if err != nil {
		return nil, errors.Join(err, r.closeTables())
	}
	r.idle.New = func() any { return &worker{r: r} }
	return r, nil
}

// permitsOf are a part of the lookups that one source is asked for at the same time: the
// others are for messages whose turn it is.
func permitsOf(o table.Options) table.Permits {
	return table.NewPermits(cmp.Or(max(o.Parallel, 0), table.DefaultParallel) * 3 / 4)
}

// Close gives the owner number back. Claims still held are stale from now on.
func (r *Router) Close() error {
	r.resubmits.wait()
	r.giveBackHeld()
	return errors.Join(r.closeTables(), r.owner.Release())
}

// closeTables ends the connections and children of the tables.
func (r *Router) closeTables() error {
	return errors.Join(r.rules.Close(), r.masquerade.close(), r.policy.Close())
}

func openPostOffice(c Config) (*postoffice.PostOffice, error) {
	p, err := postoffice.OpenDir(c.PostOffice, c.HashLevels, c.Strict)
	if errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) || errors.Is(err, fs.ErrNotExist) {
		return nil, &config.Error{File: c.PostOffice, Reason: "POSTOFFICE cannot be used", Err: err}
	}
	return p, err
}

// isDaemon reports whether a uid is one that daemons run as: in their files it stands who
// has submitted a message.
func (r *Router) isDaemon(uid uint32) bool {
	return uid == 0 || uid == r.self || r.po != nil && uid == r.po.Owner()
}

// trusts tells whether the privileged lines of a uid's message files are believed.
func (r *Router) trusts(uid uint32) bool {
	if uid == 0 || uid == r.self {
		return true
	}
	for _, u := range r.c.Trusted {
		if u == uid {
			return true
		}
	}
	return false
}
