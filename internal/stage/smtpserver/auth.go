package smtpserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"zmailer/internal/stage/smtpserver/auth"
)

const (
	// authTime is how long a backend may take for one step.
	authTime = time.Minute
	// authFailures is how many passwords a connection may try.
	authFailures = 3
	// authSteps is how many responses an exchange may have; SCRAM has three.
	authSteps = 10
	// defaultAuthDelay is how long the answer to the first wrong password of a connection
	// is held back; to the next, twice as long.
	defaultAuthDelay = time.Second
)

// UsersConfig says who our users are.
type UsersConfig struct {
	Source    string        // who knows them, as AUTH says; "": there are none
	Dir       string        // where paths in it begin
	Plaintext bool          // AUTH is offered without TLS, too
	Delay     time.Duration // before the answer to a wrong password; 0: 1 s
}

// openUsers opens what AUTH asks. Without it, ports for submission take nothing.
func (s *server) openUsers() (err error) {
	if s.Users.Delay <= 0 {
		s.Users.Delay = defaultAuthDelay
	}
	if s.Users.Source != "" {
		s.users, err = auth.Open(s.Users.Source, auth.Options{Dir: s.Users.Dir, Log: s.Log})
		return err
	}
	if len(s.SubmissionListen)+len(s.SubmissionsListen)+len(s.Activated[RoleSubmission])+len(s.Activated[RoleSubmissions]) > 0 {
		s.Log.Warn("no-users", "advice", "AUTH is not set: every client of SUBMISSIONLISTEN and SUBMISSIONSLISTEN is told 530")
	}
	return nil
}

// mechanisms are what a client may authenticate with now: on a port for submission, and
// in the clear only from this machine, unless AUTHPLAINTEXT says otherwise (RFC 4954 §4).
func (s *session) mechanisms() []string {
	if !s.authOffered() || !s.authSafe() {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.srv.ctx, authTime)
	defer cancel()
	return s.srv.users.Mechanisms(ctx)
}

func (s *session) authOffered() bool { return s.srv.users != nil && s.isSubmission() }

func (s *session) isSubmission() bool {
	return s.client.role == RoleSubmission || s.client.role == RoleSubmissions
}

func (s *session) authSafe() bool {
	return s.client.tls != nil || s.srv.Users.Plaintext || isLoopback(s.client.addr)
}

// isLoopback tells a client of this machine.
func isLoopback(a netip.AddrPort) bool { return !a.IsValid() || a.Addr().Unmap().IsLoopback() }

// authenticate answers AUTH (RFC 4954). go-smtp's own would tell clients to try again
// what they have written wrong, and take AUTH in the midst of a message.
func authenticate(w *wire, s *session, arg string) bool {
	if s == nil {
		return false // go-smtp asks for a greeting
	}
	mechanism, initial, hasInitial := strings.Cut(arg, " ")
	mechanism = strings.ToUpper(mechanism)
	switch {
	case !s.authOffered():
		w.say(502, "5.5.1", "AUTH is not offered here")
	case s.client.user != "":
		w.say(503, "5.5.1", "you are "+s.client.user+" already")
	case s.transaction != nil:
		w.say(503, "5.5.1", "AUTH comes before MAIL")
	case !s.authSafe():
		w.say(538, "5.7.11", "STARTTLS first")
	case mechanism == "":
		w.say(501, "5.5.4", "AUTH needs a mechanism")
	case strings.Contains(initial, " "):
		w.say(501, "5.5.4", "want AUTH MECHANISM or AUTH MECHANISM RESPONSE")
	default:
		var first []byte
		if hasInitial {
			var ok bool
			if first, ok = decodeResponse([]byte(initial)); !ok {
				w.say(501, "5.5.2", "that is not base64")
				return true
			}
		}
		s.attempt(mechanism, first)
	}
	return true
}

// attempt lets a client try to be somebody.
func (s *session) attempt(mechanism string, first []byte) {
	w := s.wire
	right, err := s.srv.limits.Guess(s.client.addr.Addr())
	if err != nil {
		s.srv.Log.Warn("refused", "client", s.client.String(), "status", "4.7.0", "reply", err)
		w.say(421, "4.7.0", "too many wrong passwords from your address, try again later")
		w.leave()
		return
	}
	user, claimed, err := s.exchange(mechanism, first)
	if !errors.Is(err, auth.ErrRefused) {
		right()
	}
	switch {
	case err == nil:
		s.client.user = user
		s.authFailures = 0
		s.srv.authTrouble.end(s.srv.Log, "auth-recovered")
		s.srv.Log.Info("authenticated", "client", s.client.String(), "user", user, "mechanism", mechanism)
		w.say(235, "2.7.0", "welcome")
	case errors.Is(err, errCancelled):
		w.say(501, "5.7.0", "cancelled")
	case errors.Is(err, auth.ErrMechanism):
		w.say(504, "5.5.4", "that mechanism is not offered")
	case errors.Is(err, auth.ErrSyntax):
		w.say(501, "5.5.2", "that is no response of "+mechanism)
	case errors.Is(err, auth.ErrRefused):
		s.srv.Log.Info("auth-failed", "client", s.client.String(), "user", oneLine(claimed), "mechanism", mechanism)
		s.refuseLogin()
	case errors.Is(err, errLost):
		// There is nobody to tell; w.err says why.
	default:
		s.srv.authTrouble.begin(s.srv.Log, "auth-trouble", "source", s.srv.Users.Source, "reason", err,
			"advice", "clients are told to try again")
		w.say(454, "4.7.0", "you cannot be authenticated now, try again later")
	}
}

// refuseLogin answers a wrong password, or a user that is not there, late and always the
// same (RFC 4954 §4, §9). The wait is this goroutine's alone.
func (s *session) refuseLogin() {
	delay := s.srv.Users.Delay << min(s.authFailures, authFailures)
	s.authFailures++
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.srv.ctx.Done():
		// The connection is cut; nobody hears the answer.
	}
	s.wire.say(535, "5.7.8", "user and password do not fit")
	if s.authFailures >= authFailures {
		s.wire.say(421, "4.7.0", "too many wrong passwords")
		s.wire.leave()
	}
}

var errCancelled = errors.New("the client gave up")

// exchange goes through challenges and responses.
func (s *session) exchange(mechanism string, response []byte) (user, claimed string, err error) {
	ctx, cancel := context.WithTimeout(s.srv.ctx, authTime)
	defer cancel()
	p := auth.Peer{Remote: s.client.addr, TLS: s.client.tls != nil}
	if tcp, ok := s.wire.LocalAddr().(*net.TCPAddr); ok {
		p.Local = tcp.AddrPort()
	}
	e, err := s.srv.users.Start(ctx, mechanism, p)
	if err != nil {
		return "", "", err
	}
	defer e.Close()
	for range authSteps {
		challenge, done, err := s.step(e, response)
		if err != nil || done {
			return e.User(), e.Claimed(), err
		}
		s.wire.say(334, "", base64.StdEncoding.EncodeToString(challenge))
		line, err := s.wire.nextLine()
		if err != nil {
			if s.wire.err == nil {
				s.wire.err = err // a line that is too long
			}
			return "", "", lost(err)
		}
		text := bytes.Clone(bytes.TrimRight(line, "\r\n"))
		s.wire.skip(len(line))
		if string(text) == "*" {
			return "", "", errCancelled
		}
		var ok bool
		if response, ok = decodeResponse(text); !ok {
			return "", "", auth.ErrSyntax
		}
	}
	return "", "", auth.ErrSyntax
}

// step gives a response to the backend.
func (s *session) step(e auth.Exchange, response []byte) ([]byte, bool, error) {
	ctx, cancel := context.WithTimeout(s.srv.ctx, authTime)
	defer cancel()
	return e.Next(ctx, response)
}

// decodeResponse reads a client's response, which is never nil; "=" is an empty one (RFC
// 4954 §4).
func decodeResponse(text []byte) ([]byte, bool) {
	if string(text) == "=" || len(text) == 0 {
		return []byte{}, true
	}
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	return b, err == nil
}
