package smtpclient

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/xdg-go/scram"
)

// Account is what we log in with.
type Account struct{ User, Password string }

// AuthError is a login that failed for another reason than the server's reply: it offers
// no way that we know, or has not shown that it knows the password. The connection is
// closed.
type AuthError struct{ Err error }

func (e *AuthError) Error() string { return PhaseAuth.String() + ": " + e.Err.Error() }

func (e *AuthError) Unwrap() error { return e.Err }

// mechanism is one way to log in (RFC 4422): the answer to each challenge. The first has
// none, and its answer goes with the command.
type mechanism struct {
	name   string
	answer func(challenge string) (string, error)
	// finish, if set, judges a success.
	finish func() error
}

// Auth logs in by the best way that the server offers (RFC 4954). It fails with
// *ReplyError if the server does not let us in, *AuthError or *ConnError. The caller is
// to know that the connection may carry a password.
func (c *Conn) Auth(a Account) error {
	m, err := choose(strings.Fields(c.ext.Auth), a)
	if err != nil {
		c.Quit()
		return &AuthError{Err: err}
	}
	line := "AUTH " + m.name
	c.hello.said(line)
	first, err := m.answer("")
	if err != nil {
		c.Quit()
		return &AuthError{Err: err}
	}
	// RFC 4954 §4: one that makes the line too long comes when it is asked for.
	late := len(line)+base64.StdEncoding.EncodedLen(len(first)) > 500
	if m.name != "LOGIN" && !late {
		line += " " + base64.StdEncoding.EncodeToString([]byte(first))
	}
	for {
		if err := c.write(PhaseAuth, []byte(line+"\r\n")); err != nil {
			return err
		}
		r, err := c.reply(PhaseAuth)
		if err != nil {
			return err
		}
		if r.Code != 334 {
			c.hello.answered(r)
			return c.loggedIn(r, m)
		}
		if late {
			line, late = base64.StdEncoding.EncodeToString([]byte(first)), false
			continue
		}
		if line, err = next(m, r); err != nil {
			// RFC 4954 §4: "*" ends the exchange; the connection is of no use anyhow.
			c.Quit()
			return &AuthError{Err: err}
		}
	}
}

// loggedIn ends the exchange.
func (c *Conn) loggedIn(r Reply, m mechanism) error {
	if r.Class() != 2 {
		return c.refuse(PhaseAuth, r)
	}
	if m.finish != nil {
		if err := m.finish(); err != nil {
			c.Quit()
			return &AuthError{Err: err}
		}
	}
	return nil
}

// next is the line that answers a challenge.
func next(m mechanism, r Reply) (string, error) {
	challenge, err := base64.StdEncoding.DecodeString(strings.TrimSpace(r.Text))
	if err != nil && m.name != "LOGIN" {
		return "", fmt.Errorf("%s: a challenge that is not base64", m.name)
	}
	answer, err := m.answer(string(challenge))
	if err != nil {
		return "", fmt.Errorf("%s: %w", m.name, err)
	}
	return base64.StdEncoding.EncodeToString([]byte(answer)), nil
}

// choose takes the strongest mechanism that is offered: the one that does not give the
// password away first.
func choose(offered []string, a Account) (mechanism, error) {
	has := func(name string) bool {
		return slices.ContainsFunc(offered, func(o string) bool { return strings.EqualFold(o, name) })
	}
	switch {
	case has("SCRAM-SHA-256"):
		return scramSHA256(a)
	case has("PLAIN"):
		return plain(a)
	case has("LOGIN"):
		return login(a), nil
	case len(offered) == 0:
		return mechanism{}, errors.New("the server offers no AUTH")
	}
	return mechanism{}, fmt.Errorf("the server offers AUTH %s, and we know SCRAM-SHA-256, PLAIN and LOGIN", strings.Join(offered, " "))
}

// errExtra is a server that asks for more than the mechanism has.
var errExtra = errors.New("the server asks for more")

// plain is RFC 4616.
func plain(a Account) (mechanism, error) {
	if strings.Contains(a.User+a.Password, "\x00") {
		return mechanism{}, errors.New("PLAIN: user and password cannot have a NUL")
	}
	asked := 0
	return mechanism{name: "PLAIN", answer: func(string) (string, error) {
		if asked++; asked > 1 {
			return "", errExtra
		}
		return "\x00" + a.User + "\x00" + a.Password, nil
	}}, nil
}

// login is LOGIN, which no RFC has: two prompts, whatever they say.
func login(a Account) mechanism {
	answers := []string{"", a.User, a.Password}
	return mechanism{name: "LOGIN", answer: func(string) (string, error) {
		if len(answers) == 0 {
			return "", errExtra
		}
		answer := answers[0]
		answers = answers[1:]
		return answer, nil
	}}
}

// maxIterations is how often a password is hashed for a server, at most: some seconds.
const maxIterations = 10_000_000

// tooMany tells a server's first message (RFC 5802 §7) that would keep us busy for hours.
func tooMany(challenge string) bool {
	for field := range strings.SplitSeq(challenge, ",") {
		if n, ok := strings.CutPrefix(field, "i="); ok {
			i, err := strconv.Atoi(n)
			return err != nil || i > maxIterations
		}
	}
	return false
}

// scramSHA256 is RFC 7677.
func scramSHA256(a Account) (mechanism, error) {
	client, err := scram.SHA256.NewClient(a.User, a.Password, "")
	if err != nil {
		return mechanism{}, fmt.Errorf("SCRAM-SHA-256: %w", err)
	}
	conv := client.NewConversation()
	return mechanism{
		name: "SCRAM-SHA-256",
		answer: func(challenge string) (string, error) {
			if conv.Done() {
				return "", errExtra
			}
			if tooMany(challenge) {
				return "", errors.New("the server wants more than ten million iterations")
			}
			return conv.Step(challenge)
		},
		// RFC 5802 §5: who has not shown that he knows the password is not the server.
		finish: func() error {
			if !conv.Valid() {
				return errors.New("SCRAM-SHA-256: the server has not shown that it knows the password")
			}
			return nil
		},
	}, nil
}
