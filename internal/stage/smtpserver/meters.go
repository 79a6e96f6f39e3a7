package smtpserver

import (
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
)

// meters are the metrics of smtpserver (Z26); without METRICS they count nothing.
type meters struct {
	connections *metrics.Counters   // role
	turnedAway  *metrics.Counters   // role
	evicted     *metrics.Counters   // role
	exceeded    *metrics.Counters   // limit
	messages    *metrics.Counters   // role, result
	recipients  *metrics.Counters   // role, result
	bytes       *metrics.Counters   // role
	receive     *metrics.Histograms // role
	commit      *metrics.Histogram
}

func newMeters(s *metrics.Set) meters {
	return meters{
		connections: s.Counter("zmailer_smtpserver_connections_total",
			"Connections accepted, by the role of the port: mx, submission, submissions or lmtp.", "role"),
		turnedAway: s.Counter("zmailer_smtpserver_connections_turned_away_total",
			"Connections that got 421 in place of a greeting.", "role"),
		evicted: s.Counter("zmailer_smtpserver_connections_evicted_total",
			"Connections of unauthenticated clients that were closed to make place for others.", "role"),
		exceeded: s.Counter("zmailer_smtpserver_rate_exceeded_total",
			"Commands that got 450 because a rate was used up: messages or recipients of a client's address, of a user, or of a sender.", "limit"),
		messages: s.Counter("zmailer_smtpserver_messages_total",
			"Messages whose content was sent: accepted, frozen (accepted, and in freezer/), discarded, refused (5xx), deferred (4xx), or lost on the way.", "role", "result"),
		recipients: s.Counter("zmailer_smtpserver_recipients_total",
			"RCPT commands by their reply: accepted, refused (5xx) or deferred (4xx).", "role", "result"),
		bytes: s.Counter("zmailer_smtpserver_accepted_bytes_total",
			"Bytes of the message files of accepted messages.", "role"),
		receive: s.Histogram("zmailer_smtpserver_receive_seconds",
			"From DATA, or the first BDAT, to the reply to the message: the client, filters and the disk.", metrics.Short(), "role"),
		commit: s.Histogram("zmailer_smtpserver_commit_seconds",
			"To sync the file of an accepted message and move it to router/.", metrics.Short()).With(),
	}
}

// now returns the time, if durations are measured.
func (m *meters) now() time.Time {
	if m.messages == nil {
		return time.Time{}
	}
	return time.Now()
}

// Results, as the metrics name them.
const (
	resultAccepted  = "accepted"
	resultFrozen    = "frozen"
	resultDiscarded = "discarded"
	resultRefused   = "refused"
	resultDeferred  = "deferred"
	resultLost      = "lost"
)

// result names a reply by its code.
func result(code int) string {
	switch {
	case code < 300:
		return resultAccepted
	case code >= 500:
		return resultRefused
	}
	return resultDeferred
}

// known creates the counters of a role with 0, so that the first event is an increase.
func (m *meters) known(role string) {
	m.connections.With(role)
	m.turnedAway.With(role)
	m.evicted.With(role)
	m.bytes.With(role)
	for _, of := range []string{"client-", "user-", "sender-"} {
		m.exceeded.With(of + "messages")
		m.exceeded.With(of + "recipients")
	}
	for _, result := range []string{resultAccepted, resultRefused, resultDeferred} {
		m.messages.With(role, result)
		m.recipients.With(role, result)
	}
}

// recipient counts a reply to RCPT.
func (m *meters) recipient(r session.Role, code int) {
	if m.recipients != nil {
		m.recipients.With(string(r), result(code)).Add(1)
	}
}

// message counts the reply to a message's content: r or, without an error, acceptance. No
// reply and an error are a client that is lost.
func (m *meters) message(t *transaction, began time.Time, r *session.Reply, err error) {
	if m.messages == nil {
		return
	}
	role, word := string(t.client.Role), resultAccepted
	switch {
	case r != nil:
		word = result(r.Code)
	case err != nil:
		word = resultLost
	case t.discarded || t.discardedBy() != "" || t.count() == 0:
		word = resultDiscarded
	case t.policy.Frozen.Action == access.Freeze:
		word = resultFrozen
	}
	m.messages.With(role, word).Add(1)
	if word != resultLost {
		times := m.receive.With(role)
		times.Observe(times.Since(began))
	}
}

// stored counts a message that is in router/ or freezer/.
func (m *meters) stored(role session.Role, began time.Time, size int64) {
	if m.messages == nil {
		return
	}
	m.commit.Observe(m.commit.Since(began))
	m.bytes.With(string(role)).Add(int(size))
}

// greylistEntries is the gauge of the greylist's tables.
const greylistEntries = "zmailer_smtpserver_greylist_entries"

// leaseSeconds is the gauge of what is left of the lease.
const leaseSeconds = "zmailer_smtpserver_lease_seconds"

// serveMetrics serves the metrics until stop is called.
func (s *server) serveMetrics() (stop func()) {
	for role := range s.protocols {
		s.meters.known(string(role))
	}
	s.Metrics.Ask(0, func(put metrics.Put) {
		accepting := 1.0
		if !s.healthy() {
			accepting = 0
		}
		if s.Lease != nil {
			put(leaseSeconds, s.Lease.Left().Seconds())
		}
		put("zmailer_smtpserver_accepting", accepting)
		if s.grey != nil {
			waiting, passed, clients := s.grey.Sizes()
			put(greylistEntries, float64(waiting), "waiting")
			put(greylistEntries, float64(passed), "passed")
			put(greylistEntries, float64(clients), "clients")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.connections {
			put("zmailer_smtpserver_connections", 1, string(c.role))
		}
		for role := range s.protocols {
			put("zmailer_smtpserver_connections", 0, string(role))
		}
	}, metrics.Family{Name: "zmailer_smtpserver_accepting", Help: "1 while new mail is accepted; 0 after zmctl stop --accepting, and in a cluster from shortly before the end of the lease."},
		metrics.Family{Name: leaseSeconds, Help: "What is left of the lease of this machine, in a cluster."},
		metrics.Family{Name: "zmailer_smtpserver_connections", Help: "Connections that are open.", Labels: []string{"role"}},
		metrics.Family{Name: greylistEntries, Help: "Entries of the greylist: waiting for a second attempt, passed, and client networks.", Labels: []string{"table"}})
	s.Metrics.Health(s.healthy)
	return s.Metrics.Serve(s.PostOffice, socket.ListenAlone, s.Log)
}
