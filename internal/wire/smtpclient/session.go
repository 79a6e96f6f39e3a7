package smtpclient

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xdg-go/scram"
)

// Extensions are the service extensions that the server offers.
type Extensions struct {
	Pipelining     bool   // RFC 2920
	Size           bool   // RFC 1870
	MaxSize        int64  // bytes, 0: not said
	EightBitMIME   bool   // RFC 6152
	DSN            bool   // RFC 3461
	SMTPUTF8       bool   // RFC 6531
	EnhancedStatus bool   // RFC 2034
	StartTLS       bool   // RFC 3207
	RequireTLS     bool   // RFC 8689
	Auth           string // mechanisms, parted by blanks (RFC 4954)
	XForward       string // attributes of Postfix's XFORWARD, parted by blanks
}

// Extensions returns what the server offers; valid after Hello.
func (c *Conn) Extensions() Extensions { return c.ext }

// Hello waits for the greeting and sends EHLO, or HELO to a server that does not
// know that (RFC 5321 §3.2), or LHLO (RFC 2033 §4.1). It fails with *ReplyError or
// *ConnError; the connection is closed then.
func (c *Conn) Hello() error {
	r, err := c.reply(PhaseGreeting)
	if err != nil {
		return err
	}
	c.hello.answered(r)
	if r.Code != 220 {
		return c.refuse(PhaseGreeting, r)
	}
	return c.ehlo()
}

// ehlo sends EHLO and reads the server's extensions.
func (c *Conn) ehlo() error {
	verb := "EHLO "
	if c.cfg.LMTP {
		verb = "LHLO "
	}
	r, err := c.sayHello(verb)
	if err != nil {
		return err
	}
	if r.Class() == 2 {
		c.ext = parseExtensions(r.Text, c.cfg.Ignore)
		return nil
	}
	// RFC 5321 §4.1.4: any refusal of EHLO but "not available" may be one of the
	// verb alone.
	if r.Class() == 5 && !c.cfg.LMTP && c.Usable() {
		if r, err = c.sayHello("HELO "); err != nil {
			return err
		}
		if r.Class() == 2 {
			return nil
		}
	}
	return c.refuse(PhaseHello, r)
}

// HelloText returns the dialogue that opened the session, for a report on why it could
// not be opened.
func (c *Conn) HelloText() string { return c.hello.String() }

func (c *Conn) sayHello(verb string) (Reply, error) {
	line := verb + c.cfg.Hostname
	c.hello.said(line)
	if err := c.write(PhaseHello, []byte(line+"\r\n")); err != nil {
		return Reply{}, err
	}
	r, err := c.reply(PhaseHello)
	if err != nil {
		return Reply{}, err
	}
	c.hello.answered(r)
	return r, nil
}

// refuse closes a session that the server does not want.
func (c *Conn) refuse(p Phase, r Reply) error {
	c.Quit()
	return &ReplyError{Phase: p, Reply: r}
}

// parseExtensions reads the lines of an EHLO reply; the first one is a greeting
// (RFC 5321 §4.1.1.1). Those to ignore are not seen.
func parseExtensions(text string, ignore []string) Extensions {
	var e Extensions
	_, text, _ = strings.Cut(text, "\n")
	for line := range strings.SplitSeq(text, "\n") {
		keyword, params, _ := strings.Cut(line, " ")
		keyword = strings.ToUpper(keyword)
		if slices.Contains(ignore, keyword) {
			continue
		}
		switch keyword {
		case "PIPELINING":
			e.Pipelining = true
		case "SIZE":
			e.Size = true
			if n, err := strconv.ParseInt(strings.TrimSpace(params), 10, 64); err == nil && n > 0 {
				e.MaxSize = n
			}
		case "8BITMIME":
			e.EightBitMIME = true
		case "DSN":
			e.DSN = true
		case "SMTPUTF8":
			e.SMTPUTF8 = true
		case "ENHANCEDSTATUSCODES":
			e.EnhancedStatus = true
		case "STARTTLS":
			e.StartTLS = true
		case "REQUIRETLS":
			e.RequireTLS = true
		case "AUTH":
			e.Auth = strings.TrimSpace(params)
		case "XFORWARD":
			e.XForward = params
		}
	}
	return e
}

// TLSError is a TLS handshake that failed, or a certificate that the caller's
// configuration refused. The connection is closed.
type TLSError struct{ Err error }

func (e *TLSError) Error() string { return PhaseTLS.String() + ": " + e.Err.Error() }

func (e *TLSError) Unwrap() error { return e.Err }

// errInjected is text behind the answer to STARTTLS that was not sent by whom the
// handshake is made with (RFC 3207 §6).
var errInjected = errors.New("the server sent more behind its answer to STARTTLS")

// StartTLS puts TLS under an open session and sends EHLO again: the extensions that the server offered
// before counts no more (RFC 3207 §4.2). It fails with *ReplyError if the server does not
// want it, and the session goes on in the clear if it is Usable; with
// *TLSError or *ConnError, and the connection is closed.
func (c *Conn) StartTLS(cfg *tls.Config) error {
	c.hello.said("STARTTLS")
	if err := c.write(PhaseTLS, []byte("STARTTLS\r\n")); err != nil {
		return err
	}
	r, err := c.reply(PhaseTLS)
	if err != nil {
		return err
	}
	c.hello.answered(r)
	if r.Code != 220 {
		return &ReplyError{Phase: PhaseTLS, Reply: r}
	}
	if c.r.Buffered() > 0 {
		c.Close()
		return &TLSError{Err: errInjected}
	}
	if err := c.handshake(cfg); err != nil {
		return err
	}
	c.ext = Extensions{}
	return c.ehlo()
}

// BeginTLS puts TLS under a connection on which nothing was said yet (RFC 8314 §3.3).
func (c *Conn) BeginTLS(cfg *tls.Config) error { return c.handshake(cfg) }

func (c *Conn) handshake(cfg *tls.Config) error {
	below := &under{Conn: c.nc}
	secure := tls.Client(below, cfg)
	c.nc.SetDeadline(time.Now().Add(c.cfg.Timeouts.of(PhaseTLS)))
	if err := secure.HandshakeContext(context.Background()); err != nil {
		c.Close()
		return &TLSError{Err: err}
	}
	c.nc.SetDeadline(time.Time{})
	c.nc, c.under = secure, below
	c.r.Reset(secure)
	state := secure.ConnectionState()
	c.tls = &state
	c.hello.remark(tls.VersionName(state.Version) + " " + tls.CipherSuiteName(state.CipherSuite))
	return nil
}

// TLS returns how the connection is secured, nil if it is not.
func (c *Conn) TLS() *tls.ConnectionState { return c.tls }

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
	// finish, if set, checks a success.
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

// next returns the line that answers a challenge.
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

// tooMany reports whether a server's first message (RFC 5802 section 7) asks for hours of
// computation.
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
