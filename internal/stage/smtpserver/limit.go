package smtpserver

import (
	"errors"
	"strconv"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
)

// admit reports whether a connection is within the limits, and counts it until it is
// closed. A client above them gets 421.
func (s *server) admit(c *connection) bool {
	if s.refuseDrained(c) || s.refuseUnleased(c) {
		return false
	}
	addr := c.Client().Addr.Addr()
	if c.uncount != nil || s.limits.Exempt(addr) {
		return true
	}
	c.LimitErrors(s.Limits.Errors)
	if load, busy := s.limits.Busy(); busy {
		s.flood.Warn("refused", "client", c.Client().String(), "stage", stageConnect, "code", 421, "status", "4.3.2", "reply", "too much load", "load", load)
		s.turnAway(c, "4.3.2", "Error: server busy, try again later")
		return false
	}
	done, err := s.limits.Connect(addr)
	if err != nil {
		s.flood.Warn("refused", "client", c.Client().String(), "stage", stageConnect, "code", 421, "status", "4.7.0", "reply", err)
		s.turnAway(c, "4.7.0", tooMany(err))
		return false
	}
	c.uncount = done
	return true
}

// turnAway closes a connection that was not greeted.
func (s *server) turnAway(c *connection, enhanced, text string) {
	s.meters.turnedAway.With(string(c.Client().Role)).Add(1)
	c.Refuse(session.NewReply(421, enhanced, s.Hostname+" "+text))
}

// tooMany returns the reply's text for a limit that was reached.
func tooMany(err error) string {
	var e *limits.Excess
	if !errors.As(err, &e) {
		return "Error: try again later"
	}
	return "Error: too many " + e.What
}

// checkMail checks the limits for a message of the size that the client has declared.
func (h *handler) checkMail(m *session.Mail) *session.Reply {
	if isSubmission(h.client.Role) && h.client.User == "" {
		return session.NewReply(530, "5.7.0", "Authentication required") // RFC 6409 section 4.3
	}
	if h.client.Role == session.RoleReinject && !session.Contains(h.Clients.ReinjectNets, h.client.Addr.Addr()) {
		return h.refuse(access.Verdict{Action: access.Reject, Code: 554, Status: status.Code{Class: 5, Subject: 7, Detail: 1},
			Text: "Access denied: this port is for the content filter", By: "REINJECTNETS"}, address.Mailbox{})
	}
	if r := h.checkDrain(); r != nil {
		return r
	}
	if r := h.checkLease(); r != nil {
		return r
	}
	addr := h.client.Addr.Addr()
	if load, busy := h.limits.Busy(); busy && h.client.User == "" && !h.limits.Exempt(addr) {
		h.Log.Warn("refused", "client", h.client.String(), "stage", stageMail, "code", 451, "status", "4.3.2", "reply", "too much load", "load", load)
		return session.NewReply(451, "4.3.2", "Error: server busy, try again later")
	}
	if r := h.tx.checkSpace(m.Size); r != nil {
		return r
	}
	if r := h.findRates(m.From); r != nil {
		return r
	}
	if err := h.limits.Message(&h.tx.who); err != nil {
		return h.exceeded(err)
	}
	return nil
}

// findRates finds the rates for a message from a sender.
func (h *handler) findRates(from address.Mailbox) *session.Reply {
	w := &h.tx.who
	*w = limits.Who{Addr: h.client.Addr.Addr(), User: h.client.User}
	own := h.rules.HasRates()
	if own || h.limits.CountsSenders() {
		w.Sender = policy.SenderKey(from)
	}
	if own {
		var err error
		if w.UserRates, w.SenderRates, err = h.rules.Rates(h.ctx, w.User, from); err != nil {
			return reply(h.rules.LookupFailed(err, h.client))
		}
	}
	return nil
}

// checkSpace checks whether the disk has space for size bytes.
func (t *transaction) checkSpace(size int64) *session.Reply {
	if t.PostOffice == "" {
		return nil
	}
	err := t.space(size)
	if err == nil {
		return nil
	}
	t.storageTrouble(err)
	if errors.Is(err, limits.ErrSpace) {
		return session.NewReply(452, "4.3.1", "Insufficient system storage")
	}
	return session.NewReply(452, "4.3.0", "Temporary storage failure")
}

// checkRcpt checks the limits for one more recipient.
func (h *handler) checkRcpt() *session.Reply {
	if most := h.maxRecipients(); most > 0 && h.tx.policy.Taken >= most {
		return session.NewReply(452, "4.5.3", "Error: too many recipients, at most "+strconv.Itoa(most))
	}
	if err := h.limits.Recipient(&h.tx.who); err != nil {
		return h.exceeded(err)
	}
	return nil
}

// maxRecipients returns the limit for one message of the client; 0: none. On ports for
// submission only authenticated clients name any.
func (h *handler) maxRecipients() int {
	most, unauth := h.Limits.MaxRecipients, h.Limits.MaxRecipientsUnauth
	if unauth <= 0 || h.trusted() || h.client.Role != session.RoleMX || h.limits.Exempt(h.client.Addr.Addr()) {
		return most
	}
	if most > 0 {
		return min(most, unauth)
	}
	return unauth
}

// exceeded defers a command above a rate.
func (h *handler) exceeded(err error) *session.Reply {
	kind := ""
	if e := (*limits.Excess)(nil); errors.As(err, &e) {
		kind = e.Kind
	}
	h.meters.exceeded.With(kind).Add(1)
	stage := stageRcpt
	if h.tx.envelope == nil {
		stage = stageMail
	}
	h.Log.Warn("refused", "client", h.client.String(), "user", h.client.User, "from", h.tx.who.Sender, "stage", stage, "code", 450, "status", "4.7.1", "reply", err, "by", "rate "+kind)
	return session.NewReply(450, "4.7.1", tooMany(err))
}

// refusesBareLF reports whether the client's message must have no bare LF (SMTPBARELF): all
// but our users, this machine and our networks, whose programs often send them.
func (h *handler) refusesBareLF() bool {
	return !h.Limits.AcceptBareLF && h.client.Role == session.RoleMX && !h.client.IsLoopback() && !h.trusted()
}
