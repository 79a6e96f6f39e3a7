package smtpserver

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"zmailer/internal/stage/smtpserver/auth"
	"zmailer/internal/stage/smtpserver/session"
)

const (
	// authTime is how long a backend may take for one step.
	authTime = time.Minute
	// authFailures is how many wrong passwords end a connection.
	authFailures = 3
	// authSteps is how many responses an exchange may have; SCRAM has three.
	authSteps = 10
	// defaultAuthDelay is the delay of the reply to the first wrong password of a connection;
	// it doubles with each.
	defaultAuthDelay = time.Second
)

// openUsers opens the source in AUTH. Without one, ports for submission accept nothing.
func (c *Config) openUsers() (auth.Backend, error) {
	if c.Users.Source != "" {
		return auth.Open(c.Users.Source, auth.Options{Dir: c.Users.Dir, Keeper: c.Keeper, Log: c.Log})
	}
	if c.listensFor(session.RoleSubmission) || c.listensFor(session.RoleSubmissions) {
		c.Log.Warn("no-users", "advice", "AUTH is not set: every client of SUBMISSIONLISTEN and SUBMISSIONSLISTEN gets 530")
	}
	return nil, nil
}

// isSubmission reports whether a port is for our users.
func isSubmission(r session.Role) bool {
	return r == session.RoleSubmission || r == session.RoleSubmissions
}

// login is how a client authenticates.
type login struct {
	*server
	client   *session.Client // of the connection
	failures int             // wrong passwords on this connection
	asked    time.Time       // when the backend was given the last response
}

// mechanisms returns what a client may authenticate with now: on a port for submission, and
// in the clear only from this machine, unless AUTHPLAINTEXT allows more (RFC 4954 section 4).
func (l *login) mechanisms() []string {
	if !l.offered() || !l.safe() {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, authTime)
	defer cancel()
	return l.users.Mechanisms(ctx)
}

func (l *login) offered() bool {
	return l.users != nil && (isSubmission(l.client.Role) || l.Users.MX && l.client.Role == session.RoleMX)
}

func (l *login) safe() bool {
	return l.client.TLS != nil || l.Users.Plaintext || l.client.IsLoopback()
}

// Auth implements session.Handler (RFC 4954).
func (h *handler) Auth(arg string, ask func(challenge string) (string, error)) *session.Reply {
	mechanism, initial, hasInitial := strings.Cut(arg, " ")
	mechanism = strings.ToUpper(mechanism)
	switch {
	case !h.login.offered():
		return session.NewReply(502, "5.5.1", "Error: command not implemented")
	case h.client.User != "":
		return session.NewReply(503, "5.5.1", "Error: already authenticated")
	case h.tx.envelope != nil:
		return session.NewReply(503, "5.5.1", "Error: MAIL transaction in progress")
	case !h.login.safe():
		return session.NewReply(538, "5.7.11", "Encryption required for requested authentication mechanism")
	case mechanism == "" || strings.Contains(initial, " "):
		return session.NewReply(501, "5.5.4", "Syntax: AUTH mechanism [initial-response]")
	}
	var first []byte
	if hasInitial {
		var ok bool
		if first, ok = decodeResponse(initial); !ok {
			return session.NewReply(501, "5.5.2", "Error: invalid base64 data")
		}
	}
	return h.login.try(mechanism, first, ask)
}

// try has the client authenticate and sets its User.
func (l *login) try(mechanism string, first []byte, ask func(challenge string) (string, error)) *session.Reply {
	right, err := l.limits.Guess(l.client.Addr.Addr())
	if err != nil {
		l.Log.Warn("refused", "client", l.client.String(), "stage", stageAuth, "code", 421, "status", "4.7.0", "reply", err)
		return session.NewReply(421, "4.7.0", l.Hostname+" Error: too many authentication failures")
	}
	user, claimed, err := l.exchange(mechanism, first, ask)
	if !errors.Is(err, auth.ErrRefused) {
		right()
	}
	switch {
	case err == nil:
		l.client.User, l.client.Mechanism = user, mechanism
		l.failures = 0
		l.authTrouble.End(l.Log, "auth-recovered")
		l.Log.Info("authenticated", "client", l.client.String(), "user", user, "mechanism", mechanism)
		return session.NewReply(235, "2.7.0", "Authentication successful")
	case errors.Is(err, errCancelled):
		return session.NewReply(501, "5.7.0", "Authentication cancelled")
	case errors.Is(err, auth.ErrMechanism):
		return session.NewReply(504, "5.5.4", "Error: authentication mechanism not supported")
	case errors.Is(err, auth.ErrSyntax):
		return session.NewReply(501, "5.5.2", "Error: malformed authentication response")
	case errors.Is(err, auth.ErrRefused):
		l.Log.Info("auth-failed", "client", l.client.String(), "user", session.OneLine(claimed), "mechanism", mechanism)
		return l.refuse()
	case errors.Is(err, session.ErrLost):
		return nil
	}
	l.authTrouble.Begin(l.Log, "auth-trouble", "source", l.Users.Source, "reason", err,
		"advice", "clients get 454 and try again")
	return session.NewReply(454, "4.7.0", "Temporary authentication failure")
}

// refuse answers a wrong password, or an unknown user, late and always the
// same (RFC 4954 sections 4 and 9). The wait is this goroutine's alone. It is measured from the
// client's response, so that the time of the check is no answer.
func (l *login) refuse() *session.Reply {
	delay := l.Users.Delay << min(l.failures, authFailures)
	l.failures++
	t := time.NewTimer(restOf(delay, time.Since(l.asked)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
		// The connection is cut.
	}
	r := session.NewReply(535, "5.7.8", "Error: authentication failed")
	r.Last = l.failures >= authFailures
	return r
}

// restOf returns how long a reply waits after a check that took some time: it leaves when the delay
// has passed, or a multiple of it.
func restOf(delay, took time.Duration) time.Duration {
	if took < 0 {
		return delay
	}
	return delay - took%delay
}

var errCancelled = errors.New("the client cancelled the exchange")

// exchange runs the challenges and responses.
func (l *login) exchange(mechanism string, response []byte, ask func(string) (string, error)) (user, claimed string, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, authTime)
	defer cancel()
	e, err := l.users.Start(ctx, mechanism, auth.Peer{Remote: l.client.Addr, Local: l.client.Local, TLS: l.client.TLS != nil})
	if err != nil {
		return "", "", err
	}
	defer e.Close()
	for range authSteps {
		challenge, done, err := l.step(e, response)
		if err != nil || done {
			return e.User(), e.Claimed(), err
		}
		line, err := ask(base64.StdEncoding.EncodeToString(challenge))
		if err == nil && line == "*" {
			err = errCancelled
		}
		if err != nil && refused(mechanism, challenge) {
			err = auth.ErrRefused
		}
		if err != nil {
			return "", e.Claimed(), err
		}
		var ok bool
		if response, ok = decodeResponse(line); !ok {
			if refused(mechanism, challenge) {
				return "", e.Claimed(), auth.ErrRefused
			}
			return "", "", auth.ErrSyntax
		}
	}
	return "", "", auth.ErrSyntax
}

// refused reports whether a challenge is the error about a token (RFC 7628 section 3.2.2): these
// mechanisms have no other. A client that ends the exchange then has guessed wrong all the same.
func refused(mechanism string, challenge []byte) bool {
	return len(challenge) > 0 && (mechanism == auth.OAuthBearer || mechanism == auth.XOAuth2)
}

// step gives a response to the backend.
func (l *login) step(e auth.Exchange, response []byte) ([]byte, bool, error) {
	ctx, cancel := context.WithTimeout(l.ctx, authTime)
	defer cancel()
	l.asked = time.Now()
	return e.Next(ctx, response)
}

// decodeResponse reads a client's response, which is never nil; "=" is an empty one (RFC
// 4954 section 4).
func decodeResponse(text string) ([]byte, bool) {
	if text == "=" || text == "" {
		return []byte{}, true
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	return b, err == nil
}
