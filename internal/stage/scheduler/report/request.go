package report

import (
	"slices"
	"strings"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/workspec"
)

// Kinds of reports, the kind= of a report event.
const (
	Failed    = "failed"
	Delayed   = "delayed"
	Delivered = "delivered"
)

// Notify is what the sender asked to be reported (RFC 3461 §4.1).
type Notify struct {
	Success, Failure, Delay bool
	Original                string // ORCPT, decoded
}

// Requested parses the value of an N line; decode decodes xtext, nil: ORCPT is not needed.
// Without NOTIFY, or without a known word in it, failure and delay are reported.
func Requested(notary string, decode func(string) (string, error)) Notify {
	w := Notify{Failure: true, Delay: true}
	for field := range strings.FieldsSeq(notary) {
		key, value, _ := strings.Cut(field, "=")
		switch {
		case strings.EqualFold(key, "NOTIFY"):
			w.read(value)
		case decode != nil && strings.EqualFold(key, "ORCPT"):
			if text, err := decode(value); err == nil {
				w.Original = text
			}
		}
	}
	return w
}

// read reads the value of NOTIFY.
func (w *Notify) read(value string) {
	var got Notify
	known := false
	for word := range strings.SplitSeq(value, ",") {
		switch strings.ToUpper(word) {
		case "NEVER":
		case "SUCCESS":
			got.Success = true
		case "FAILURE":
			got.Failure = true
		case "DELAY":
			got.Delay = true
		default:
			continue
		}
		known = true
	}
	if known {
		w.Success, w.Failure, w.Delay = got.Success, got.Failure, got.Delay
	}
}

// KindOf returns the kind of report that a diagnostic's action (RFC 3464 §2.3.3) leads to.
func KindOf(d *workspec.Diagnostic) string {
	switch strings.ToLower(d.Notary.Action) {
	case "delivered", "relayed", "expanded":
		return Delivered
	case "delayed":
		return Delayed
	}
	return Failed
}

// Wanted reports whether the sender of a recipient asked for reports of a kind.
func Wanted(r *workspec.Recipient, kind string) bool {
	w := Requested(r.Notary, nil)
	switch kind {
	case Failed:
		return w.Failure
	case Delivered:
		return w.Success
	}
	return w.Delay
}

// Automatic recognises mail whose sender does not wait for an answer: what a program sent by itself (RFC
// 3834 §5), what goes to many at once, and lists (RFC 2919).
func Automatic(header []byte) bool {
	for _, field := range envelope.Fields(header) {
		switch strings.ToLower(field.Name) {
		case "auto-submitted":
			word, _, _ := strings.Cut(field.Value(), ";")
			if !strings.EqualFold(strings.TrimSpace(word), "no") {
				return true
			}
		case "precedence":
			if slices.Contains([]string{"bulk", "list", "junk"}, strings.ToLower(field.Value())) {
				return true
			}
		case "list-id":
			return true
		}
	}
	return false
}
