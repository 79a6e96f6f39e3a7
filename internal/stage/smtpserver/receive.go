package smtpserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/lease"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/wire/milter"
)

// transaction is a message from MAIL to the reply to its content. No message is open
// while the envelope is nil.
type transaction struct {
	*server
	client *session.Client // of the connection
	conn   session.Peer

	recipients // those that are not in envelope.Recipients
	envelope   *envelope.Envelope
	lineSize   int  // bytes of the lines of its recipients
	requireTLS bool // it has REQUIRETLS
	who        limits.Who
	policy     policy.Transaction
	forwarded  *session.Forwarded    // nil: the client has not said where the message comes from
	scan       *contentrules.Scanner // nil: no rule about header or body concerns it
	discarded  bool                  // by such a rule
	filters    *content.Session
	out        contentWriter
	onDisk     int64 // bytes that its file may have
	unchecked  int   // of them, since the space was measured
}

// reset ends the message.
func (t *transaction) reset() {
	t.endRecipients()
	t.removed()
	t.envelope, t.forwarded = nil, nil
	t.scan, t.discarded = nil, false
	t.policy = policy.Transaction{}
	t.filters.Reset()
}

// store writes a message to public/ and moves it to router/. Messages that no filter and no
// check has to read are written as they come.
func (t *transaction) store(c *session.Content) (postoffice.Accepted, error) {
	// Nothing is made on disk for a client that goes away now.
	if err := c.Wait(); err != nil {
		return postoffice.Accepted{}, err
	}
	if t.failed != nil {
		c.Refuse(t.failed)
		return postoffice.Accepted{}, c.CopyTo(io.Discard)
	}
	t.hold()
	if t.discardedBy() != "" || t.checked() || t.filters.Wanted() || t.policy.ChangesAtEnd() || t.prepends() || t.scan != nil && t.scan.Edits() {
		return t.spool(c)
	}
	t.applyEffects()
	draft, err := t.newDraft()
	if draft != nil {
		defer t.abort(draft)
	}
	var out io.Writer = io.Discard
	if err != nil {
		c.Refuse(err)
	} else {
		out = t.to(draft, nil)
	}
	if err := c.CopyTo(out); err != nil {
		return postoffice.Accepted{}, err
	}
	if by, err := t.followRules(c.Size()); err != nil {
		return postoffice.Accepted{}, err
	} else if by != "" {
		return t.discard(by)
	}
	if err := t.policy.Content(t.ctx, c.Size()); err != nil {
		return postoffice.Accepted{}, err
	}
	if t.policy.Discarded != "" {
		return t.discard(t.policy.Discarded)
	}
	return t.commit(draft)
}

// checked reports whether SPF, DKIM and DMARC are checked: for other hosts' mail.
func (t *transaction) checked() bool {
	return t.checks != nil && t.client.Role == session.RoleMX && !t.policy.Trusted
}

// spool reads the content and keeps it, gives it to checks, rules and filters, and writes
// the message file.
func (t *transaction) spool(c *session.Content) (postoffice.Accepted, error) {
	s := content.NewSpool(t.spoolFile)
	defer t.release(s)
	out := t.to(nil, s)
	if t.discardedBy() != "" {
		out = io.Discard
	}
	spf := t.startSPF()
	if err := c.CopyTo(out); err != nil {
		return postoffice.Accepted{}, err
	}
	if by := t.discardedBy(); by != "" {
		return t.discard(by)
	}
	if by, err := t.followRules(c.Size()); err != nil {
		return postoffice.Accepted{}, err
	} else if by != "" {
		return t.discard(by)
	}
	m, err := content.NewMessage(s)
	if errors.Is(err, content.ErrHeader) {
		err = &access.RefusedError{Verdict: access.Verdict{Action: access.Reject, Code: 552, Status: status.Code{Class: 5, Subject: 3, Detail: 4},
			Text: "Message header too large", By: "header"}}
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	m.From = t.envelope.From
	defer m.Release(t.release)
	results, err := t.check(m, spf)
	if err == nil {
		err = t.policy.Content(t.ctx, c.Size())
	}
	if err == nil {
		err = t.edit(m)
	}
	if err == nil {
		t.prepend(m)
		err = t.filters.Content(m, t.spoolFile, t.release, t.changes())
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	t.hold()
	t.applyEffects()
	switch by := t.discardedBy(); {
	case by != "":
		return t.discard(by)
	case t.count() == 0:
		return t.discard(m.ChangedBy[len(m.ChangedBy)-1])
	}
	return t.write(m, results)
}

// hold puts the message into freezer/ if a filter in trouble wants that (default_action=quarantine).
func (t *transaction) hold() {
	if v := t.filters.Held(); v.Action != access.None {
		t.policy.Freeze(v)
	}
}

// changes returns what makes the filters' changes of the envelope, and their quarantine.
func (t *transaction) changes() func(filter string, c milter.Change) error {
	edit := content.NewEditor(t.envelope, t.recipientDSN())
	return func(filter string, c milter.Change) error {
		if c.Kind == milter.Quarantine {
			t.policy.Freeze(content.Quarantine(filter, c))
			return nil
		}
		return edit.Change(c)
	}
}

// spoolFile makes a file for a content too long for the memory.
func (t *transaction) spoolFile() (content.File, error) {
	d, err := t.po.Submissions.NewDraft("held")
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (t *transaction) release(s *content.Spool) {
	// A file that cannot be removed now has no execute bit and is swept.
	if err := s.Close(); err != nil {
		t.Log.Warn("leftover", "name", postoffice.Public, "reason", err)
	}
}

// startSPF looks up SPF while the content comes.
func (t *transaction) startSPF() <-chan checks.SPF {
	if !t.checked() {
		return nil
	}
	found := make(chan checks.SPF, 1)
	client, helo, from := t.policy.Client, t.client.Helo, t.policy.From
	go func() {
		result := checks.SPF{Value: checks.TempError}
		defer func() {
			// The library parses what any domain publishes; a panic in it ends this check alone.
			if r := recover(); r != nil {
				t.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic checking SPF for %s: %v\n%s", client, r, debug.Stack()))
			}
			found <- result
		}()
		ctx, cancel := t.checks.Limit(t.ctx)
		defer cancel()
		result = t.checks.SPF(ctx, client, helo, from)
	}()
	return found
}

// check makes the checks of a message, puts their results among the facts for the rules and
// into a field on top. The error is the disk's.
func (t *transaction) check(m *content.Message, spf <-chan checks.SPF) (*checks.Results, error) {
	if spf == nil {
		return nil, nil
	}
	c := t.checks
	ctx, cancel := c.Limit(t.ctx)
	defer cancel()
	fields, whole := m.Original()
	dkim, err := c.DKIM(ctx, fields, whole)
	if err != nil {
		return nil, err
	}
	// The digest may have taken longer than the time for look-ups.
	ctx, end := c.Limit(t.ctx)
	defer end()
	r := &checks.Results{SPF: <-spf, DKIM: dkim}
	r.DMARC = c.DMARC(ctx, m.Fields(), r)
	f := &t.policy.Facts
	f.SPF, f.DKIM, f.DMARC = string(r.SPF.Value), string(r.DKIMValue()), string(r.DMARC.Value)
	f.Policy = r.DMARC.Policy
	if n := m.Drop(c.Forged); n > 0 {
		t.Log.Info("forged", "from", t.envelope.From, "client", t.client.String(), "fields", n)
	}
	m.Put(envelope.Field{Name: "Authentication-Results", Raw: c.Field(r)})
	return r, nil
}

// write makes the message file of a spooled message.
func (t *transaction) write(m *content.Message, r *checks.Results) (postoffice.Accepted, error) {
	if n := m.Above(); n > 0 {
		t.envelope.Above = strconv.Itoa(n)
	}
	draft, err := t.newDraft()
	if draft != nil {
		defer t.abort(draft)
	}
	if err == nil {
		err = m.Write(draft)
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	a, err := t.commit(draft)
	if err != nil {
		return a, err
	}
	if r != nil {
		f := &t.policy.Facts
		t.Log.Info("checked", "id", a.ID.String(), "spf", f.SPF, "dkim", f.DKIM, "dmarc", f.DMARC, "policy", r.DMARC.Policy)
	}
	if m.Changes > 0 {
		t.Log.Info("changed", "id", a.ID.String(), "by", m.ChangedBy, "changes", m.Changes)
	}
	return a, nil
}

// discard accepts a message that a filter has discarded. The ledger and the log have it; the
// client gets the same reply as for any other message.
func (t *transaction) discard(by string) (postoffice.Accepted, error) {
	if err := t.Lease.Check(lease.Step); err != nil {
		return postoffice.Accepted{}, err
	}
	draft, err := t.newDraft()
	if draft != nil {
		defer t.abort(draft)
	}
	if err != nil {
		return postoffice.Accepted{}, err
	}
	id, err := draft.Drop()
	if err != nil {
		return postoffice.Accepted{}, err
	}
	n := t.policy.Taken
	t.ledger.Accepting().In(id, n)
	t.ledger.Gone(id, n, "discarded")
	t.Log.LogAttrs(t.ctx, slog.LevelInfo, "discarded", t.joined([]slog.Attr{slog.String("id", id.String()), slog.String("from", t.envelope.From),
		slog.Int("rcpts", n), slog.String("client", t.client.String()), slog.String("by", by)})...)
	return postoffice.Accepted{ID: id}, nil
}

// envelopeBuffers hold the envelope lines of a message while they are made.
var envelopeBuffers = sync.Pool{New: func() any { return new([]byte) }}

// newDraft begins the message file with its envelope. With an error the draft may
// be there nevertheless.
func (t *transaction) newDraft() (*postoffice.Draft, error) {
	buf := envelopeBuffers.Get().(*[]byte)
	defer envelopeBuffers.Put(buf)
	if draft := t.draft; draft != nil {
		t.draft = nil
		return draft, t.endEnvelope(draft, buf)
	}
	lines, err := envelope.Append((*buf)[:0], t.envelope)
	if err != nil {
		return nil, err
	}
	*buf = lines
	draft, err := t.openDraft()
	if err != nil {
		return nil, err
	}
	_, err = draft.Write(lines)
	return draft, err
}

// openDraft makes an empty message file.
func (t *transaction) openDraft() (*postoffice.Draft, error) {
	draft, err := t.po.Submissions.NewDraft("smtp")
	if err != nil {
		return nil, err
	}
	draft.Into(t.RouterDir)
	return draft, nil
}

// abort removes a draft that was not committed.
func (t *transaction) abort(draft *postoffice.Draft) {
	// A file that cannot be removed now has no execute bit and is swept.
	if err := draft.Abort(); err != nil {
		t.Log.Warn("leftover", "name", postoffice.Public+"/"+draft.Name(), "reason", err)
	}
}

// commit makes the draft a message, in router/ or freezer/, and enters it into the ledger.
func (t *transaction) commit(draft *postoffice.Draft) (postoffice.Accepted, error) {
	if err := t.Lease.Check(lease.Step); err != nil {
		return postoffice.Accepted{}, err
	}
	accepting := t.ledger.Accepting()
	began := t.meters.now()
	a, err := t.move(draft)
	if err != nil {
		accepting.Abandon()
		return postoffice.Accepted{}, err
	}
	t.kept()
	t.meters.stored(t.client.Role, began, a.Size)
	// Crash: the router's line in the ledger replaces this one.
	accepting.In(a.ID, t.count())
	t.disk.End(t.Log, "storage-recovered")
	t.logAccepted(a)
	return a, nil
}

// filterID is the key of the log for the macro i of a message: the filters' own logs have it.
const filterID = "filterid"

// joined adds the macro i to the fields of a log line, if filters were asked.
func (t *transaction) joined(list []slog.Attr) []slog.Attr {
	if n := t.filters.Number(); n != "" {
		list = append(list, slog.String(filterID, n))
	}
	return list
}

// move moves the draft to router/ or, where a rule, a check or a filter wants so, to
// freezer/.
func (t *transaction) move(draft *postoffice.Draft) (postoffice.Accepted, error) {
	v := t.policy.Frozen
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
	err = t.po.Aside.Explain(postoffice.Freezer, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "smtpserver",
		What: postoffice.WasFrozen, Text: v.Cause + ": " + why})
	if err != nil {
		// It is for operators; the file name has the cause.
		t.Log.Warn("no-reason", "id", a.ID.String(), "name", a.Name, "reason", err)
	}
	t.Log.Warn("frozen", "id", a.ID.String(), "name", a.Name, "reason", why, "advice", "zmctl freezer thaw, or zmctl freezer discard")
	return a, nil
}

// refusal returns the reply for a message that was not stored; it logs why. A fault of ours
// is never answered with 5xx (S21): the client keeps the message.
func (t *transaction) refusal(err error) *session.Reply {
	refused := func(r *session.Reply, by string) *session.Reply {
		t.logRefused(stageData, t.envelope.From, t.shownRecipients(), r, by)
		return r
	}
	if r := (*access.RefusedError)(nil); errors.As(err, &r) {
		return refused(reply(r.Verdict), r.By)
	}
	switch {
	case errors.Is(err, session.ErrTooLarge):
		return refused(session.NewReply(552, "5.3.4", fmt.Sprintf("Message size exceeds fixed limit of %d bytes", t.Limits.MaxSize)), "")
	case errors.Is(err, envelope.ErrTooLarge):
		return session.NewReply(452, "4.5.3", "Error: too many recipients")
	case errors.Is(err, session.ErrBareLF):
		return refused(session.NewReply(550, "5.6.0", "Bare LF in message content (RFC 5321 section 2.3.8)"), "")
	case errors.Is(err, lease.ErrNoLease):
		t.leased(err)
		return refused(t.replyUnleased(), "")
	}
	t.storageTrouble(err)
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG, limits.ErrSpace} {
		if errors.Is(err, full) {
			return session.NewReply(452, "4.3.1", "Insufficient system storage")
		}
	}
	return session.NewReply(451, "4.3.0", "Temporary storage failure")
}

func (t *transaction) storageTrouble(err error) {
	t.disk.Begin(t.Log, "storage-trouble", "reason", err, "client", t.client.String(),
		"advice", "messages are deferred; see df and zmctl check")
}
