package envelope

import (
	"slices"
	"strings"
)

// resent begins the names of fields that were put on when a message was sent again.
const resent = "Resent-"

// IsResent reports whether it is a Resent field (RFC 5322 §3.6.6).
func (f Field) IsResent() bool {
	return len(f.Name) > len(resent) && strings.EqualFold(f.Name[:len(resent)], resent)
}

// UppermostResent finds the block of Resent fields that was put on last (RFC 5322
// §3.6.6): fields[from:to], side by side, none of them twice. from is -1 if there is
// none.
func UppermostResent(fields []Field) (from, to int) {
	from = slices.IndexFunc(fields, Field.IsResent)
	if from < 0 {
		return from, len(fields)
	}
	seen := map[string]bool{}
	for i, f := range fields[from:] {
		name := strings.ToLower(f.Name)
		if !f.IsResent() || seen[name] {
			return from, from + i
		}
		seen[name] = true
	}
	return from, len(fields)
}
