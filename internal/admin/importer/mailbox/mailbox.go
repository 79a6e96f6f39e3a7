// Package mailbox reads the mail in a Maildir or an mbox file, to be sent to recipients
// that an operator names or to those of its header.
//
// It owns nothing there. A Maildir's message is removed when Remove is called; an mbox is
// locked while it is read, and emptied when the last of its messages was removed.
//
// Diagnostics: importer.ErrLeft: a message marked as trashed, or a mailbox program's own.
// Others say what is wrong with a message; of an mbox that somebody has locked, Open of
// the mailbox fails.
package mailbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"

	"zmailer/internal/admin/importer"
	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// Envelope is what no mailbox has: the sender and the recipients.
type Envelope struct {
	To      []string // each message goes to these
	Extract bool     // and to those in its To, Cc and Bcc
	From    string   // its sender; "": the one in the mailbox
	HasFrom bool
}

// sums is the key of a content.
func sum(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// errNoRecipients means that neither the operator nor the header names a recipient.
var errNoRecipients = errors.New("no recipients in its To, Cc and Bcc")

// part makes the envelope of a message with this header; sender is the mailbox's.
func (e Envelope) part(fields []envelope.Field, sender string) (importer.Part, error) {
	p := importer.Part{Sender: sender}
	if e.HasFrom {
		p.Sender = e.From
	}
	seen := map[string]bool{}
	add := func(a string) {
		if !seen[a] {
			seen[a] = true
			p.Recipients = append(p.Recipients, envelope.Recipient{Address: a})
		}
	}
	for _, a := range e.To {
		add(a)
	}
	for i := range fields {
		name := strings.ToLower(fields[i].Name)
		if !e.Extract || name != "to" && name != "cc" && name != "bcc" {
			continue
		}
		for _, listed := range address.ParseList(fields[i].Value()) {
			if listed.Err != nil {
				return importer.Part{}, listed.Err
			}
			add(listed.Mailbox.String())
		}
	}
	if len(p.Recipients) == 0 {
		return importer.Part{}, errNoRecipients
	}
	return p, nil
}

// header reads the fields of a message's header, as far as they count here.
func header(r io.Reader) ([]envelope.Field, error) {
	const limit = 1 << 20
	b, err := io.ReadAll(io.LimitReader(r, limit))
	if err != nil {
		return nil, err
	}
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	switch i := bytes.Index(b, []byte("\n\n")); {
	case bytes.HasPrefix(b, []byte("\n")):
		return nil, nil
	case i >= 0:
		b = b[:i+1]
	}
	return envelope.Fields(b), nil
}

// returnPath returns the sender that a delivery has put on top. ok: there is one.
func returnPath(fields []envelope.Field) (sender string, ok bool) {
	for i := range fields {
		if !strings.EqualFold(fields[i].Name, "Return-Path") {
			continue
		}
		m, err := address.Parse(fields[i].Value())
		if err != nil {
			return "", false
		}
		return m.String(), true
	}
	return "", false
}

// hidden reports whether a field is not sent on: Return-Path belongs to the past delivery
// (RFC 5321 §4.4), and Bcc is shown to no recipient.
func hidden(f *envelope.Field, bcc bool) bool {
	return strings.EqualFold(f.Name, "Return-Path") || bcc && strings.EqualFold(f.Name, "Bcc")
}
