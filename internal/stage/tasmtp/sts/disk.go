package sts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"zmailer/internal/disk/durable"
)

// Dir is the directory of the postoffice.
const Dir = "sts"

// drafts numbers the files that this process writes.
var drafts atomic.Uint64

// file returns the name of a domain's policy, "" for one that cannot be a file's.
func file(domain string) string {
	if domain == "" || domain[0] == '.' || strings.ContainsAny(domain, "/\x00") || len(domain) > 253 {
		return ""
	}
	return Dir + "/" + domain
}

// load reads a policy that this process or another has fetched; nil if there is none that
// can be used.
func (s *Store) load(domain string) *Policy {
	name := file(domain)
	if s.cfg.FS == nil || name == "" {
		return nil
	}
	f, err := s.cfg.FS.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 2*maxPolicy))
	if err != nil {
		return nil
	}
	p, err := decode(string(b))
	if err != nil {
		s.cfg.Log.Warn("sts-file-unusable", "file", name, "reason", err)
		return nil
	}
	p.Domain = domain
	return p
}

// encode returns a policy's file: what we know of it, and the policy.
func (p *Policy) encode() string {
	return fmt.Sprintf("id: %s\nfetched: %s\nuntil: %s\n%s\n", p.ID, p.Fetched.UTC().Format(time.RFC3339Nano),
		p.Until().UTC().Format(time.RFC3339), strings.Join(p.Lines, "\n"))
}

func decode(text string) (*Policy, error) {
	p, err := Parse(text)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "id":
			p.ID = value
		case "fetched":
			if p.Fetched, err = time.Parse(time.RFC3339Nano, value); err != nil {
				return nil, err
			}
		}
	}
	if !isID(p.ID) || p.Fetched.IsZero() {
		return nil, errors.New("it has no id, or no time when it was fetched")
	}
	return p, nil
}

// keep writes a policy. One that cannot be written counts for this process.
func (s *Store) keep(p *Policy) {
	name := file(p.Domain)
	if s.cfg.FS == nil || s.cfg.Look || name == "" {
		return
	}
	if err := s.write(name, p.encode()); err != nil {
		s.cfg.Log.Warn("sts-not-kept", "domain", p.Domain, "reason", err)
	}
}

func (s *Store) write(name, text string) (err error) {
	draft := fmt.Sprintf("%s/.%d-%d", Dir, os.Getpid(), drafts.Add(1))
	f, err := s.cfg.FS.Open(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.cfg.FS.Remove(draft))
		}
	}()
	_, werr := f.Write([]byte(text))
	if err := errors.Join(werr, f.Sync(), f.Close()); err != nil {
		return err
	}
	// Crash: the old policy or the new one; a draft that is left is swept.
	return s.cfg.FS.Rename(draft, name)
}

// Sweep removes policies whose time is over and unfinished drafts.
func Sweep(disk durable.FS, now time.Time) error {
	entries, err := disk.ReadDir(Dir)
	if err != nil {
		return fmt.Errorf("sweep %s: %w", Dir, err)
	}
	s := New(Config{FS: disk})
	var failed error
	for _, e := range entries {
		name := Dir + "/" + e.Name
		if e.Name[0] == '.' {
			if info, err := disk.Stat(name); err != nil || now.Sub(info.ModTime) < time.Hour {
				continue
			}
		} else if p := s.load(e.Name); p == nil || now.Before(p.Until().Add(24*time.Hour)) {
			continue
		}
		// Crash: it is there or not; both are fine.
		if err := disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
