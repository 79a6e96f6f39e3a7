package smtpserver

import (
	"zmailer/internal/postoffice"
	"zmailer/internal/run/lease"
	"zmailer/internal/stage/smtpserver/session"
)

// In a cluster mail is accepted only under this machine's lease: a message that is accepted past
// its deadline might lie in a postoffice that another machine serves and has read. In no cluster
// each of these looks is a comparison with nil.

// noLease is the text of the replies.
const noLease = "Service not available, closing transmission channel"

// leased reports whether this machine has a lease for a step. The begin and the end of a time without
// one are logged once.
func (s *server) leased(err error) bool {
	if s.Lease == nil {
		return true
	}
	if err != nil {
		s.unleased.Begin(s.Log, "lease-lost", "reason", err, "advice", "clients get 421 until zmcluster has a lease")
		return false
	}
	s.unleased.End(s.Log, "lease-held")
	return true
}

// healthy reports whether new clients are welcome. In a cluster that ends before they are refused.
func (s *server) healthy() bool { return !s.drain.draining() && s.Lease.Check(lease.Soon) == nil }

// refuseUnleased refuses a connection while there is no lease.
func (s *server) refuseUnleased(c *connection) bool {
	if s.leased(s.Lease.Check(lease.Step)) {
		return false
	}
	s.flood.Warn("refused", "client", c.Client().String(), "stage", stageConnect, "code", 421, "status", "4.3.2", "reply", "no lease")
	s.turnAway(c, "4.3.2", noLease)
	return true
}

// replyUnleased is the reply to a command, or to a message, while there is no lease.
func (s *server) replyUnleased() *session.Reply {
	return session.NewReply(421, "4.3.2", s.Hostname+" "+noLease)
}

// checkLease refuses a message while there is no lease.
func (h *handler) checkLease() *session.Reply {
	if h.leased(h.Lease.Check(lease.Step)) {
		return nil
	}
	h.flood.Warn("refused", "client", h.client.String(), "user", h.client.User, "stage", stageMail, "code", 421, "status", "4.3.2", "reply", "no lease")
	return h.replyUnleased()
}

// withheld returns the reply to a message that was stored when the lease ended; nil: it is 250. The
// machine that serves the postoffice next delivers the message, and the client sends it again: the
// second copy that every lost reply makes (RFC 5321 section 4.5.3.2.6).
func (h *handler) withheld(a postoffice.Accepted) *session.Reply {
	err := h.Lease.Check(0)
	if h.leased(err) {
		return nil
	}
	h.Log.Warn("reply-withheld", "id", a.ID.String(), "name", a.Name, "client", h.client.String(), "reason", err)
	return h.replyUnleased()
}
