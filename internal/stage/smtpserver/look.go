package smtpserver

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/held"
)

// looks tells whether somebody has to see the content before it is stored. All other
// messages are written as they come.
func (s *session) looks() bool {
	return s.discarded != "" || s.checked() || s.filtered()
}

// checked tells whether it is to be found out who vouches for the message: for strangers,
// at the door that they come in by.
func (s *session) checked() bool {
	return s.srv.checks != nil && s.client.role == RoleMX && !s.facts.Trusted
}

// hold reads the content and keeps it, shows it, and writes the message file.
func (s *session) hold(c *content) (postoffice.Accepted, error) {
	h := held.New(s.holding)
	defer s.release(h)
	var out io.Writer = h
	if s.discarded != "" {
		out = io.Discard
	}
	spf := s.beginChecks()
	end, err := c.copyTo(out)
	if err != nil {
		if !end {
			err = lost(err)
		}
		return postoffice.Accepted{}, err
	}
	if s.discarded != "" {
		return s.discard()
	}
	l, err := newLetter(h)
	if errors.Is(err, held.ErrHeader) {
		return postoffice.Accepted{}, &refusedError{access.Verdict{Action: access.Reject, Code: 552, Status: status.Code{Class: 5, Subject: 3, Detail: 4},
			Text: "the header is too long", By: "header"}}
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	defer func() { s.release(l.replaced) }()
	results, err := s.check(l, spf)
	if err != nil {
		return postoffice.Accepted{}, err
	}
	if err := s.judgeContent(c.size); err != nil {
		return postoffice.Accepted{}, err
	}
	if err := s.show(l); err != nil {
		return postoffice.Accepted{}, err
	}
	if len(s.transaction.Recipients) == 0 && s.discarded == "" {
		s.discarded = l.by[len(l.by)-1]
	}
	if s.discarded != "" {
		return s.discard()
	}
	return s.write(l, results)
}

// holding makes a file for what is too long for the memory.
func (s *session) holding() (held.File, error) {
	d, err := s.srv.po.Submissions.NewDraft("held")
	if err != nil {
		return nil, err
	}
	return d, nil
}

// release gives back what was held; nil: nothing.
func (s *session) release(h *held.Content) {
	if h == nil {
		return
	}
	// What cannot be removed now has no execute bit and is swept.
	if err := h.Close(); err != nil {
		s.srv.Log.Warn("leftover", "name", postoffice.Public, "reason", err)
	}
}

// beginChecks asks for SPF while the content comes.
func (s *session) beginChecks() <-chan checks.SPF {
	if !s.checked() {
		return nil
	}
	found := make(chan checks.SPF, 1)
	client, helo, from := s.facts.Client, s.client.helo, s.facts.From
	go func() {
		result := checks.SPF{Value: checks.TempError}
		defer func() {
			// The library reads what strangers publish; nobody else catches its panics here.
			if r := recover(); r != nil {
				s.srv.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic checking SPF for %s: %v\n%s", client, r, debug.Stack()))
			}
			found <- result
		}()
		ctx, cancel := s.srv.checks.Limit(s.srv.ctx)
		defer cancel()
		result = s.srv.checks.SPF(ctx, client, helo, from)
	}()
	return found
}

// check finds out who vouches for the message, tells the rules, and puts it on top. The
// error is the disk's.
func (s *session) check(l *letter, spf <-chan checks.SPF) (*checks.Results, error) {
	if spf == nil {
		return nil, nil
	}
	c := s.srv.checks
	ctx, cancel := c.Limit(s.srv.ctx)
	defer cancel()
	dkim, err := c.DKIM(ctx, l.originals, l.whole)
	if err != nil {
		return nil, err
	}
	// The digest may have taken longer than any question may.
	ctx, end := c.Limit(s.srv.ctx)
	defer end()
	r := &checks.Results{SPF: <-spf, DKIM: dkim}
	r.DMARC = c.DMARC(ctx, l.fields, r)
	s.facts.SPF, s.facts.DKIM, s.facts.DMARC = string(r.SPF.Value), string(r.DKIMValue()), string(r.DMARC.Value)
	s.facts.Policy = r.DMARC.Policy
	if n := l.drop(c.Forged); n > 0 {
		s.srv.Log.Info("forged", "from", s.transaction.From, "client", s.client.String(), "fields", n)
	}
	l.insert(0, envelope.Field{Name: "Authentication-Results", Raw: c.Field(r)})
	return r, nil
}

// write makes the message file of a letter.
func (s *session) write(l *letter, r *checks.Results) (postoffice.Accepted, error) {
	draft, err := s.newDraft()
	if draft != nil {
		defer s.abort(draft)
	}
	if err == nil {
		err = l.writeTo(draft)
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	a, err := s.enter(draft)
	if err != nil {
		return a, err
	}
	if r != nil {
		s.srv.Log.Info("checked", "id", a.ID.String(), "spf", s.facts.SPF, "dkim", s.facts.DKIM, "dmarc", s.facts.DMARC, "policy", r.DMARC.Policy)
	}
	if l.changes > 0 {
		s.srv.Log.Info("changed", "id", a.ID.String(), "by", l.by, "changes", l.changes)
	}
	return a, nil
}

// discard takes a message that a filter has thrown away. The ledger and the log say so;
// the client is told what it would be told otherwise.
func (s *session) discard() (postoffice.Accepted, error) {
	draft, err := s.newDraft()
	if draft != nil {
		defer s.abort(draft)
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	id, err := draft.Drop()
	if err != nil {
		return postoffice.Accepted{}, err
	}
	n := s.taken
	s.srv.ledger.Accepting().In(id, n)
	s.srv.ledger.Gone(id, n, "discarded")
	s.srv.Log.Info("discarded", "id", id.String(), "from", s.transaction.From, "rcpts", n, "client", s.client.String(), "by", s.discarded)
	return postoffice.Accepted{ID: id}, nil
}
