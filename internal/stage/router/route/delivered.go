package route

import (
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/rules"
)

// Mail that an alias, a .forward or the policy sends on to another system may come back to
// the same address. As Postfix's local(8) does, the router writes that address on top of what
// it forwards, in a field Delivered-To, and fails a recipient that it would forward again:
// a loop ends at the first return, instead of going round until there are 50 Received fields,
// with twice as many messages each time if there are two addresses on the way.
//
// Mailboxes get the field from ta-mailbox. Members of a list share one header and have none.

// What the fields may cost one message: each has a header, and so a transaction, of its own.
// Above that, in variants or in headers written, the rest is forwarded without them. What
// comes back of it has fewer recipients.
const (
	mostForwarded  = 100     // recipients
	mostForwardedB = 4 << 20 // bytes of headers
)

const deliveredTo = "Delivered-To"

// forwards reports whether a target is on another system by an address of ours, which the
// envelope named.
func (a *expansion) forwards(t *rules.Target) bool {
	return len(t.Via) > 0 && t.Owner == "" && !a.rcpt.IsNull() && !isHere(t.Channel)
}

// isHere reports whether a channel ends at this system.
func isHere(channel string) bool {
	switch channel {
	case rules.Local, rules.Virtual, rules.File, rules.Pipe, rules.Error, rules.Bitbucket:
		return true
	}
	return false
}

// deliveredName returns an address as the field has it.
func (w *worker) deliveredName(m address.Mailbox) string {
	if m.Domain == "" {
		m.Domain = w.en.c.Hostname
	}
	return strings.ToLower(m.String())
}

// came reports whether a message was forwarded for an address before. name is in small
// letters.
func (h *header) came(name string) bool {
	for i := range h.fields {
		f := &h.fields[i]
		if len(f.Name) == len(deliveredTo) && strings.EqualFold(f.Name, deliveredTo) && strings.EqualFold(strings.TrimSpace(f.Value()), name) {
			return true
		}
	}
	return false
}

// loopOf returns the target of a recipient whose mail has come back.
func loopOf(name string, m address.Mailbox) rules.Target {
	return rules.Target{Channel: rules.Error, Host: rules.ErrorHost(rules.ErrLoop, "mail forwarding loop for "+name), User: m.String(), Privilege: rules.Nobody}
}

// forwarded returns the variant of a message that is forwarded for an address: that of its
// other recipients, with the field on top.
func (msg *message) forwarded(variantOf int, name string) int {
	cost := len(msg.head.Header) + 2*foldAt
	all := &msg.variants
	if all.forwards >= mostForwarded || all.forwards*cost >= mostForwardedB {
		return variantOf
	}
	var v variant
	if variantOf > 0 {
		v = all.list[variantOf]
	}
	v.delivered, v.of = name, variantOf
	n := len(all.list)
	i := all.of(v)
	if i >= n {
		all.forwards++
	}
	return i
}

// place returns the variant by which a place is known: who gets the same message from two
// addresses of ours gets it once.
func (s *variants) place(i int) int {
	if i < len(s.list) && s.list[i].delivered != "" {
		return s.list[i].of
	}
	return i
}

func (s *variants) deliveredField(b []byte, i int) []byte {
	if i >= len(s.list) || s.list[i].delivered == "" {
		return b
	}
	return append(append(append(b, deliveredTo+": "...), human.Mask(s.list[i].delivered)...), '\n')
}
