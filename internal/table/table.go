// Package table looks keys up in the sources that ROUTES, ALIASES, FQDNALIASES and
// LOCALNAMES name: compiled tables (db:), patterns (regexp:), servers (socket:), programs
// (exec:), combinations of them (pipemap:, unionmap:), and through the program lookup
// databases (sqlite:, pgsql:, mysql:, redis:), directories (ldap:) and web services (http:).
//
//	t, err := table.Open("db:aliases.db", table.Options{Name: "aliases", Dir: "/etc/zmailer"})
//	value, ok, err := t.Lookup(ctx, "postmaster")
//
// It owns the files that Write makes, which are whole or absent; its readers own
// nothing on disk. A reader holds one connection or child per lookup under way, a
// cache of some seconds, and nothing that survives a crash.
//
// Diagnostics: Open returns a *config.Error for a source that can never work: it is
// written wrong, its program is not there, its settings are bad. Whatever else goes
// wrong, also at the first use, is an error of Lookup: the answer is unknown now whether there is
// such a key, and its mail waits. Only an answer that the source gave whole is a "no such
// key": a dead server, a killed child, a torn file, a time limit never are.
package table

import (
	"context"
	"log/slog"
	"time"

	"zmailer/internal/run/config"
)

// Nobody is the privilege of a value whose file's owner is unknown or not trusted (M48).
const Nobody = 65534

// Value is what a table has for a key.
type Value struct {
	Text  string // as behind the key in the text form of the table
	UID   uint32 // privilege: the owner of the file it came from; Nobody where that is not known
	Where string // "db:/etc/zmailer/aliases.db:12", "socket:unix:/run/users.sock:aliases"; for operators
}

// Table is a source that is open. Many goroutines may use it.
type Table interface {
	// Lookup returns the value of a key, which is in the form that Kind compares. ok is
	// false if there is surely no such key. An error means that the answer is unknown now.
	Lookup(ctx context.Context, key string) (v Value, ok bool, err error)
	Close() error
}

// Options are what all sources have in common.
type Options struct {
	Name     string        // what the table is for: aliases, fqdnaliases, routes, localnames; its name in socketmap requests
	Dir      string        // relative paths start here: the directory of zmailer.conf
	Timeout  time.Duration // of one lookup; 0: DefaultTimeout
	Keep     time.Duration // how long answers are remembered, also "no such key"; 0: not at all
	Parallel int           // lookups at the same time; 0: DefaultParallel
	Programs string        // the directory of the program lookup; "": that of this program
	Keeper   config.Keeper // of text files, and of sources that do not answer; may be nil
	Now      func() time.Time
	Log      *slog.Logger
}

// DefaultTimeout is the time limit of a lookup.
const DefaultTimeout = 5 * time.Second

// DefaultParallel is how many lookups one source is asked for at the same time.
const DefaultParallel = 32

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}
