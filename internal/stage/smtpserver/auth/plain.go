package auth

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/emersion/go-sasl"
)

// verifier checks a password and returns the user's canonical name.
type verifier func(ctx context.Context, user, password string) (name string, err error)

// passwords begins an exchange in which the client sends its password.
func passwords(mechanism string, v verifier) (Exchange, error) {
	e := &exchange{}
	check := func(identity, user, password string) error {
		if !isName(user) || bytes.IndexByte([]byte(password), 0) >= 0 {
			return ErrRefused
		}
		e.claimed = user
		if identity != "" && identity != user {
			return ErrRefused // no user may act for another
		}
		var err error
		e.user, err = v(e.ctx, user, password)
		return err
	}
	switch mechanism {
	case Plain:
		e.sasl = sasl.NewPlainServer(check)
	case Login:
		e.sasl = &login{check: check}
	default:
		return nil, ErrMechanism
	}
	return e, nil
}

// isName reports whether a client may name a user so. The programs behind saslauthd and PAM end a
// name at a NUL: such a client would be the user, under a name with rates and rights of its own.
func isName(user string) bool {
	return user != "" && utf8.ValidString(user) && !strings.ContainsFunc(user, unicode.IsControl)
}

// exchange is one of go-sasl's servers.
type exchange struct {
	sasl          sasl.Server
	ctx           context.Context // of the call of Next that is on
	user, claimed string
}

func (e *exchange) Next(ctx context.Context, response []byte) ([]byte, bool, error) {
	e.ctx = ctx
	challenge, done, err := e.sasl.Next(response)
	if err != nil && e.claimed == "" && !errors.Is(err, ErrRefused) {
		err = ErrSyntax // go-sasl's own
	}
	if err != nil {
		return nil, false, err
	}
	return challenge, done, nil
}

func (e *exchange) User() string    { return e.user }
func (e *exchange) Claimed() string { return e.claimed }
func (e *exchange) Close()          {}

// login is the server side of LOGIN (draft-murchison-sasl-login), which go-sasl has not:
// clients look for these two prompts.
type login struct {
	check func(identity, user, password string) error
	user  []byte
	step  int
}

func (l *login) Next(response []byte) (challenge []byte, done bool, err error) {
	if response == nil && l.step == 0 {
		return []byte("Username:"), false, nil
	}
	l.step++
	switch l.step {
	case 1:
		l.user = bytes.Clone(response)
		return []byte("Password:"), false, nil
	case 2:
		return nil, true, l.check("", string(l.user), string(response))
	}
	return nil, false, ErrSyntax
}
