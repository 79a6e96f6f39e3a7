// Package router is the stage between router/ and queue/ with transport/: it claims
// each accepted message, has package route decide where its recipients go, writes
// that as a work specification, and hands both files to the scheduler.
//
// It owns a message from the claim, router/I-P, until the hand-over; the header
// lines that it puts on top; and the work file router/..I-P. The message's own header and
// body are passed on byte for byte.
//
// What survives a crash: everything. A claim of a dead router is given back and
// routed again from the start; the two renames of a hand-over are finished or
// undone (postoffice.RouterQueue.Recover, at every start and every poll).
//
// Diagnostics: RouteOne returns nil when the message has left router/ in an orderly
// way: to queue/, to deferred/ (a lookup failed; it is tried again by Config.Resubmit), to
// freezer/ (a policy holds it), or to postman/ (its envelope is broken, or it has crashed too
// many routers; there is no other copy).
// postoffice.ErrGone: another router has it. ErrPanic: it has made this one panic and
// is in router/ again, to be tried after all others. Any other error is the disk's or the
// administrator's; the message is in router/ again. Unusable settings and tables are *config.Error, exit code 78.
package router

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"zmailer/internal/disk/fenced"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/router/route"
)

// Config says how to route.
type Config struct {
	route.Config
	PostOffice string // directory
	HashLevels int    // of queue/ and transport/
	Strict     bool   // SYNC=strict
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
	// Loaded is called when all tables were read. May be nil.
	Loaded func()
	// Hangup asks for the settings to be read again, by Reread; Follow is notified of what came of
	// it. May be nil.
	Hangup <-chan os.Signal
	Reread func() (Config, error)
	Follow Follower
	// Lease is that of this machine in a cluster; nil: it is in none.
	Lease *lease.Page
	// Ledger is called for each message that is handed over. Run makes one; nil: none.
	Ledger *ledger.Journal
}

const (
	defaultWorkers = 2
	defaultPoll    = 15 * time.Second
	defaultAging   = time.Hour
)

// ConfigFrom takes the settings that concern this stage from zmailer.conf. Its error joins an
// *config.Error for each setting that cannot be used.
func ConfigFrom(c *config.Config) (Config, error) {
	s := config.NewReader(c)
	routing, err := route.ConfigFrom(c)
	s.Add(err)
	out := Config{
		Config: routing, PostOffice: c.PostOffice(), Strict: c.String("SYNC", "normal") == "strict",
		HashLevels: s.Int("HASHLEVELS", 0), Workers: s.Int("ROUTERWORKERS", defaultWorkers), Poll: s.Duration("ROUTERPOLL", defaultPoll),
		MaxSize: s.Size("MAXSIZE", 200<<20), Tries: s.Int("ROUTERTRIES", postoffice.DefaultTries),
		Aging: s.Duration("ROUTERAGING", defaultAging), PublicKeep: s.Duration("PUBLICKEEP", postoffice.DefaultPublicKeep),
		PostmanKeep: s.Duration("POSTMANKEEP", postoffice.DefaultPostmanKeep),
	}
	out.Resubmit, err = c.Resubmission()
	s.Add(err)
	out.RouterDirs, err = postoffice.ParseRouterDirs(c.List("ROUTERDIRS"))
	s.Use("ROUTERDIRS", err)
	out.Metrics, out.Lease = metrics.New("router", s.Metrics("router")), lease.Use(s)
	return out, s.Err()
}

// ErrPanic means that routing a message ended in a panic, which was caught.
var ErrPanic = errors.New("the router panicked on it")

// Router routes the messages of one postoffice. It may be used by many goroutines.
type Router struct {
	c      Config
	po     *postoffice.PostOffice
	owner  *postoffice.Owner
	engine *route.Engine
	base   context.Context // of the lookups of messages that no worker has: done when the router stops
	meters meters

	mu   sync.Mutex
	held []*postoffice.Claim // could not be given back: tried again
	// sweptAside is when the set-aside areas were last swept.
	sweptAside time.Time
	resubmits  resubmits
	reported   map[finding]struct{} // by recovery, and not repeated
}

// New takes an owner number in the postoffice and reads the tables.
func New(p *postoffice.PostOffice, c Config) (r *Router, err error) {
	c.setDefaults()
	c.Log = c.Metrics.Log(c.Log)
	r = &Router{c: c, po: p, base: context.Background(), meters: newMeters(c.Metrics), reported: map[finding]struct{}{}}
	if r.engine, err = route.New(p, c.Config); err != nil {
		return nil, err
	}
	if c.Loaded != nil {
		c.Loaded()
	}
	if r.owner, err = p.Owners.Take("router"); err != nil {
		return nil, errors.Join(fmt.Errorf("start router: %w", err), r.engine.Close())
	}
	p.OnRenumber(c.Ledger.Moved)
	p.Submissions.Limit(c.MaxSize)
	return r, nil
}

// setDefaults fills in what c leaves open.
func (c *Config) setDefaults() {
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
}

// Close gives the owner number back. Claims still held are stale from now on.
func (r *Router) Close() error {
	r.resubmits.wait()
	r.releaseHeld()
	return errors.Join(r.engine.Close(), r.owner.Release())
}

func openPostOffice(c Config) (*postoffice.PostOffice, error) {
	p, err := postoffice.OpenLeased(c.PostOffice, c.HashLevels, c.Strict, c.Lease, fenced.Names)
	if errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) || errors.Is(err, fs.ErrNotExist) {
		return nil, &config.Error{File: c.PostOffice, Reason: "POSTOFFICE cannot be used", Err: err}
	}
	return p, err
}
