// Package srs rewrites the senders of forwarded mail so that the mail passes SPF at its next host,
// and finds the sender again when a report comes back: the Sender Rewriting Scheme, as postsrsd
// and libsrs2 do it. Addresses made by these are reversed here, and the other way around, as
// long as they share a secret.
//
//	SRS0=HASH=DAY=domain=local@ours     local@domain, forwarded by us
//	SRS1=HASH=host==HASH=DAY=...@ours   an SRS0 address of another forwarder, host
//
// The hash is an HMAC by a secret: without it this would relay to any address.
//
// It owns nothing, and nothing survives a crash.
//
// Diagnostics: ErrSyntax, ErrHash and ErrExpired say why an address is not reversed; each is
// permanent. The errors of ParseSecrets are *config.Error.
package srs

import (
	"crypto/hmac"
	"crypto/sha1" // the scheme's
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// Errors of Reverse.
var (
	ErrSyntax  = errors.New("invalid SRS address")
	ErrHash    = errors.New("invalid hash in SRS address")
	ErrExpired = errors.New("time stamp out of date in SRS address")
)

// Rewriter holds what is the same for all addresses.
type Rewriter struct {
	Domain     string // of the addresses that are made
	Separator  byte   // behind SRS0: '=', '-' or '+'
	HashLength int    // letters of a hash that is made
	HashMin    int    // letters that one must have at least
	MaxAge     int    // days in which an address can be reversed
}

// Secrets are the keys: the first one makes hashes, each is good to check them.
type Secrets [][]byte

// minSecret is how long a secret must be: a line that was cut by accident is none. Bytes.
const minSecret = 8

// ParseSecrets reads a file with one secret a line, as postsrsd's.
func ParseSecrets(name string, text []byte) (Secrets, error) {
	var all Secrets
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		if len(line) < minSecret {
			return nil, &config.Error{File: name, Line: n, Reason: fmt.Sprintf("a secret of %d characters can be guessed: want at least %d, such as a line of `openssl rand -base64 18`", len(line), minSecret)}
		}
		all = append(all, []byte(line))
	}
	if len(all) == 0 {
		return nil, &config.Error{File: name, Line: max(n, 1), Reason: "no secret; write a line of `openssl rand -base64 18`"}
	}
	return all, nil
}

const (
	base32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	days   = 32 * 32 // after which time stamps begin anew
)

// stamp returns a day in two letters.
func stamp(t time.Time) string {
	d := t.Unix() / (24 * 60 * 60) % days
	return string([]byte{base32[d>>5], base32[d&31]})
}

// fresh reports whether the day of a stamp is at most so many days ago.
func fresh(s string, now time.Time, most int) (ok bool) {
	then := 0
	for _, c := range strings.ToUpper(s) {
		i := strings.IndexRune(base32, c)
		if i < 0 {
			return false
		}
		then = then<<5 | i
	}
	today := int(now.Unix() / (24 * 60 * 60) % days)
	if today < then {
		today += days
	}
	return len(s) == 2 && today <= then+most
}

// hash returns the first letters of the hash of some words.
func hash(secret []byte, length int, words ...string) string {
	h := hmac.New(sha1.New, secret)
	for _, w := range words {
		h.Write([]byte(lower(w)))
	}
	s := base64.StdEncoding.EncodeToString(h.Sum(nil))
	return s[:min(length, len(s))]
}

// lower is for ASCII alone, as in the other implementations.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

func (r *Rewriter) checkHash(secrets Secrets, got string, words ...string) error {
	if len(got) < r.HashMin {
		return ErrHash
	}
	for _, secret := range secrets {
		// Some hosts write local parts in small letters.
		if hmac.Equal([]byte(lower(hash(secret, len(got), words...))), []byte(lower(got))) {
			return nil
		}
	}
	return ErrHash
}

// Is reports whether a local part is one of the scheme.
func Is(local string) bool {
	return len(local) > 5 && (strings.EqualFold(local[:4], "SRS0") || strings.EqualFold(local[:4], "SRS1")) && isSeparator(local[4])
}

func isSeparator(c byte) bool { return c == '=' || c == '-' || c == '+' }

// Forward returns the address by which a sender's mail is forwarded.
func (r *Rewriter) Forward(secrets Secrets, from address.Mailbox, now time.Time) (address.Mailbox, error) {
	domain, err := from.ASCIIDomain()
	if err != nil || domain == "" || len(secrets) == 0 {
		return from, ErrSyntax
	}
	key, sep := secrets[0], string(r.Separator)
	if Is(from.Local) {
		host, rest := domain, from.Local[4:]
		if from.Local[3] == '1' {
			// The first forwarder is the one to report to; those between are left out.
			_, tail, _ := strings.Cut(from.Local[5:], "=")
			var ok bool
			if host, rest, ok = strings.Cut(tail, "="); !ok || host == "" || rest == "" || !isSeparator(rest[0]) {
				return from, ErrSyntax
			}
		}
		h := hash(key, r.HashLength, host, rest)
		return address.Mailbox{Local: "SRS1" + sep + h + "=" + host + "=" + rest, Domain: r.Domain}, nil
	}
	day := stamp(now)
	h := hash(key, r.HashLength, day, domain, from.Local)
	return address.Mailbox{Local: "SRS0" + sep + h + "=" + day + "=" + domain + "=" + from.Local, Domain: r.Domain}, nil
}

// Reverse returns the address from which a local part was made: the sender, or for SRS1 the SRS0
// address of the first forwarder.
func (r *Rewriter) Reverse(secrets Secrets, local string, now time.Time) (address.Mailbox, error) {
	if !Is(local) {
		return address.Mailbox{}, ErrSyntax
	}
	var m address.Mailbox
	f := strings.SplitN(local[5:], "=", 4)
	if local[3] == '1' {
		f = strings.SplitN(local[5:], "=", 3)
		if len(f) < 3 || f[1] == "" || f[2] == "" || !isSeparator(f[2][0]) {
			return m, ErrSyntax
		}
		if err := r.checkHash(secrets, f[0], f[1], f[2]); err != nil {
			return m, err
		}
		m = address.Mailbox{Local: "SRS0" + f[2], Domain: f[1]}
	} else {
		if len(f) < 4 || f[2] == "" || f[3] == "" {
			return m, ErrSyntax
		}
		if err := r.checkHash(secrets, f[0], f[1], f[2], f[3]); err != nil {
			return m, err
		}
		if !fresh(f[1], now, r.MaxAge) {
			return m, ErrExpired
		}
		m = address.Mailbox{Local: f[3], Domain: f[2]}
	}
	// What a secret's owner has signed may still be no address.
	if parsed, err := address.Parse(m.String()); err != nil || parsed.Domain == "" {
		return address.Mailbox{}, ErrSyntax
	}
	return m, nil
}
