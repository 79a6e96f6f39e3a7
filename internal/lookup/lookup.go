// Package lookup answers lookups in databases, directories and web services: the program
// lookup, which the router and smtpserver run as a child and ask on its standard input by
// the socketmap protocol. The libraries are linked into this program alone, so that neither
// their memory nor their crashes are the daemons'. Its own memory is limited (LimitMemory): a
// server that answers without end ends it, and its caller starts another.
//
// It owns nothing on disk.
//
// Diagnostics: Run returns a *config.Error for a source or settings that cannot be used
// when it starts, and an error if the other side does not speak the protocol. Whatever
// keeps it from an answer is answered with TEMP or TIMEOUT and a reason; NOTFOUND is said
// only if what was asked answered whole and had nothing.
package lookup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/lookup/ldap"
	"zmailer/internal/lookup/mysql"
	"zmailer/internal/lookup/pam"
	"zmailer/internal/lookup/pgsql"
	"zmailer/internal/lookup/redis"
	"zmailer/internal/lookup/settings"
	"zmailer/internal/lookup/sqlite"
	"zmailer/internal/lookup/web"
	"zmailer/internal/run/config"
	"zmailer/internal/wire/socketmap"
)

// Config names the source and the streams of requests and answers.
type Config struct {
	Source  string        // SCHEME:FILE, of settings.Schemes; the file has the rest
	Timeout time.Duration // of one lookup
	In      io.Reader
	Out     io.Writer
	Open    settings.Open // of the file and those of passwords; nil: as this process may
	Log     *slog.Logger
}

// PAM names the service of PAM that checks a password.
type PAM = pam.Config

// CheckPassword checks the one password on its input.
func CheckPassword(c PAM) error { return pam.Run(c) }

type database interface {
	// Lookup returns a key's value. ok is false only if there is surely no such key.
	Lookup(ctx context.Context, key string) (text string, ok bool, err error)
	Close() error
}

// maxMemory is how much memory the program may have for its data.
const maxMemory = 512 << 20

// LimitMemory limits the memory of this process, which is to be the program lookup.
func LimitMemory() error {
	debug.SetMemoryLimit(maxMemory / 2)
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: maxMemory, Max: maxMemory}); err != nil {
		return fmt.Errorf("limit the memory to %d bytes: %w", maxMemory, err)
	}
	return nil
}

// Run answers until the other side ends or ctx is done.
func Run(ctx context.Context, c Config) error {
	scheme, path, _ := strings.Cut(c.Source, ":")
	s := &server{c: c, scheme: scheme, path: path}
	if err := s.load(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- socketmap.Serve(c.In, c.Out, func(_, key string) socketmap.Reply { return s.answer(ctx, key) })
	}()
	select {
	case err := <-ended:
		return errors.Join(err, s.db.Close())
	case <-ctx.Done(): // what reads waits for the other side, and ends with the process
		return nil
	}
}

// server is a database with the settings that it was opened by.
type server struct {
	c            Config
	scheme, path string
	db           database
	read         stamp // of the settings
}

// stamp identifies a state of a file.
type stamp struct {
	ino   uint64
	size  int64
	mtime time.Time
}

func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	return stamp{info.Sys().(*syscall.Stat_t).Ino, info.Size(), info.ModTime()}, nil
}

// load reads the settings and opens what they name. Nothing is asked yet.
func (s *server) load() error {
	read, err := stampOf(s.path)
	if err != nil {
		read = stamp{} // the settings' error says it better
	}
	db, err := s.open()
	if err != nil {
		return err
	}
	if s.db != nil {
		s.db.Close()
	}
	s.db, s.read = db, read
	return nil
}

// open reads the settings.
func (s *server) open() (database, error) {
	opened := func(db database, err error) (database, error) {
		if err != nil {
			return nil, &config.Error{File: s.path, Reason: "cannot be used", Err: err}
		}
		return db, nil
	}
	switch s.scheme {
	case "sqlite":
		c, err := settings.ReadSQLite(s.c.Open, s.path)
		if err != nil {
			return nil, err
		}
		return sqlite.Open(c, s.c.Timeout), nil
	case "ldap":
		c, err := settings.ReadLDAP(s.c.Open, s.path)
		if err != nil {
			return nil, err
		}
		return opened(ldap.Open(c, s.c.Timeout))
	case "pgsql":
		c, err := settings.ReadSQL(s.c.Open, s.scheme, s.path)
		if err != nil {
			return nil, err
		}
		return opened(pgsql.Open(c, s.c.Timeout))
	case "mysql":
		c, err := settings.ReadSQL(s.c.Open, s.scheme, s.path)
		if err != nil {
			return nil, err
		}
		return opened(mysql.Open(c, s.c.Timeout))
	case "redis":
		c, err := settings.ReadRedis(s.c.Open, s.path)
		if err != nil {
			return nil, err
		}
		return opened(redis.Open(c, s.c.Timeout))
	case "http":
		c, err := settings.ReadHTTP(s.c.Open, s.path)
		if err != nil {
			return nil, err
		}
		return opened(web.Open(c, s.c.Timeout))
	}
	return nil, &config.Error{File: s.c.Source, Reason: "want FILE behind one of " + strings.Join(settings.Schemes(), ": ") + ":"}
}

func (s *server) answer(ctx context.Context, key string) socketmap.Reply {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	// Settings that were changed hold from the next question.
	if now, err := stampOf(s.path); err == nil && now != s.read {
		if err := s.load(); err != nil {
			return s.trouble(socketmap.Temp, key, err)
		}
		s.c.Log.Info("settings-read", "file", s.path)
	}
	text, ok, err := s.db.Lookup(ctx, key)
	switch {
	case err != nil && ctx.Err() != nil:
		return s.trouble(socketmap.Timeout, key, fmt.Errorf("no answer within %v: %w", s.c.Timeout, err))
	case err != nil:
		return s.trouble(socketmap.Temp, key, err)
	case !ok:
		return socketmap.Reply{Status: socketmap.NotFound}
	}
	return socketmap.Reply{Status: socketmap.OK, Text: text}
}

func (s *server) trouble(status socketmap.Status, key string, err error) socketmap.Reply {
	s.c.Log.Debug("lookup-failed", "source", s.c.Source, "key", key, "reason", err)
	return socketmap.Reply{Status: status, Text: strings.ReplaceAll(err.Error(), "\n", " ")}
}
