package smtpserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/wire/milter"
)

// Content implements session.Handler.
func (h *handler) Content(c *session.Content) *session.Reply {
	began := h.meters.now()
	r, a, err := h.receive(c)
	h.meters.message(h, began, r, err)
	if err == nil {
		return &session.Reply{Code: 250, Status: status.OK, Text: "Ok: queued as " + a.ID.String()}
	}
	return r
}

// receive stores a message, or makes the reply that refuses it.
func (h *handler) receive(c *session.Content) (*session.Reply, postoffice.Accepted, error) {
	c.RefuseBareLF = h.refusesBareLF()
	a, err := h.store(c)
	if err == nil || errors.Is(err, session.ErrLost) || errors.Is(err, session.ErrAbandoned) {
		return nil, a, err
	}
	return h.refusal(err), a, err
}

// store writes a message to public/ and moves it to router/. Messages that no filter and no
// check has to read are written as they come.
func (h *handler) store(c *session.Content) (postoffice.Accepted, error) {
	// Nothing is made on disk for a client that goes away now.
	if err := c.Wait(); err != nil {
		return postoffice.Accepted{}, err
	}
	if h.filters.Discarded() != "" || h.checked() || h.filters.Wanted() {
		return h.spool(c)
	}
	draft, err := h.newDraft()
	if draft != nil {
		defer h.abort(draft)
	}
	var out io.Writer = io.Discard
	if err != nil {
		c.Refuse(err)
	} else {
		out = draft
	}
	if err := c.CopyTo(out); err != nil {
		return postoffice.Accepted{}, err
	}
	if err := h.policy.Content(h.ctx, c.Size()); err != nil {
		return postoffice.Accepted{}, err
	}
	return h.commit(draft)
}

// checked reports whether SPF, DKIM and DMARC are checked: for other hosts' mail.
func (h *handler) checked() bool {
	return h.checks != nil && h.client.Role == session.RoleMX && !h.policy.Trusted
}

// spool reads the content and keeps it, gives it to checks, rules and filters, and writes
// the message file.
func (h *handler) spool(c *session.Content) (postoffice.Accepted, error) {
	s := content.NewSpool(h.spoolFile)
	defer h.release(s)
	var out io.Writer = s
	if h.filters.Discarded() != "" {
		out = io.Discard
	}
	spf := h.startSPF()
	if err := c.CopyTo(out); err != nil {
		return postoffice.Accepted{}, err
	}
	if h.filters.Discarded() != "" {
		return h.discard(h.filters.Discarded())
	}
	m, err := content.NewMessage(s)
	if errors.Is(err, content.ErrHeader) {
		err = &access.RefusedError{Verdict: access.Verdict{Action: access.Reject, Code: 552, Status: status.Code{Class: 5, Subject: 3, Detail: 4},
			Text: "Message header too large", By: "header"}}
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	m.From = h.envelope.From
	defer m.Release(h.release)
	results, err := h.check(m, spf)
	if err == nil {
		err = h.policy.Content(h.ctx, c.Size())
	}
	if err == nil {
		err = h.filters.Content(m, h.spoolFile, h.release, h.change)
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	switch by := h.filters.Discarded(); {
	case by != "":
		return h.discard(by)
	case len(h.envelope.Recipients) == 0:
		return h.discard(m.ChangedBy[len(m.ChangedBy)-1])
	}
	return h.write(m, results)
}

// change makes a filter's change of the envelope, or its quarantine.
func (h *handler) change(filter string, c milter.Change) error {
	if c.Kind == milter.Quarantine {
		h.policy.Freeze(content.Quarantine(filter, c))
		return nil
	}
	dsn := ""
	if h.requireTLS {
		dsn = requireTLS
	}
	return content.ChangeEnvelope(h.envelope, c, dsn)
}

// spoolFile makes a file for a content too long for the memory.
func (h *handler) spoolFile() (content.File, error) {
	d, err := h.po.Submissions.NewDraft("held")
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (h *handler) release(s *content.Spool) {
	// A file that cannot be removed now has no execute bit and is swept.
	if err := s.Close(); err != nil {
		h.Log.Warn("leftover", "name", postoffice.Public, "reason", err)
	}
}

// startSPF looks up SPF while the content comes.
func (h *handler) startSPF() <-chan checks.SPF {
	if !h.checked() {
		return nil
	}
	found := make(chan checks.SPF, 1)
	client, helo, from := h.policy.Client, h.client.Helo, h.policy.From
	go func() {
		result := checks.SPF{Value: checks.TempError}
		defer func() {
			// The library parses what any domain publishes; a panic in it ends this check alone.
			if r := recover(); r != nil {
				h.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic checking SPF for %s: %v\n%s", client, r, debug.Stack()))
			}
			found <- result
		}()
		ctx, cancel := h.checks.Limit(h.ctx)
		defer cancel()
		result = h.checks.SPF(ctx, client, helo, from)
	}()
	return found
}

// check makes the checks of a message, puts their results among the facts for the rules and
// into a field on top. The error is the disk's.
func (h *handler) check(m *content.Message, spf <-chan checks.SPF) (*checks.Results, error) {
	if spf == nil {
		return nil, nil
	}
	c := h.checks
	ctx, cancel := c.Limit(h.ctx)
	defer cancel()
	fields, whole := m.Original()
	dkim, err := c.DKIM(ctx, fields, whole)
	if err != nil {
		return nil, err
	}
	// The digest may have taken longer than the time for look-ups.
	ctx, end := c.Limit(h.ctx)
	defer end()
	r := &checks.Results{SPF: <-spf, DKIM: dkim}
	r.DMARC = c.DMARC(ctx, m.Fields(), r)
	f := &h.policy.Facts
	f.SPF, f.DKIM, f.DMARC = string(r.SPF.Value), string(r.DKIMValue()), string(r.DMARC.Value)
	f.Policy = r.DMARC.Policy
	if n := m.Drop(c.Forged); n > 0 {
		h.Log.Info("forged", "from", h.envelope.From, "client", h.client.String(), "fields", n)
	}
	m.Put(envelope.Field{Name: "Authentication-Results", Raw: c.Field(r)})
	return r, nil
}

// write makes the message file of a spooled message.
func (h *handler) write(m *content.Message, r *checks.Results) (postoffice.Accepted, error) {
	draft, err := h.newDraft()
	if draft != nil {
		defer h.abort(draft)
	}
	if err == nil {
		err = m.Write(draft)
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	a, err := h.commit(draft)
	if err != nil {
		return a, err
	}
	if r != nil {
		f := &h.policy.Facts
		h.Log.Info("checked", "id", a.ID.String(), "spf", f.SPF, "dkim", f.DKIM, "dmarc", f.DMARC, "policy", r.DMARC.Policy)
	}
	if m.Changes > 0 {
		h.Log.Info("changed", "id", a.ID.String(), "by", m.ChangedBy, "changes", m.Changes)
	}
	return a, nil
}

// discard accepts a message that a filter has discarded. The ledger and the log have it; the
// client gets the same reply as for any other message.
func (h *handler) discard(by string) (postoffice.Accepted, error) {
	draft, err := h.newDraft()
	if draft != nil {
		defer h.abort(draft)
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	id, err := draft.Drop()
	if err != nil {
		return postoffice.Accepted{}, err
	}
	n := h.policy.Taken
	h.ledger.Accepting().In(id, n)
	h.ledger.Gone(id, n, "discarded")
	h.Log.Info("discarded", "id", id.String(), "from", h.envelope.From, "rcpts", n, "client", h.client.String(), "by", by)
	return postoffice.Accepted{ID: id}, nil
}

// envelopeBuffers hold the envelope lines of a message while they are made.
var envelopeBuffers = sync.Pool{New: func() any { return new([]byte) }}

// newDraft begins the message file with its envelope. With an error the draft may
// be there nevertheless.
func (h *handler) newDraft() (*postoffice.Draft, error) {
	buf := envelopeBuffers.Get().(*[]byte)
	defer envelopeBuffers.Put(buf)
	lines, err := envelope.Append((*buf)[:0], h.envelope)
	if err != nil {
		return nil, err
	}
	*buf = lines
	draft, err := h.po.Submissions.NewDraft("smtp")
	if err != nil {
		return nil, err
	}
	draft.Into(h.RouterDir)
	_, err = draft.Write(lines)
	return draft, err
}

// abort removes a draft that was not committed.
func (h *handler) abort(draft *postoffice.Draft) {
	// A file that cannot be removed now has no execute bit and is swept.
	if err := draft.Abort(); err != nil {
		h.Log.Warn("leftover", "name", postoffice.Public+"/"+draft.Name(), "reason", err)
	}
}

// commit makes the draft a message, in router/ or freezer/, and enters it into the ledger.
func (h *handler) commit(draft *postoffice.Draft) (postoffice.Accepted, error) {
	accepting := h.ledger.Accepting()
	began := h.meters.now()
	a, err := h.move(draft)
	if err != nil {
		accepting.Abandon()
		return postoffice.Accepted{}, err
	}
	h.meters.stored(h, began, a.Size)
	// Crash: the router's line in the ledger replaces this one.
	accepting.In(a.ID, len(h.envelope.Recipients))
	h.disk.End(h.Log, "storage-recovered")
	h.Log.LogAttrs(h.ctx, slog.LevelInfo, "accepted", slog.String("id", a.ID.String()), slog.String("from", h.envelope.From),
		slog.Int64("size", a.Size), slog.Int("rcpts", len(h.envelope.Recipients)), slog.String("client", h.client.String()))
	return a, nil
}

// move moves the draft to router/ or, where a rule, a check or a filter wants so, to
// freezer/.
func (h *handler) move(draft *postoffice.Draft) (postoffice.Accepted, error) {
	v := h.policy.Frozen
	if v.Action != access.Freeze {
		return draft.Commit()
	}
	a, err := draft.CommitFrozen(v.Cause)
	if err != nil {
		return a, err
	}
	why := v.By
	if v.Text != "" {
		why += ": " + v.Text
	}
	err = h.po.Aside.Explain(postoffice.Freezer, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "smtpserver",
		What: postoffice.WasFrozen, Text: v.Cause + ": " + why})
	if err != nil {
		// It is for operators; the file name has the cause.
		h.Log.Warn("no-reason", "id", a.ID.String(), "name", a.Name, "reason", err)
	}
	h.Log.Warn("frozen", "id", a.ID.String(), "name", a.Name, "reason", why, "advice", "zmctl freezer thaw, or zmctl freezer discard")
	return a, nil
}

// refusal is the reply for a message that was not stored; it logs why. A fault of ours is
// never answered with 5xx (S21): the client keeps the message.
func (h *handler) refusal(err error) *session.Reply {
	refused := func(r *session.Reply, more ...any) *session.Reply {
		h.Log.Info("refused", append([]any{"from", h.envelope.From, "client", h.client.String(), "status", r.Status.String(), "reply", r.Text}, more...)...)
		return r
	}
	if r := (*access.RefusedError)(nil); errors.As(err, &r) {
		return refused(reply(r.Verdict), "by", r.By)
	}
	switch {
	case errors.Is(err, session.ErrTooLarge):
		return refused(session.NewReply(552, "5.3.4", fmt.Sprintf("Message size exceeds fixed limit of %d bytes", h.MaxSize)))
	case errors.Is(err, envelope.ErrTooLarge):
		return session.NewReply(452, "4.5.3", "Error: too many recipients")
	case errors.Is(err, session.ErrBareLF):
		return refused(session.NewReply(550, "5.6.0", "Bare LF in message content (RFC 5321 section 2.3.8)"))
	}
	h.storageTrouble(err)
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
		if errors.Is(err, full) {
			return session.NewReply(452, "4.3.1", "Insufficient system storage")
		}
	}
	return session.NewReply(451, "4.3.0", "Temporary storage failure")
}

func (h *handler) storageTrouble(err error) {
	h.disk.Begin(h.Log, "storage-trouble", "reason", err, "client", h.client.String(),
		"advice", "messages are deferred; see df and zmctl check")
}
