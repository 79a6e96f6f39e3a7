package smtpserver

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/emersion/go-smtp"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/policy/access"
)

// judging is what the rules have said of the open transaction, and what they go by.
type judging struct {
	// facts of the client and the transaction. Checks of the content put their results
	// here; judgeContent asks the rules then.
	facts access.Facts
	// frozen is the verdict that holds the message in freezer/: of a rule, a check or a
	// milter. The first one counts.
	frozen access.Verdict
	// waiting are the recipients that rules wait for the content with; pending tells
	// them apart from those that other rules wait with.
	waiting []waiting
	pending string
	taken   int // recipients
}

// waiting is a recipient that is decided about when the content is known.
type waiting struct {
	to    address.Mailbox
	local bool
}

// lookupTrouble answers when a table that a rule asks cannot tell.
var lookupTrouble = access.Verdict{Action: access.Defer, Code: 451, Status: status.SystemTrouble, Text: "this cannot be looked up now, try again later", By: "access"}

// trusted clients may send to any domain, unless a rule says otherwise.
func (s *session) trusted() bool {
	return s.client.user != "" || s.srv.relay.trusts(s.client.addr.Addr())
}

// begin starts with a transaction.
func (s *session) begin(from address.Mailbox) { s.judging = judging{facts: s.describe(from)} }

// describe collects what the rules may ask for.
func (s *session) describe(from address.Mailbox) access.Facts {
	c := &s.client
	f := access.Facts{
		Client: c.addr.Addr().Unmap().WithZone(""), Name: c.name, Role: string(c.role), Helo: c.helo,
		TLS: c.tls != nil, User: c.user, Trusted: s.trusted(), From: from,
	}
	if c.tls != nil && len(c.tls.PeerCertificates) > 0 {
		sum := sha256.Sum256(c.tls.PeerCertificates[0].Raw)
		f.Cert = hex.EncodeToString(sum[:])
	}
	return f
}

// judgeRecipient decides about one recipient; nil: it is taken, so far.
func (s *session) judgeRecipient(to address.Mailbox) *smtp.SMTPError {
	f := &s.facts
	f.To, f.Local, f.Rcpts = to, false, s.taken+1
	var err error
	if !f.Trusted || !s.srv.access.Empty() {
		f.Local, err = s.srv.relay.isLocal(s.srv.ctx, to)
	}
	d := access.Decision{}
	if err == nil {
		d, err = s.srv.access.Decide(s.srv.ctx, f)
	}
	if err != nil {
		s.srv.tables.begin(s.srv.Log, "access-trouble", "reason", err, "client", s.client.String())
		return s.refuse(lookupTrouble, to)
	}
	s.srv.tables.end(s.srv.Log, "access-recovered")
	switch {
	case d.Action == access.Reject || d.Action == access.Defer:
		return s.refuse(d.Verdict, to)
	case s.taken > 0 && d.Pending != s.pending:
		// There is one answer for the content, and rules that hold for one of the two alone
		// may give either. RFC 5321 §4.5.3.1.10: the client sends it in a transaction of
		// its own.
		return s.refuse(access.Verdict{Action: access.Defer, Code: 452, Status: status.Code{Class: 4, Subject: 5, Detail: 3},
			Text: "other rules hold for this recipient, send it in a transaction of its own", By: d.By}, to)
	}
	if v := s.verify(to); v.Action != access.None {
		return s.refuse(v, to)
	}
	if v := s.filterRecipient(to); v.Action != access.None {
		return s.refuse(v, to)
	}
	if d.Action == access.Freeze {
		s.freeze(d.Verdict)
	}
	s.taken++
	if s.pending = d.Pending; d.Pending != "" {
		s.waiting = append(s.waiting, waiting{to, f.Local})
	}
	return nil
}

// freeze has the message go to freezer/ when it is stored.
func (s *session) freeze(v access.Verdict) {
	if s.frozen.Action == access.None {
		s.frozen = v
	}
}

// refusedError is a message whose content the rules, a check or a milter refuse.
type refusedError struct{ verdict access.Verdict }

func (e *refusedError) Error() string { return e.verdict.By + ": " + e.verdict.Text }

// judgeContent decides about the message when all of it was read and checked. Its error
// is a *refusedError.
func (s *session) judgeContent(size int64) error {
	f := &s.facts
	f.Whole, f.Size, f.Rcpts = true, size, s.taken
	for _, w := range s.waiting {
		f.To, f.Local = w.to, w.local
		d, err := s.srv.access.Decide(s.srv.ctx, f)
		switch {
		case err != nil:
			s.srv.tables.begin(s.srv.Log, "access-trouble", "reason", err, "client", s.client.String())
			return &refusedError{lookupTrouble}
		case d.Action == access.Reject || d.Action == access.Defer:
			return &refusedError{d.Verdict}
		case d.Action == access.Freeze:
			s.freeze(d.Verdict)
		}
	}
	return nil
}

// refuse logs a refusal of a recipient, or of the sender where to is null, and makes its
// reply.
func (s *session) refuse(v access.Verdict, to address.Mailbox) *smtp.SMTPError {
	code, st, text := v.Reply()
	s.srv.Log.Info("refused", "from", s.facts.From.String(), "rcpt", to.String(), "client", s.client.String(),
		"status", st.String(), "reply", text, "by", v.By)
	return reply(code, st.String(), text)
}
