// Package tlspolicy is what a postmaster wants of TLS towards other hosts: the file tls,
// one destination and its policy a line, and the same words in tls= of a clause of
// scheduler.conf.
//
// It owns nothing; a file of certificates that a policy names is read when the policy is.
//
// Diagnostics: errors of Parse are *config.Error with file and line; those of ParsePolicy
// say what is wrong with the words.
package tlspolicy

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// Level is how much a connection must have.
type Level uint8

// Levels; the zero value is the default.
const (
	May         Level = iota // TLS where it is offered, not verified; else in the clear
	None                     // never TLS
	Encrypt                  // TLS, not verified
	Verify                   // TLS with a certificate of a known authority for the right name
	Fingerprint              // TLS with one of the certificates or keys that are written down
	DANE                     // what the destination's TLSA records want, else as May (RFC 7672)
	DANEOnly                 // what its TLSA records want, and nothing without them
	STS                      // DANE, else what its MTA-STS policy wants, else as May (RFC 8461)
)

var levels = map[string]Level{
	"may": May, "none": None, "encrypt": Encrypt, "verify": Verify,
	"dane": DANE, "dane-only": DANEOnly, "sts": STS,
}

func (l Level) String() string {
	for name, level := range levels {
		if l == level {
			return name
		}
	}
	return "fingerprint"
}

// Policy is what one destination requires.
type Policy struct {
	Level Level
	// Match are the names of which the certificate must have one: "host", the server's
	// name as DNS gives it; "destination"; a name; ".name", any name below it.
	Match        []string
	Roots        *x509.CertPool // nil: the system's
	Fingerprints [][sha256.Size]byte
	Implicit     bool   // TLS begins with the connection (RFC 8314 §3.3)
	Text         string // as it was written
	Where        string // file:line, or another place
}

// Own reports whether it is the postmaster's own policy, which the sender's requests and the
// destination's records do not change.
func (p *Policy) Own() bool {
	return p.Level == Encrypt || p.Level == Verify || p.Level == Fingerprint || p.Level == DANEOnly || p.Level == None
}

// ParsePolicy reads a level and its parameters. Files are named from dir; "": their
// names must be absolute.
func ParsePolicy(text, dir string) (Policy, error) {
	p := Policy{Text: strings.Join(strings.Fields(text), " ")}
	words := strings.Fields(text)
	if len(words) == 0 {
		return p, errors.New("there is no level; it is one of none, may, encrypt, verify, fingerprint=, dane, dane-only, sts")
	}
	level, ok := levels[strings.ToLower(words[0])]
	rest := words[1:]
	if key, _, _ := strings.Cut(words[0], "="); strings.EqualFold(key, "fingerprint") {
		level, ok, rest = Fingerprint, true, words
	}
	if !ok {
		return p, fmt.Errorf("%s is no level; it is one of none, may, encrypt, verify, fingerprint=, dane, dane-only, sts", words[0])
	}
	p.Level = level
	for _, word := range rest {
		if err := p.option(word, dir); err != nil {
			return p, err
		}
	}
	if p.Implicit && (p.Level == None || p.Level == May || p.Level == DANE || p.Level == STS) {
		return p, fmt.Errorf("implicit is TLS from the first byte; %s may do without", p.Level)
	}
	return p, nil
}

func (p *Policy) option(word, dir string) error {
	key, value, has := strings.Cut(word, "=")
	switch strings.ToLower(key) {
	case "implicit":
		if has {
			return errors.New("implicit takes no parameters")
		}
		p.Implicit = true
	case "match":
		if p.Level != Verify {
			return errors.New("match= goes with verify")
		}
		for name := range strings.SplitSeq(strings.ToLower(value), ",") {
			if name = strings.TrimSuffix(name, "."); name == "" {
				return errors.New("match= names no host")
			}
			p.Match = append(p.Match, name)
		}
	case "ca":
		if p.Level != Verify {
			return errors.New("ca= goes with verify")
		}
		if !filepath.IsAbs(value) {
			if dir == "" {
				return fmt.Errorf("ca=%s: it must be a path from the root", value)
			}
			value = filepath.Join(dir, value)
		}
		pem, err := os.ReadFile(value)
		if err != nil {
			return fmt.Errorf("ca=: %w", err)
		}
		p.Roots = x509.NewCertPool()
		if !p.Roots.AppendCertsFromPEM(pem) {
			return fmt.Errorf("ca=: %s has no certificate in PEM form", value)
		}
	case "fingerprint":
		if p.Level != Fingerprint {
			return errors.New("fingerprint= is a level of its own")
		}
		for text := range strings.SplitSeq(value, ",") {
			b, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
			if err != nil || len(b) != sha256.Size {
				return fmt.Errorf("fingerprint=%s is no SHA-256 in hexadecimal, 64 digits", text)
			}
			p.Fingerprints = append(p.Fingerprints, [sha256.Size]byte(b))
		}
	default:
		return fmt.Errorf("%s: it is none of match=, ca=, fingerprint=, implicit", word)
	}
	return nil
}

// Table is the file tls.
type Table struct{ entries map[string]*Policy }

// Parse reads the file: a destination and its policy a line.
func Parse(file string, text []byte) (*Table, error) {
	t := &Table{entries: map[string]*Policy{}}
	number := 0
	var wrong config.Mistakes
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		bad := func(reason string, err error) error {
			return &config.Error{File: file, Line: number, Reason: reason, Err: err}
		}
		to, rest, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		key, err := Key(to)
		if err != nil {
			wrong.Add(bad(to+" is no destination", err))
			continue
		}
		p, err := ParsePolicy(rest, filepath.Dir(file))
		if err != nil {
			if wrong.Add(bad(to, err)) {
				break
			}
			continue
		}
		if old, twice := t.entries[key]; twice {
			wrong.Add(bad(to+" has a policy already", errors.New(old.Where)))
			continue
		}
		p.Where = fmt.Sprintf("%s:%d", file, number)
		t.entries[key] = &p
	}
	return t, wrong.Err()
}

// Key returns a destination in the form that it is looked up by: without brackets, lower
// case, with its port if it has one.
func Key(to string) (string, error) {
	to = strings.ToLower(to)
	if to == "*" {
		return to, nil
	}
	name, port := to, ""
	if rest, ok := strings.CutPrefix(to, "["); ok {
		var closed bool
		if name, port, closed = strings.Cut(rest, "]"); !closed {
			return "", errors.New("[ without ]")
		}
		var has bool
		if port, has = strings.CutPrefix(port, ":"); !has && port != "" {
			return "", errors.New("neither port nor end after ]")
		}
		name = strings.TrimPrefix(name, "ipv6:")
	} else if strings.Count(to, ":") == 1 {
		name, port, _ = strings.Cut(to, ":")
	}
	name = strings.TrimSuffix(name, ".")
	if a, err := netip.ParseAddr(name); err == nil {
		name = a.Unmap().String()
	} else if name, err = ascii(name); err != nil {
		return "", err
	} else if name == "" || strings.ContainsAny(name, " \t/@:*[]=") {
		return "", errors.New("it must be a host, .domain, host:port, [host]:port, [address] or *")
	}
	if port == "" {
		return name, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("no port: %q", port)
	}
	return WithPort(name, int(n)), nil
}

// ascii returns a name in A-labels, with a dot in front if it has one.
func ascii(name string) (string, error) {
	rest := strings.TrimPrefix(name, ".")
	m := address.Mailbox{Local: "x", Domain: rest}
	if m.IsASCII() {
		return name, nil
	}
	a, err := m.ASCIIDomain()
	return name[:len(name)-len(rest)] + a, err
}

// WithPort returns the key of a destination with its port.
func WithPort(name string, port int) string { return name + " " + strconv.Itoa(port) }

// Find returns the policy of a destination's line: that of its name with the port, of its
// name, or of the nearest domain above it, with the port before without. Default gives
// that of the line *.
func (t *Table) Find(name string, port int) (*Policy, bool) {
	if p, ok := t.entries[WithPort(name, port)]; ok {
		return p, true
	}
	if p, ok := t.entries[name]; ok {
		return p, true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return nil, false
	}
	for rest := name; ; {
		i := strings.IndexByte(rest, '.')
		if i < 0 {
			return nil, false
		}
		if p, ok := t.entries[WithPort(rest[i:], port)]; ok {
			return p, true
		}
		if p, ok := t.entries[rest[i:]]; ok {
			return p, true
		}
		rest = rest[i+1:]
	}
}

// Default returns the policy of the line *.
func (t *Table) Default() (*Policy, bool) {
	p, ok := t.entries["*"]
	return p, ok
}
