package smtpserver

import (
	"io"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
	tabletext "zmailer/internal/table/text"
)

// Values of the envelope's rules line; the router has the same.
const (
	rulesFollowed = "followed" // the decisions are made
	rulesEdited   = "edited"   // so is all else but the changes of the message's own header
	rulesSkipped  = "skipped"  // RULESEXEMPT, REINJECTLISTEN
)

// rulesCause follows the inode in the name of a file in freezer/ that a rule holds.
const rulesCause = "rules"

// beginRules has the content of the message looked at while it comes, if a rule about header
// and body concerns it. What rules change in the message's own header, and where they send a message,
// is left to the router.
func (h *handler) beginRules() {
	t := &h.tx
	if t.envelope.Filtered {
		t.envelope.Rules = rulesSkipped
		return
	}
	from := contentrules.External
	if t.envelope.Submitted != "" {
		from = contentrules.Submitted
	}
	rules := h.contentRules.Current()
	switch {
	case !rules.Concern(from):
		if (h.client.User == "" || !h.rules.ChecksFrom()) && !h.rules.AsksProgram() {
			return
		}
		rules = contentrules.Rules{} // the header alone
	case h.client.Addr.IsValid() && session.Contains(h.Clients.RulesExempt, h.client.Addr.Addr()):
		t.envelope.Rules = rulesSkipped
		return
	default:
		t.envelope.Rules = rulesFollowed
	}
	scanned := rules // a copy: rules would be allocated for each message, if there are any or not
	t.scan = scanned.Scan(from, h.BodyRulesSize)
	for _, e := range t.policy.Effects {
		if e.Kind == access.Prepend {
			_, _ = t.scan.Write(prepended(e)) // Postfix's header_checks see it, too
		}
	}
}

// scanned gives a piece of the content to the rules. The error is a refusal: the rest of the
// content need not be stored.
func (t *transaction) scanned(b []byte) error {
	_, _ = t.scan.Write(b) // it never fails
	if t.scan.TooLong() && (t.envelope.Rules == rulesFollowed || t.client.User != "" && t.rules.ChecksFrom()) {
		return &access.RefusedError{Verdict: access.Verdict{Action: access.Reject, Code: 552, Status: status.Code{Class: 5, Subject: 3, Detail: 4},
			Text: "Message header too large", By: contentrules.HeaderFile}}
	}
	if o := t.scan.Outcome(); o.Action == contentrules.Reject {
		return t.ruled(o)
	}
	return nil
}

// ruled returns the refusal of a rule.
func (t *transaction) ruled(o *contentrules.Outcome) error {
	t.logRule(&o.Final, "reject")
	v := access.Verdict{Action: access.Reject, Status: o.Final.Code, Text: o.Final.Text, By: o.Final.Rule}
	if o.Final.Code.Class == 4 {
		v.Action = access.Defer
	}
	return &access.RefusedError{Verdict: v}
}

func (t *transaction) logRule(d *contentrules.Decision, decision string) {
	t.Log.Info("content-rule", "from", t.envelope.From, "client", t.client.String(), "user", t.client.User,
		"rule", d.Rule, "decision", decision, "text", d.Text, "where", d.Where)
}

// followRules decides about the content that has come, by the rules about header and body and by
// HEADERFROM. discardBy is the rule that discards the message; the error is a refusal.
func (t *transaction) followRules(size int64) (discardBy string, err error) {
	if t.scan == nil {
		return "", nil
	}
	o := t.scan.End()
	if t.scan.TooLong() {
		return "", t.scanned(nil) // without a rule about it the router alone reads it
	}
	for i := range o.Notes {
		word := "info"
		if o.Notes[i].Warn {
			word = "warn"
		}
		t.logRule(&o.Notes[i].Decision, word)
	}
	if t.client.User != "" && t.rules.ChecksFrom() {
		if v := t.rules.CheckFrom(t.ctx, &t.policy.Facts, envelope.Fields(t.scan.Header()), *t.client); v.Action != access.None {
			return "", &access.RefusedError{Verdict: v}
		}
	}
	switch {
	case o.Action == contentrules.Reject:
		return "", t.ruled(o)
	case o.Action == contentrules.Discard:
		t.logRule(&o.Final, "discard")
		t.discarded = true
		return o.Final.Rule, nil
	case o.Hold != nil:
		t.policy.Freeze(access.Verdict{Action: access.Freeze, Cause: rulesCause, Text: o.Hold.Text, By: o.Hold.Rule})
	}
	return "", t.askProgram(size)
}

// edit makes the changes of rules below the message's header, after the checks and before the filters:
// signatures are checked as they came. The router would look at what the rules have written, so all
// else that they have decided is done here.
func (t *transaction) edit(m *content.Message) error {
	if t.scan == nil || t.scan.Outcome().Edits == 0 {
		return nil
	}
	o := t.scan.Outcome()
	fresh := content.NewSpool(t.spoolFile)
	out := &editWriter{t: t, spool: fresh, left: t.Limits.MaxSize - int64(len(t.scan.Header()))}
	err := m.Edit(fresh, func(r io.Reader, whole bool) error { return t.scan.Rewrite(out, r, whole) })
	if err != nil {
		t.release(fresh)
		return err
	}
	m.Changes += o.Edits
	m.ChangedBy = append(m.ChangedBy, o.EditedBy...)
	t.envelope.Rules = rulesEdited
	effect := func(kind access.EffectKind, d *contentrules.Decision, text string) {
		t.policy.Effects = append(t.policy.Effects, access.Effect{Kind: kind, Text: text, By: d.Rule})
	}
	switch {
	case o.Redirect != nil:
		effect(access.Redirect, o.Redirect, o.Redirect.Text)
	case o.Filter != nil:
		to := tabletext.FilterRoute(o.Filter.Text)
		effect(access.Filter, o.Filter, to.Channel+"!"+to.Host)
	}
	for i := range o.Copies {
		effect(access.BCC, &contentrules.Decision{Rule: "content-rule"}, o.Copies[i])
	}
	return nil
}

// editWriter writes a body that rules change to its spool.
type editWriter struct {
	t     *transaction
	spool *content.Spool
	left  int64 // bytes; of no meaning without MAXSIZE
}

// Write implements io.Writer.
func (w *editWriter) Write(b []byte) (int, error) {
	if w.left -= int64(len(b)); w.left < 0 && w.t.Limits.MaxSize > 0 {
		return 0, session.ErrTooLarge
	}
	if err := w.t.wrote(len(b)); err != nil {
		return 0, err
	}
	return w.spool.Write(b)
}

// askProgram refuses a message that router.star rejects, for all of its recipients. It is not
// asked about more recipients than are in memory: the router asks it again in any case.
func (t *transaction) askProgram(size int64) error {
	if t.written > 0 || !t.rules.AsksProgram() {
		return nil
	}
	head, err := envelope.Append(nil, t.envelope)
	if err != nil {
		return err
	}
	if v := t.rules.CheckContent(t.ctx, append(head, t.scan.Header()...), size); v.Action != access.None {
		return &access.RefusedError{Verdict: v}
	}
	return nil
}
