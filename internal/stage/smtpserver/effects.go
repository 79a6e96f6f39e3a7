package smtpserver

import (
	"slices"
	"strings"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
)

// discardedBy returns the rule or the filter that has the message accepted and thrown away; "":
// none has.
func (t *transaction) discardedBy() string {
	if by := t.policy.Discarded; by != "" {
		return by
	}
	return t.filters.Discarded()
}

// prepends reports whether a rule has a field put on top of the header.
func (t *transaction) prepends() bool {
	return slices.ContainsFunc(t.policy.Effects, func(e access.Effect) bool { return e.Kind == access.Prepend })
}

// prepend puts the fields of rules above our Received field, where Postfix has them and RFC 7208 section
// 9.1 wants Received-SPF, the first one uppermost. Filters see them.
func (t *transaction) prepend(m *content.Message) {
	for _, e := range t.policy.Effects {
		if e.Kind == access.Prepend {
			name, _, _ := strings.Cut(e.Text, ":")
			m.Prepend(envelope.Field{Name: name, Raw: prepended(e)})
		}
	}
}

// prepended returns the field of a rule with its line end.
func prepended(e access.Effect) []byte {
	return []byte(session.OneLine(strings.ToValidUTF8(e.Text, "?")) + "\n")
}

// applyEffects makes the changes of the recipients that rules want. It may be called again
// when there are more.
func (t *transaction) applyEffects() {
	redirected := slices.ContainsFunc(t.policy.Effects, func(e access.Effect) bool { return e.Kind == access.Redirect })
	for _, e := range t.policy.Effects {
		to := strings.Trim(e.Text, "<>")
		if redirected && (e.Kind == access.Filter || e.Kind == access.BCC) {
			continue // as in Postfix
		}
		same := func(r envelope.Recipient) bool { return strings.EqualFold(r.Address, to) }
		switch e.Kind {
		case access.Redirect:
			if t.count() == 1 && t.written == 0 && same(t.envelope.Recipients[0]) {
				continue
			}
			// Those that are in a draft already go with it.
			t.abandon()
			t.written = 0
			t.envelope.Recipients = []envelope.Recipient{{Address: to}}
		case access.Filter: // the last one counts
			t.envelope.Filter = e.Text
			t.Log.Info("content-filter", "from", t.envelope.From, "client", t.client.String(), "filter", e.Text, "by", e.By)
			continue
		case access.BCC:
			if !slices.ContainsFunc(t.envelope.Recipients, same) {
				t.envelope.Recipients = append(t.envelope.Recipients, envelope.Recipient{Address: to})
			}
		default:
			continue
		}
		t.Log.Info("changed-recipients", "from", t.envelope.From, "client", t.client.String(), "change", e.String(), "by", e.By)
	}
}
