package route

import (
	"slices"
	"strings"

	"zmailer/internal/mail/envelope"
)

// maxObsoletes is how many messages one may supersede.
const maxObsoletes = 10

// obsoletes returns the Message-IDs of the sender's earlier messages that this one takes the
// place of (M45): those in the fields Obsoletes, as ZMailer has it, and Supersedes (RFC
// 4021 §2.1.46, §2.1.47). A message from outside has none: who wrote it is not known.
// The scheduler compares senders.
func (msg *message) obsoletes() []string {
	if msg.external || msg.sender.IsNull() || msg.expiredText != "" {
		return nil
	}
	var list []string
	for i := range msg.header.fields {
		f := &msg.header.fields[i]
		if strings.EqualFold(f.Name, "Obsoletes") || strings.EqualFold(f.Name, "Supersedes") {
			list = appendIDs(list, f)
		}
	}
	return list
}

// appendIDs adds the Message-IDs in a field, RFC 5322 §3.6.4.
func appendIDs(list []string, f *envelope.Field) []string {
	rest := f.Value()
	for len(list) < maxObsoletes {
		_, after, ok := strings.Cut(rest, "<")
		if !ok {
			break
		}
		id, behind, ok := strings.Cut(after, ">")
		if !ok {
			break
		}
		rest = behind
		whole := "<" + id + ">"
		if id == "" || len(whole) > maxIdent || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '<' }) || slices.Contains(list, whole) {
			continue
		}
		list = append(list, whole)
	}
	return list
}
