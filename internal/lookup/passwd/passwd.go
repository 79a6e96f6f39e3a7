// Package passwd reads and makes the file of accounts that smtpserver checks passwords
// with: user:hash, one a line. A hash is argon2id or bcrypt, or the keys of SCRAM-SHA-256
// (RFC 5803); a user may have one of each.
//
// It owns nothing on disk: who writes the file replaces it in one step.
//
// Diagnostics: Parse gives a *config.Error that names the line. Verify's error means that
// the password is another one; nothing here is temporary.
package passwd

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"zmailer/internal/run/config"
)

// ErrMismatch means that a password is not the account's.
var ErrMismatch = errors.New("passwd: wrong password")

// MaxPassword is the longest password that is looked at. Bytes; a longer one is wrong.
const MaxPassword = 1024

// hash is one line's: it checks a password.
type hash interface {
	verify(password string) error
	// dummy returns a hash of the same cost that no password fits.
	dummy() hash
}

// Accounts is a file of accounts.
type Accounts struct {
	users map[string]account
	// all are the hashes in their order, of which a user that is not there gets one's cost.
	all    []account
	scrams []SCRAM
	secret [sha256.Size]byte // from the file: what unknown users get stays while it does
}

// account is the lines of one user.
type account struct {
	password hash   // nil: SCRAM alone, which can check a password too
	scram    *SCRAM // nil: SCRAM cannot be used
}

// check returns what a password is checked with.
func (a account) check() hash {
	if a.password != nil {
		return a.password
	}
	return *a.scram
}

// Fingerprint changes with a user's hashes; it is "" for a user that does not exist. It
// reveals nothing about the hashes.
func (a *Accounts) Fingerprint(user string) string {
	one, known := a.users[user]
	if !known {
		return ""
	}
	text := fmt.Sprintf("%v", one.password)
	if one.scram != nil {
		text += "\n" + one.scram.String()
	}
	sum := sha256.Sum256([]byte(text))
	return string(sum[:])
}

// Parse reads a file of accounts: user:hash. What follows a further colon means nothing;
// lines that begin with # and empty ones neither.
func Parse(name string, text []byte) (*Accounts, error) {
	a := &Accounts{users: map[string]account{}}
	var order []string
	n := 0
	var wrong config.Mistakes
	for line := range bytes.Lines(text) {
		n++
		s := strings.TrimRight(string(line), "\r\n")
		if strings.TrimSpace(s) == "" || strings.HasPrefix(s, "#") {
			continue
		}
		user, h, err := parseLine(s)
		if err != nil {
			if wrong.Add(&config.Error{File: name, Line: n, Reason: err.Error()}) {
				break
			}
			continue
		}
		was, known := a.users[user]
		if !known {
			order = append(order, user)
		}
		switch h := h.(type) {
		case SCRAM:
			if was.scram != nil {
				wrong.Add(&config.Error{File: name, Line: n, Reason: user + " has SCRAM keys already"})
				continue
			}
			was.scram = &h
		default:
			if was.password != nil {
				wrong.Add(&config.Error{File: name, Line: n, Reason: user + " has a password already"})
				continue
			}
			was.password = h
		}
		a.users[user] = was
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	for _, user := range order {
		a.all = append(a.all, a.users[user])
		if s := a.users[user].scram; s != nil {
			a.scrams = append(a.scrams, *s)
		}
	}
	a.secret = sha256.Sum256(append([]byte("passwd\x00"), text...))
	return a, nil
}

// What the hashes begin with.
const (
	argonPrefix  = "$argon2id$"
	bcryptPrefix = "$2"
	scramPrefix  = "SCRAM-SHA-256$"
)

// parseLine reads user:hash. SCRAM keys have a colon of their own.
func parseLine(line string) (user string, h hash, err error) {
	user, rest, ok := strings.Cut(line, ":")
	if !ok {
		return "", nil, errors.New("want user:hash; zmctl passwd USER writes such a line")
	}
	if err := CheckUser(user); err != nil {
		return "", nil, err
	}
	switch {
	case strings.HasPrefix(rest, scramPrefix):
		h, err = parseSCRAM(rest)
	case strings.HasPrefix(rest, argonPrefix):
		text, _, _ := strings.Cut(rest, ":")
		h, err = parseArgon(text)
	case strings.HasPrefix(rest, bcryptPrefix):
		text, _, _ := strings.Cut(rest, ":")
		h, err = parseBcrypt(text)
	default:
		err = errors.New("what is behind " + user + ": is no hash of argon2id or bcrypt and no SCRAM-SHA-256 keys")
	}
	return user, h, err
}

// CheckUser reports whether the file can have a name.
func CheckUser(user string) error {
	switch {
	case user == "":
		return errors.New("the user's name is empty")
	case len(user) > 255:
		return errors.New("the user's name is longer than 255 bytes")
	case strings.HasPrefix(user, "#"):
		return errors.New("a user's name cannot begin with #")
	}
	for _, r := range user {
		if r <= ' ' || r == 0x7f || r == ':' || r == 0xfffd {
			return fmt.Errorf("the user's name %q has a blank, a colon or a control character", user)
		}
	}
	return nil
}

// Verify reports whether a password is a user's: nil, or ErrMismatch. For a user that is not
// there it takes as long as for one that is: which one's cost he gets depends on his name
// alone, so that each name always costs the same.
func (a *Accounts) Verify(user, password string) error {
	if len(password) > MaxPassword {
		password = "" // it is compared, for its time, and fails
	}
	found, ok := a.users[user]
	if !ok {
		if len(a.all) > 0 {
			_ = a.all[a.pick(user, len(a.all))].check().dummy().verify(password)
		}
		return ErrMismatch
	}
	if err := found.check().verify(password); err != nil || password == "" {
		return ErrMismatch
	}
	return nil
}

// HasSCRAM reports whether anybody can use SCRAM.
func (a *Accounts) HasSCRAM() bool { return len(a.scrams) > 0 }

// Count returns how many users there are.
func (a *Accounts) Count() int { return len(a.users) }

// SCRAM returns a user's keys. One who has none gets some that no password fits, with a salt
// that is the same each time (RFC 5802 §9 asks a server not to reveal who is known).
func (a *Accounts) SCRAM(user string) SCRAM {
	if s := a.users[user].scram; s != nil {
		return *s
	}
	s, size := SCRAM{Iterations: scramIterations}, scramSalt
	if len(a.scrams) > 0 {
		like := a.scrams[a.pick(user, len(a.scrams))]
		s.Iterations, size = like.Iterations, len(like.Salt)
	}
	s.Salt = stretch(a.digest("salt", user), size)
	s.StoredKey, s.ServerKey = a.digest("stored", user), a.digest("server", user)
	return s
}

// pick returns a number below n that belongs to a name.
func (a *Accounts) pick(user string, n int) int {
	return int(binary.BigEndian.Uint64(a.digest("pick", user)) % uint64(n))
}

func (a *Accounts) digest(what, user string) []byte {
	h := sha256.New()
	h.Write(a.secret[:])
	fmt.Fprintf(h, "%s\x00%s", what, user)
	return h.Sum(nil)
}

// stretch makes n bytes of a digest.
func stretch(digest []byte, n int) []byte {
	for len(digest) < n {
		next := sha256.Sum256(digest)
		digest = append(digest, next[:]...)
	}
	return digest[:n]
}
