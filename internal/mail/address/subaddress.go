package address

import (
	"strings"
	"unicode/utf8"
)

// SplitTag parts "user+tag" at the first of the separators (RFC 5233 §1: user and
// detail): base is the mailbox without separator and tag. ok is false, and base as it
// was, where there is no separator, where it comes first, or where nothing was given
// to split at. The local part of a null sender is never split.
func (m Mailbox) SplitTag(separators string) (base Mailbox, tag string, ok bool) {
	if separators == "" {
		return m, "", false
	}
	i := strings.IndexAny(m.Local, separators)
	if i <= 0 {
		return m, "", false
	}
	_, n := utf8.DecodeRuneInString(m.Local[i:])
	return Mailbox{Local: m.Local[:i], Domain: m.Domain}, m.Local[i+n:], true
}
