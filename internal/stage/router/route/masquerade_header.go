package route

import (
	"bytes"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/stage/router/rules"
)

// rewriteHeader puts the addresses in place that others are to see, where MASQUERADE has some:
// the envelope's sender, and From, Sender and Reply-To of a message that was made here.
// One that has Received fields was not, whoever sends it on; its author's fields stay,
// and only Resent fields above them are the submitter's. Its error is a *rules.Trouble:
// the answer is unknown now.
func (en *Engine) rewriteHeader(msg *message) error {
	msg.author = msg.sender
	if en.masquerade == nil || msg.origin() != contentrules.Local {
		return nil
	}
	a := maskLookup{ctx: msg.context(), batch: msg.batch}
	to, ok, err := en.masquerade.of(a, msg.sender)
	if err != nil {
		return &rules.Trouble{Why: "masquerade", Err: err}
	}
	if ok {
		msg.sender = to
	}
	prefix, fields, offset := msg.ours()
	if prefix == "" && msg.header.received > 0 {
		return nil
	}
	for i, f := range fields {
		name, resent := cutPrefixFold(f.Name, prefix)
		if !resent || !strings.EqualFold(name, "From") && !strings.EqualFold(name, "Sender") && !strings.EqualFold(name, "Reply-To") {
			continue
		}
		raw, changed, err := en.masquerade.field(a, f.Raw)
		if err != nil {
			return &rules.Trouble{Why: "masquerade", Err: err}
		}
		if !changed {
			continue
		}
		if msg.masked == nil {
			msg.masked = map[int][]byte{}
		}
		msg.masked[offset+i] = raw
	}
	return nil
}

// field returns a field with its addresses replaced; every other byte of it stays. One that
// is broken stays as it is: the answer is unknown what in it is an address.
func (q *masquerade) field(a maskLookup, raw []byte) (out []byte, changed bool, err error) {
	colon := bytes.IndexByte(raw, ':') + 1
	value := string(raw[colon:])
	if listFault(value) != "" {
		return nil, false, nil
	}
	at := 0
	list := address.ParseList(value)
	for i, it := range list {
		q.ahead(a, list, i)
		if it.Err != nil || it.Mailbox.IsNull() {
			continue
		}
		to, ok, err := q.of(a, it.Mailbox)
		if err != nil {
			return nil, false, err
		}
		if !ok {
			continue
		}
		if !changed {
			out, changed = append(out, raw[:colon]...), true
		}
		out = append(append(out, value[at:it.Start]...), to.String()...)
		at = it.End
	}
	if !changed {
		return nil, false, nil
	}
	return append(out, value[at:]...), true, nil
}

func cutPrefixFold(s, prefix string) (rest string, ok bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}
