package sign

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// maxKeys bounds the table.
const maxKeys = 100000

// Table is the file dkim: whose mail is signed with which keys.
type Table struct {
	file *config.File[map[string][]*Key]
}

// Options are what the table and its keys have in common.
type Options struct {
	Keeper config.Keeper // may be nil
	Now    func() time.Time
	Log    *slog.Logger
	// Named is called with the files of all keys whenever the table is read; may be nil.
	Named func(keys []string)
}

// Open reads the table. Its errors are *config.Error. Keys are read when they are needed:
// one that is broken must not keep other domains' mail.
func Open(path string, o Options) (*Table, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f, err := config.OpenFile(path, func(name string, text []byte) (map[string][]*Key, error) {
		all, err := parse(name, text, o)
		if err == nil && o.Named != nil {
			o.Named(files(all))
		}
		return all, err
	}, config.FileOptions{Keeper: o.Keeper, Now: o.Now, Log: o.Log})
	if err != nil {
		return nil, err
	}
	return &Table{file: f}, nil
}

// Empty reports whether no mail is signed.
func (t *Table) Empty() bool { return t == nil || len(t.file.Current()) == 0 }

// For returns the keys for mail from a domain, in A-labels: those of its own lines, else of
// the nearest domain above whose lines include the domains below. nil: it is not signed.
func (t *Table) For(domain string) []*Key {
	all := t.file.Current()
	domain = strings.ToLower(strings.TrimSuffix(domain, "."))
	if keys := all[domain]; keys != nil || domain == "" {
		return keys
	}
	for {
		if keys := all["."+domain]; keys != nil {
			return keys
		}
		_, above, found := strings.Cut(domain, ".")
		if !found {
			return nil
		}
		domain = above
	}
}

// parse reads lines of "DOMAIN SELECTOR KEYFILE [d=DOMAIN] [expire=TIME]". A domain with a
// leading dot matches itself and all names below it.
func parse(name string, text []byte, o Options) (map[string][]*Key, error) {
	all := map[string][]*Key{}
	var errs []error
	number, keys := 0, 0
	for line := range strings.Lines(string(text)) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		k, err := parseLine(words, filepath.Dir(name))
		if err == nil && clash(all[k.Pattern], k) {
			err = errors.New("the selector is there for this domain already")
		}
		if err != nil {
			errs = append(errs, &config.Error{File: name, Line: number, Reason: err.Error()})
			continue
		}
		k.Line, k.o = number, o
		all[k.Pattern] = append(all[k.Pattern], k)
		if keys++; keys > maxKeys {
			return nil, &config.Error{File: name, Line: number, Reason: fmt.Sprintf("more than %d lines", maxKeys)}
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}

// files returns the files of keys.
func files(all map[string][]*Key) (paths []string) {
	for _, keys := range all {
		for _, k := range keys {
			paths = append(paths, k.Path)
		}
	}
	return paths
}

func clash(keys []*Key, k *Key) bool {
	for _, other := range keys {
		if other.Selector == k.Selector && other.Domain == k.Domain {
			return true
		}
	}
	return false
}

func parseLine(words []string, dir string) (*Key, error) {
	if len(words) < 3 {
		return nil, errors.New("want a domain, a selector and the file of a private key")
	}
	below, wide := strings.CutPrefix(words[0], ".")
	domain, err := asciiName(below)
	if err != nil {
		return nil, fmt.Errorf("domain %s: %w", words[0], err)
	}
	k := &Key{Pattern: domain, Domain: domain, Selector: words[1], Path: words[2]}
	if wide {
		k.Pattern = "." + domain
	}
	if _, err := asciiName(k.Selector); err != nil {
		return nil, fmt.Errorf("selector %s: %w", k.Selector, err)
	}
	if !filepath.IsAbs(k.Path) {
		k.Path = filepath.Join(dir, k.Path)
	}
	for _, option := range words[3:] {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "d":
			if k.Domain, err = asciiName(value); err != nil {
				return nil, fmt.Errorf("%s: %w", option, err)
			}
		case "expire":
			if k.Expire, err = config.ParseDuration(value); err != nil || k.Expire <= 0 {
				return nil, fmt.Errorf("%s: want a time like 14d", option)
			}
		default:
			return nil, fmt.Errorf("%s: the options are d= and expire=", option)
		}
	}
	return k, nil
}

// asciiName returns a domain in lower case A-labels.
func asciiName(s string) (string, error) {
	m := address.Mailbox{Local: "x", Domain: s}
	name, err := m.ASCIIDomain()
	if err == nil && (name == "" || name[0] == '[') {
		err = errors.New("no domain name")
	}
	return name, err
}
