package route

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table/text"
)

// Values of the envelope's rules line: what smtpserver has done with the rules about header and
// body.
const (
	// RulesFollowed: it has decided whether the message is accepted.
	RulesFollowed = "followed"
	// RulesEdited: it has done all that they decide, and changed the content below the header.
	RulesEdited = "edited"
	// RulesSkipped: no rule concerns the message (RULESEXEMPT), or it was filtered (REINJECTLISTEN).
	RulesSkipped = "skipped"
)

// origin returns where a message comes from, for the rules about header and body.
func (msg *message) origin() contentrules.Origin {
	switch {
	case msg.external && msg.user != "":
		return contentrules.Submitted
	case msg.external:
		return contentrules.External
	case msg.trusted && msg.head.ErrorMsg:
		return contentrules.Report
	}
	return contentrules.Local
}

// ruled returns the origin by which rules concern a message: those about none for mail that
// smtpserver exempts from them.
func (msg *message) ruled() contentrules.Origin {
	if msg.trusted && msg.head.Rules == RulesSkipped {
		return contentrules.Report
	}
	return msg.origin()
}

// editHeader appends a header block as the rules want it to b. What no rule concerns stays as
// it is, byte for byte.
func editHeader(b, block []byte, rules *contentrules.Rules, from contentrules.Origin) []byte {
	for _, f := range rules.Edit(envelope.Fields(block), from) {
		b = append(b, f.Raw...)
	}
	return b
}

// followRules decides about a message by the rules about header and body. A rule that rejects,
// discards or holds mail does not count for a message whose client has the reply 250 of
// smtpserver, which has followed it. The result is a decision about all recipients, None without
// one. Its error is a *Frozen, or the disk's.
func (en *Engine) followRules(msg *message) (fate policy.Action, copies []string, err error) {
	from := msg.ruled()
	if !msg.rules.Concern(from) || msg.trusted && msg.head.Rules == RulesEdited {
		return fate, nil, nil
	}
	msg.Busy()
	o, err := en.scan(msg, from)
	if err != nil {
		return fate, nil, err
	}
	decided := msg.trusted && msg.head.Rules == RulesFollowed
	note := func(d *contentrules.Decision, what string) {
		if !en.dryRun {
			en.c.Log.LogAttrs(context.Background(), slog.LevelInfo, "content-rule", slog.String("id", msg.id), slog.String("rule", d.Rule),
				slog.String("decision", what), slog.String("text", d.Text), slog.String("where", d.Where))
		}
		if msg.trace != nil {
			msg.trace(rules.Step{Table: "rules", Where: d.Rule, Key: d.Where, Result: what + " " + d.Text})
		}
		msg.history.add("", d.Rule, what+" "+d.Text)
	}
	if !decided {
		for i := range o.Notes {
			note(&o.Notes[i].Decision, "warn")
		}
		switch {
		case o.Action == contentrules.Reject:
			note(&o.Final, "reject")
			code := o.Final.Code
			code.Class = 5
			return policy.Action{Fate: policy.Reject, Code: code.String(), Text: o.Final.Text}, nil, nil
		case o.Action == contentrules.Discard:
			note(&o.Final, "discard")
			return policy.Action{Fate: policy.Drop}, nil, nil
		case o.Hold != nil && !en.isThawed(msg.claim.ID):
			return fate, nil, &Frozen{"rules", o.Hold.Rule + ": " + o.Hold.Text}
		}
	}
	switch {
	case o.Redirect != nil:
		note(o.Redirect, "redirect")
		return policy.Action{Fate: policy.Redirect, Addresses: []string{o.Redirect.Text}}, nil, nil // and no copies, as in Postfix
	case o.Filter != nil:
		note(o.Filter, "filter")
		fate = policy.Action{Fate: policy.Route}
		to := text.FilterRoute(o.Filter.Text)
		fate.Channel, fate.Host = to.Channel, to.Host
	}
	return fate, o.Copies, nil
}

// scan looks at a message as far as there are rules.
func (en *Engine) scan(msg *message, from contentrules.Origin) (*contentrules.Outcome, error) {
	s := msg.rules.Scan(from, en.c.BodyRulesSize)
	_, _ = s.Write(msg.head.Header) // it never fails
	if msg.rules.ConcernContent(from) && msg.claim.File != nil && msg.claim.Info.Size != math.MaxInt64 {
		_, _ = s.Write([]byte{'\n'})
		body := io.NewSectionReader(msg.claim.File, msg.head.BodyOffset, math.MaxInt64-msg.head.BodyOffset)
		if _, err := io.CopyBuffer(s, body, make([]byte, 64<<10)); err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
	}
	o := s.End()
	if s.TooLong() {
		o.Action = contentrules.Reject
		o.Final = contentrules.Decision{Rule: contentrules.HeaderFile, Code: status.Code{Class: 5, Subject: 3, Detail: 4}, Text: "Message header too large"}
	}
	return o, nil
}
