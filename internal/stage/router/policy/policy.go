// Package policy runs router.star, the postmaster's rules as a program: a file in
// Starlark beside zmailer.conf whose functions message(m) and recipient(m, r) may decide
// before the tables are asked (docs/router.star.md).
//
// It owns nothing on disk and only reads: router.star, the files that it loads, and the
// tables that it declares. A program is compiled and frozen once and shared by all
// workers; when one of its files changes it is read again as a whole, and one that cannot
// be used is refused while the one before stays. Counters of rate() are held in memory:
// a restart forgets them, and each router process has its own. Nothing else survives a
// crash, or needs to.
//
// A call is bounded in steps, time and memory (limits.go).
//
// Diagnostics: New gives a *config.Error with file, line and column; the program exits
// with 78. *Error is a program that failed on a message, or a lookup that could not
// be made: the message must wait, nothing is decided.
package policy

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/table"
)

// File is the name of the program beside zmailer.conf.
const File = "router.star"

// Config locates the program and limits it.
type Config struct {
	Dir      string // of zmailer.conf; "": there is no program
	Hostname string
	Steps    int           // 0: DefaultSteps
	Time     time.Duration // lookups included; 0: DefaultTime
	Source   table.Options // of the tables: time limits
	Keeper   config.Keeper // of its files and text tables; may be nil
	Now      func() time.Time
	Log      *slog.Logger

	grace time.Duration       // 0: grace
	exit  func(reason string) // nil: exitProcess
}

const (
	period  = time.Second            // how often files are looked at, at most
	again   = 10 * time.Second       // how long files that cannot be used are not read again
	settled = 100 * time.Millisecond // how old a change must be before it is believed whole
)

// Policy is the program with its files. It may be used by many goroutines.
type Policy struct {
	c     Config
	rates *rates

	mu     sync.Mutex
	cur    *Program // nil: there is none
	next   time.Time
	seen   map[string]signature
	gone   bool      // router.star was not there at the last look
	failed string    // why the files as they are now cannot be used; logged once
	retry  time.Time // when such files are read again: what they lacked may be there
}

// New reads the program. One that cannot be used is a *config.Error; none at all is no
// error.
func New(c Config) (*Policy, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Steps <= 0 {
		c.Steps = DefaultSteps
	}
	if c.Time <= 0 {
		c.Time = DefaultTime
	}
	if c.exit == nil {
		c.grace, c.exit = grace, c.exitProcess
	}
	c.Source.Dir, c.Source.Now, c.Source.Log = c.Dir, c.Now, c.Log
	p := &Policy{c: c, rates: newRates()}
	if c.Dir == "" {
		return p, nil
	}
	var err error
	if p.cur, p.seen, err = compile(c); err != nil {
		p.failed, p.retry = err.Error(), c.Now().Add(again)
		if p.cur = p.useKept(err); p.cur == nil {
			return nil, err
		}
	}
	p.next = c.Now().Add(period)
	return p, nil
}

// useKept returns the program as it was saved when it could be used last; nil: there is none.
func (p *Policy) useKept(reason error) *Program {
	main := filepath.Join(p.c.Dir, File)
	if p.c.Keeper == nil {
		return nil
	}
	var prog *Program
	kept := p.c.Keeper.Last(main)
	if kept != nil {
		prog = compileKept(p.c, kept.Text)
	}
	p.c.Keeper.Bad(main, reason, prog != nil)
	if prog != nil {
		p.c.Log.Error("policy-refused", "file", main, "reason", reason, "kept", "the copy of "+kept.Time.UTC().Format(time.RFC3339))
	}
	return prog
}

// Close ends the connections and children of the tables. No program may be in use.
func (p *Policy) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.cur.Release()
	p.cur = nil
	return err
}

// Current returns the program as it is now, nil if there is none; it is to be released. It
// looks at the files at most once a second.
func (p *Policy) Current() *Program {
	if p == nil || p.c.Dir == "" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.c.Now(); now.Sub(p.next) >= 0 || p.next.Sub(now) > period {
		p.next = now.Add(period)
		p.look(now)
	}
	if p.cur != nil {
		p.cur.refs.Add(1)
	}
	return p.cur
}

// look reads the program again if one of its files has changed.
func (p *Policy) look(now time.Time) {
	main := filepath.Join(p.c.Dir, File)
	changed := false
	for path, was := range p.seen {
		is, age := sign(path, now)
		if is == was {
			continue
		}
		if is.exists && age >= 0 && age < settled {
			p.next = now.Add(settled) // somebody is writing it
			return
		}
		if path == main && !is.exists && !p.gone {
			// It may be about to be replaced.
			p.gone = true
			return
		}
		changed = true
	}
	p.gone = false
	if !changed && (p.failed == "" || now.Before(p.retry)) {
		return
	}
	prog, seen, err := compile(p.c)
	// Of one that cannot be used, the same files are not read again.
	p.seen = seen
	if err != nil {
		p.retry = now.Add(again)
		if p.c.Keeper != nil && err.Error() != p.failed {
			p.c.Keeper.Bad(main, err, true)
		}
		if err.Error() != p.failed {
			p.failed = err.Error()
			p.c.Log.Error("policy-refused", "file", main, "reason", err, "kept", "the program as it was read before")
		}
		return
	}
	p.failed = ""
	if err := p.cur.Release(); err != nil {
		p.c.Log.Warn("policy-tables", "file", main, "reason", err)
	}
	p.cur = prog
	p.c.Log.Info("policy-read", "file", main, "present", prog != nil)
}

// signature identifies a state of a file; the zero value: it is not there.
type signature struct {
	exists   bool
	dev, ino uint64
	size     int64
	mtime    syscall.Timespec
	mode     uint32
}

// sign returns a file's signature and its age.
func sign(path string, now time.Time) (signature, time.Duration) {
	info, err := os.Stat(path)
	if err != nil {
		// One that cannot be looked at is there, in another state.
		return signature{exists: !errors.Is(err, fs.ErrNotExist)}, settled
	}
	st := info.Sys().(*syscall.Stat_t)
	return signature{true, uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Mode}, now.Sub(info.ModTime())
}

// Env is what of the router a program may ask while it decides about one message.
type Env struct {
	// IsLocal reports whether a domain is ours.
	IsLocal func(ctx context.Context, domain string) (bool, error)
	// Resolve gives the places where the tables send an address.
	Resolve func(ctx context.Context, address string, give func(channel, host, user string) error) error
	// Play: nothing is to be counted or logged; somebody asks what would happen.
	Play bool
	// Waiter is notified before a lookup that has to be waited for; nil: no one is.
	Waiter table.Waiter
}
