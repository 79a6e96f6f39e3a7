// Package mailq is the protocol of the scheduler's query socket: ZMailer's MAILQ v2
// (docs/mailq.md), with a form in JSON lines beside it. It holds no connection and
// opens no file: it turns lines into values and back, computes the authenticator of a
// login, and evaluates an authfile.
//
// Nothing here survives a crash; a query changes nothing by itself.
//
// Diagnostics: ErrRequest names a line that asks for nothing; the server says so and
// goes on. ErrAnswer: what the server said is no answer. ErrRefused: it said no, in
// words. An authfile never fails as a whole: a line that cannot be read lets no client in
// and is reported by its number.
package mailq

import (
	"crypto/md5"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"strings"

	"zmailer/internal/run/human"
)

var (
	// ErrRequest means that a line asks for nothing that there is.
	ErrRequest = errors.New("no such request")
	// ErrAnswer means that a line from a server is no answer.
	ErrAnswer = errors.New("not an answer of MAILQ v2")
	// ErrRefused means that the server said no.
	ErrRefused = errors.New("refused")
)

// Lines that are always the same.
const (
	// Version is the first line of the server.
	Version = "version zmailer 2.0"
	// challengeMark begins the second one.
	challengeMark = "220 MAILQ-V2-CHALLENGE: "
	// Follows is the answer that lines follow, ended by a dot.
	Follows = "+OK until LF.LF"
	// End is the line behind those.
	End = "."
	// MaxLine is how long a request may be, in bytes with its newline.
	MaxLine = 2048
)

// Challenge returns the second line of the server, which a login is computed from.
func Challenge(text string) string { return challengeMark + human.Blank(text) }

// Greeting returns the first line of the server. challenge is that of Challenge.
func Greeting(challenge string) []byte { return []byte(Version + "\n" + challenge + "\n") }

// Authenticator returns what a user proves to know the password with: the MD5 of the whole
// challenge line and the password, in lower-case hex. It keeps the password from who
// only listens, for the one challenge; it is ZMailer's and nothing stronger.
func Authenticator(challenge, password string) string {
	sum := md5.Sum([]byte(challenge + password))
	return hex.EncodeToString(sum[:])
}

// Proves reports whether digest is the authenticator for a password.
func Proves(challenge, password, digest string) bool {
	want := Authenticator(challenge, password)
	return subtle.ConstantTimeCompare([]byte(want), []byte(strings.ToLower(digest))) == 1
}
