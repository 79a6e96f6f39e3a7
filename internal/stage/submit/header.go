package submit

import (
	"slices"
	"strings"

	"zmailer/internal/mail/envelope"
)

// readHeader takes the recipients from the header and leaves Bcc out (-t).
func (s *submission) readHeader() {
	fields := envelope.Fields(s.text.header)
	// Whoever sends a message again sends it to the recipients of the uppermost Resent
	// fields: the others have it.
	from, to := envelope.UppermostResent(fields)
	resent := from >= 0 && slices.ContainsFunc(fields[from:to], func(f envelope.Field) bool { return isResentTo(f.Name) })
	kept := make([]byte, 0, len(s.text.header))
	for i, f := range fields {
		if !isBcc(f.Name) {
			kept = append(kept, f.Raw...)
		}
		if !resent && isTo(f.Name) || resent && from <= i && i < to && isResentTo(f.Name) {
			s.addRecipients(f.Value(), "header "+f.Name)
		}
	}
	s.text.header = kept
}

func isTo(name string) bool {
	return strings.EqualFold(name, "To") || strings.EqualFold(name, "Cc") || strings.EqualFold(name, "Bcc")
}

// isResentTo reports whether a Resent field names recipients.
func isResentTo(name string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(name), "resent-")
	return ok && isTo(rest)
}

func isBcc(name string) bool {
	return strings.EqualFold(name, "Bcc") || strings.EqualFold(name, "Resent-Bcc")
}
