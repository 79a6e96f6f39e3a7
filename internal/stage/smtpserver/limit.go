package smtpserver

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"zmailer/internal/stage/smtpserver/policy/limits"
)

// LimitsConfig says what is too much.
type LimitsConfig struct {
	limits.Config
	Errors       int  // refusals on one connection before it is closed; 0: no limit
	AcceptBareLF bool // SMTPBARELF=accept
}

// counts tells whether one more connection of a client is within the limits, and counts
// it until the connection is closed. A client above them is told so and closed.
func (s *server) counts(w *wire) bool {
	addr := w.client.addr.Addr()
	if w.uncount != nil || s.limits.Exempt(addr) {
		return true
	}
	w.mostFaults = s.Limits.Errors
	if load, busy := s.limits.Busy(); busy {
		s.Log.Warn("refused", "client", w.client.String(), "status", "4.3.2", "reply", "too much load", "load", load)
		w.turnAway("4.3.2", s.Hostname+" has too much to do, try again later")
		return false
	}
	done, err := s.limits.Connect(addr)
	if err != nil {
		s.Log.Warn("refused", "client", w.client.String(), "status", "4.7.0", "reply", err)
		w.turnAway("4.7.0", tooMany(err))
		return false
	}
	w.uncount = done
	return true
}

// turnAway closes a connection that was not greeted, and says why, if that can be read
// before TLS.
func (w *wire) turnAway(enhanced, text string) {
	w.srv.meters.turnedAway.With(string(w.client.role)).Add(1)
	if w.client.role != RoleSubmissions || w.client.tls != nil {
		w.say(421, enhanced, text)
	}
	_ = w.Close()
}

// tooMany is what a client is told of a limit.
func tooMany(err error) string {
	var e *limits.Excess
	if !errors.As(err, &e) {
		return "try again later"
	}
	return "too many " + e.What + ", try again later"
}

// mayMail tells whether a client may begin a message of the size that it has declared.
func (s *session) mayMail(size int64) error {
	if s.isSubmission() && s.client.user == "" {
		return reply(530, "5.7.0", "authentication required") // RFC 6409 §4.3
	}
	addr := s.client.addr.Addr()
	if load, busy := s.srv.limits.Busy(); busy && s.client.user == "" && !s.srv.limits.Exempt(addr) {
		s.srv.Log.Warn("refused", "client", s.client.String(), "status", "4.3.2", "reply", "too much load", "load", load)
		return reply(451, "4.3.2", "too much to do, try again later")
	}
	if s.srv.PostOffice != "" {
		if err := s.srv.limits.Space(s.srv.PostOffice, size); err != nil {
			s.srv.disk.begin(s.srv.Log, "storage-trouble", "reason", err, "client", s.client.String(),
				"advice", "clients are told to try again; df and zmctl check tell more")
			if errors.Is(err, limits.ErrSpace) {
				return reply(452, "4.3.1", "no space for the message now, try again later")
			}
			return reply(452, "4.3.0", "the message cannot be stored now, try again later")
		}
	}
	if err := s.srv.limits.Message(addr, s.client.user); err != nil {
		return s.exceeded(err)
	}
	return nil
}

// mayName tells whether a client may name one more recipient. One that tries addresses
// learns no more of them in a message that has recipients already, and may send that.
func (s *session) mayName() error {
	if w := s.wire; w.mostFaults > 0 && w.faults+w.nobodies >= w.mostFaults && s.taken > 0 {
		return reply(452, "4.5.3", "too many recipients were refused, send the message to those that were taken")
	}
	if most := s.mostRecipients(); most > 0 && s.taken >= most {
		return reply(452, "4.5.3", "Maximum limit of "+strconv.Itoa(most)+" recipients reached")
	}
	if err := s.srv.limits.Recipient(s.client.addr.Addr(), s.client.user); err != nil {
		return s.exceeded(err)
	}
	return nil
}

// mostRecipients is how many recipients a client may name in one message; 0: no limit. On
// ports for users only authenticated clients name any.
func (s *session) mostRecipients() int {
	most, unauth := s.srv.MaxRecipients, s.srv.MaxRecipientsUnauth
	if unauth <= 0 || s.trusted() || s.client.role != RoleMX || s.srv.limits.Exempt(s.client.addr.Addr()) {
		return most
	}
	if most > 0 {
		return min(most, unauth)
	}
	return unauth
}

// exceeded refuses what is above a rate for now.
func (s *session) exceeded(err error) error {
	s.srv.Log.Warn("refused", "client", s.client.String(), "user", s.client.user, "status", "4.7.1", "reply", err)
	return reply(450, "4.7.1", tooMany(err))
}

// countFaults counts the refusals among replies to the last command. Recipients are
// counted apart, and those that are only put off not at all: a client that is cut for them
// would come again with the same list in the same order until all of it bounces.
func (w *wire) countFaults(replies []byte) {
	if w.mostFaults <= 0 {
		return
	}
	for line := range bytes.Lines(replies) {
		switch {
		case len(line) < 4 || line[3] != ' ' || line[0] != '4' && line[0] != '5':
		case !isCommand(w.line, "RCPT "):
			w.faults++
		case line[0] == '5':
			w.nobodies++
		}
	}
}

// mostIdle is how many commands that do nothing a client may send between two messages
// before they count as errors: each one gives it the whole time limit anew.
const mostIdle = 100

// countIdle counts a command that does nothing.
func (w *wire) countIdle(line []byte) {
	if w.mostFaults <= 0 {
		return
	}
	verb, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte{' '})
	for _, v := range []string{"NOOP", "RSET", "HELP", "VRFY", "EHLO", "HELO", "LHLO"} {
		if !strings.EqualFold(string(verb), v) {
			continue
		}
		if w.idle++; w.idle > mostIdle {
			w.faults++
		}
		return
	}
}

// hasHadEnough ends a connection of which too many commands were refused (RFC 5321 §3.8
// allows 421 to any command). While a message has recipients, those that were refused
// are no reason: the others would never get it.
func (w *wire) hasHadEnough() bool {
	errs := w.faults
	if w.session == nil || w.session.taken == 0 {
		errs += w.nobodies
	}
	if w.mostFaults <= 0 || errs < w.mostFaults {
		return false
	}
	w.srv.Log.Warn("refused", "client", w.client.String(), "status", "4.7.0", "reply", "too many errors", "errors", errs)
	w.say(421, "4.7.0", "too many errors")
	w.leave()
	return true
}

// strictLines tells a client whose message must have no bare LF (SMTPBARELF): all but
// our users, this machine and our networks, whose programs are not written for the world.
func (s *session) strictLines() bool {
	return !s.srv.Limits.AcceptBareLF && s.client.user == "" && s.client.role == RoleMX && !isLoopback(s.client.addr) &&
		!s.srv.relay.trusts(s.client.addr.Addr())
}
