// Package human writes values for people: durations, sizes and counts, and text of unknown
// origin (addresses, subjects, replies of other hosts) made safe to display. It owns nothing.
//
// Diagnostics: none; what cannot be shown is shown as its code.
package human

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes text fit for a line of a terminal or a page: what could move the cursor or end
// the line, what cannot be seen, and what turns the order of characters round is shown as
// its code. A tab is a blank.
func Clean(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || hidden(r) }) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\t':
			b.WriteByte(' ')
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, "\\x%02x", s[i])
		case hidden(r):
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool { return unicode.IsControl(r) || Unseen(r) }

// Unseen tells characters that are not seen themselves, but change how others are shown.
func Unseen(r rune) bool { return unicode.Is(unicode.Cf, r) }
