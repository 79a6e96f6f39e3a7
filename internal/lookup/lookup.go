// Package lookup answers lookups in a SQLite file or an LDAP directory: the program
// lookup, which the router runs as a child and asks on its standard input by the socketmap
// protocol. The two libraries are linked into this program alone, so that neither their
// memory nor their crashes are the router's.
//
// It owns nothing on disk and changes nothing, in the database neither.
//
// Diagnostics: Run returns a *config.Error for a source or settings that cannot be used
// when it starts, and an error if the other side does not speak the protocol. Whatever
// keeps it from an answer is answered with TEMP or TIMEOUT and a reason; NOTFOUND is said
// only if the database or the directory was asked, answered whole and had nothing.
package lookup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/lookup/ldap"
	"zmailer/internal/lookup/pam"
	"zmailer/internal/lookup/settings"
	"zmailer/internal/lookup/sqlite"
	"zmailer/internal/run/config"
	"zmailer/internal/wire/socketmap"
)

// Config names the source and the streams of requests and answers.
type Config struct {
	Source  string        // sqlite:FILE or ldap:FILE; the file has the rest
	Timeout time.Duration // of one lookup
	In      io.Reader
	Out     io.Writer
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
	var db database
	switch s.scheme {
	case "sqlite":
		c, err := settings.ReadSQLite(s.path)
		if err != nil {
			return err
		}
		db = sqlite.Open(c, s.c.Timeout)
	case "ldap":
		c, err := settings.ReadLDAP(s.path)
		if err != nil {
			return err
		}
		if db, err = ldap.Open(c, s.c.Timeout); err != nil {
			return &config.Error{File: s.path, Reason: "cannot be used", Err: err}
		}
	default:
		return &config.Error{File: s.c.Source, Reason: "want sqlite:FILE or ldap:FILE"}
	}
	if s.db != nil {
		s.db.Close()
	}
	s.db, s.read = db, read
	return nil
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
