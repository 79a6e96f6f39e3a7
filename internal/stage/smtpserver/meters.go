package smtpserver

import (
	"time"

	"github.com/emersion/go-smtp"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/smtpserver/policy/access"
)

// meters are what smtpserver counts (Z26); without METRICS they count nothing.
type meters struct {
	connections *metrics.Counters   // role
	turnedAway  *metrics.Counters   // role
	messages    *metrics.Counters   // role, result
	recipients  *metrics.Counters   // role, result
	bytes       *metrics.Counters   // role
	receive     *metrics.Histograms // role
	commit      *metrics.Histogram
}

func newMeters(s *metrics.Set) meters {
	return meters{
		connections: s.Counter("zmailer_smtpserver_connections_total",
			"Connections that were taken, by the role of the port: mx, submission, submissions or lmtp.", "role"),
		turnedAway: s.Counter("zmailer_smtpserver_connections_turned_away_total",
			"Connections that were told 421 in place of a greeting.", "role"),
		messages: s.Counter("zmailer_smtpserver_messages_total",
			"Messages whose content was sent: accepted, frozen (accepted, and in freezer/), discarded, refused (5xx), deferred (4xx), or lost on the way.", "role", "result"),
		recipients: s.Counter("zmailer_smtpserver_recipients_total",
			"RCPT commands by their answer: accepted, refused (5xx) or deferred (4xx).", "role", "result"),
		bytes: s.Counter("zmailer_smtpserver_accepted_bytes_total",
			"Bytes of the message files of accepted messages.", "role"),
		receive: s.Histogram("zmailer_smtpserver_receive_seconds",
			"From DATA, or the first BDAT, to the answer to the message: the client's sending, filters and the disk.", metrics.Short(), "role"),
		commit: s.Histogram("zmailer_smtpserver_commit_seconds",
			"For a message that was accepted, to sync its file and move it to router/.", metrics.Short()).With(),
	}
}

// now is the time, if anybody wants to know how long something takes.
func (m *meters) now() time.Time {
	if m.messages == nil {
		return time.Time{}
	}
	return time.Now()
}

// What is answered, as the metrics name it.
const (
	resultAccepted  = "accepted"
	resultFrozen    = "frozen"
	resultDiscarded = "discarded"
	resultRefused   = "refused"
	resultDeferred  = "deferred"
	resultLost      = "lost"
)

// answer names what a client is told.
func answer(err error) string {
	e, ok := err.(*smtp.SMTPError)
	switch {
	case err == nil || ok && e.Code < 300:
		return resultAccepted
	case ok && e.Code >= 500:
		return resultRefused
	}
	return resultDeferred
}

// known has the counters of a role there with 0: the first one is a rise, too.
func (m *meters) known(role string) {
	m.connections.With(role)
	m.turnedAway.With(role)
	m.bytes.With(role)
	for _, result := range []string{resultAccepted, resultRefused, resultDeferred} {
		m.messages.With(role, result)
		m.recipients.With(role, result)
	}
}

// recipient counts an answer to RCPT.
func (m *meters) recipient(r Role, err error) {
	if m.recipients != nil {
		m.recipients.With(string(r), answer(err)).Add(1)
	}
}

// message counts the answer to a message's content.
func (m *meters) message(s *session, began time.Time, err error) {
	if m.messages == nil {
		return
	}
	role, result := string(s.client.role), answer(err)
	switch {
	case err == error(lostReply):
		result = resultLost
	case result != resultAccepted:
	case s.discarded != "":
		result = resultDiscarded
	case s.frozen.Action == access.Freeze:
		result = resultFrozen
	}
	m.messages.With(role, result).Add(1)
	if result != resultLost {
		h := m.receive.With(role)
		h.Observe(h.Since(began))
	}
}

// stored counts a message that is in router/ or freezer/.
func (m *meters) stored(s *session, began time.Time, size int64) {
	if m.messages == nil {
		return
	}
	m.commit.Observe(m.commit.Since(began))
	m.bytes.With(string(s.client.role)).Add(int(size))
}

// serveMetrics has the numbers read until stop is called.
func (s *server) serveMetrics(entrances map[Role]*entrance) (stop func()) {
	for role := range entrances {
		s.meters.known(string(role))
	}
	s.Metrics.Ask(0, func(put metrics.Put) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for w := range s.wires {
			if e := w.entrance; e != nil {
				put("zmailer_smtpserver_connections", 1, string(e.role))
			}
		}
		for role := range entrances {
			put("zmailer_smtpserver_connections", 0, string(role))
		}
	}, metrics.Family{Name: "zmailer_smtpserver_connections", Help: "Connections that are open.", Labels: []string{"role"}})
	return s.Metrics.Serve(s.PostOffice, postoffice.ListenAlone, s.Log)
}
