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

// UsersConfig says where our users are.
type UsersConfig struct {
	Source    string        // AUTH; "": there are none
	Dir       string        // where paths in it begin
	Plaintext bool          // AUTH is also offered without TLS
	Delay     time.Duration // before the answer to a wrong password; 0: 1 s
}

// openUsers opens the source in AUTH. Without one, ports for submission accept nothing.
func (s *server) openUsers() (err error) {
	if s.Users.Delay <= 0 {
		s.Users.Delay = defaultAuthDelay
	}
	if s.Users.Source != "" {
		s.users, err = auth.Open(s.Users.Source, auth.Options{Dir: s.Users.Dir, Log: s.Log})
		return err
	}
	if s.listensFor(session.RoleSubmission) || s.listensFor(session.RoleSubmissions) {
		s.Log.Warn("no-users", "advice", "AUTH is not set: every client of SUBMISSIONLISTEN and SUBMISSIONSLISTEN gets 530")
	}
	return nil
}

// mechanisms are what a client may authenticate with now: on a port for submission, and
// in the clear only from this machine, unless AUTHPLAINTEXT allows more (RFC 4954 section 4).
func (h *handler) mechanisms() []string {
	if !h.authOffered() || !h.authSafe() {
		return nil
	}
	ctx, cancel := context.WithTimeout(h.ctx, authTime)
	defer cancel()
	return h.users.Mechanisms(ctx)
}

func (h *handler) authOffered() bool { return h.users != nil && h.isSubmission() }

func (h *handler) isSubmission() bool {
	return h.client.Role == session.RoleSubmission || h.client.Role == session.RoleSubmissions
}

func (h *handler) authSafe() bool {
	return h.client.TLS != nil || h.Users.Plaintext || h.client.IsLoopback()
}

// Auth implements session.Handler (RFC 4954).
func (h *handler) Auth(arg string, ask func(challenge string) (string, error)) *session.Reply {
	mechanism, initial, hasInitial := strings.Cut(arg, " ")
	mechanism = strings.ToUpper(mechanism)
	switch {
	case !h.authOffered():
		return session.NewReply(502, "5.5.1", "Error: command not implemented")
	case h.client.User != "":
		return session.NewReply(503, "5.5.1", "Error: already authenticated")
	case h.envelope != nil:
		return session.NewReply(503, "5.5.1", "Error: MAIL transaction in progress")
	case !h.authSafe():
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
	right, err := h.limits.Guess(h.client.Addr.Addr())
	if err != nil {
		h.Log.Warn("refused", "client", h.client.String(), "status", "4.7.0", "reply", err)
		return session.NewReply(421, "4.7.0", h.Hostname+" Error: too many authentication failures")
	}
	user, claimed, err := h.exchange(mechanism, first, ask)
	if !errors.Is(err, auth.ErrRefused) {
		right()
	}
	switch {
	case err == nil:
		h.client.User = user
		h.authFailures = 0
		h.authTrouble.End(h.Log, "auth-recovered")
		h.Log.Info("authenticated", "client", h.client.String(), "user", user, "mechanism", mechanism)
		return session.NewReply(235, "2.7.0", "Authentication successful")
	case errors.Is(err, errCancelled):
		return session.NewReply(501, "5.7.0", "Authentication cancelled")
	case errors.Is(err, auth.ErrMechanism):
		return session.NewReply(504, "5.5.4", "Error: authentication mechanism not supported")
	case errors.Is(err, auth.ErrSyntax):
		return session.NewReply(501, "5.5.2", "Error: malformed authentication response")
	case errors.Is(err, auth.ErrRefused):
		h.Log.Info("auth-failed", "client", h.client.String(), "user", session.OneLine(claimed), "mechanism", mechanism)
		return h.refuseLogin()
	case errors.Is(err, session.ErrLost):
		return nil
	}
	h.authTrouble.Begin(h.Log, "auth-trouble", "source", h.Users.Source, "reason", err,
		"advice", "clients get 454 and try again")
	return session.NewReply(454, "4.7.0", "Temporary authentication failure")
}

// refuseLogin answers a wrong password, or an unknown user, late and always the
// same (RFC 4954 sections 4 and 9). The wait is this goroutine's alone.
func (h *handler) refuseLogin() *session.Reply {
	delay := h.Users.Delay << min(h.authFailures, authFailures)
	h.authFailures++
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-h.ctx.Done():
		// The connection is cut.
	}
	r := session.NewReply(535, "5.7.8", "Error: authentication failed")
	r.Last = h.authFailures >= authFailures
	return r
}

var errCancelled = errors.New("the client cancelled the exchange")

// exchange runs the challenges and responses.
func (h *handler) exchange(mechanism string, response []byte, ask func(string) (string, error)) (user, claimed string, err error) {
	ctx, cancel := context.WithTimeout(h.ctx, authTime)
	defer cancel()
	e, err := h.users.Start(ctx, mechanism, auth.Peer{Remote: h.client.Addr, Local: h.client.Local, TLS: h.client.TLS != nil})
	if err != nil {
		return "", "", err
	}
	defer e.Close()
	for range authSteps {
		challenge, done, err := h.step(e, response)
		if err != nil || done {
			return e.User(), e.Claimed(), err
		}
		line, err := ask(base64.StdEncoding.EncodeToString(challenge))
		if err != nil {
			return "", "", err
		}
		if line == "*" {
			return "", "", errCancelled
		}
		var ok bool
		if response, ok = decodeResponse(line); !ok {
			return "", "", auth.ErrSyntax
		}
	}
	return "", "", auth.ErrSyntax
}

// step gives a response to the backend.
func (h *handler) step(e auth.Exchange, response []byte) ([]byte, bool, error) {
	ctx, cancel := context.WithTimeout(h.ctx, authTime)
	defer cancel()
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
