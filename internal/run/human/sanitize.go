// Package human writes values for humans: durations, sizes and counts, and text of unknown
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

// Unseen reports whether a character is invisible, but changes how others are shown: formats,
// and the separators of lines and paragraphs.
func Unseen(r rune) bool { return unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) }

// Blank replaces each ASCII control character by a blank. What is not UTF-8 stays.
func Blank(s string) string { return replaceControl(s, ' ') }

// Mask replaces each ASCII control character, and what is not UTF-8, by a question mark.
func Mask(s string) string { return replaceControl(strings.ToValidUTF8(s, "?"), '?') }

func replaceControl(s string, by byte) string {
	for i := 0; i < len(s); i++ {
		if IsControl(s[i]) {
			b := []byte(s)
			for ; i < len(b); i++ {
				if IsControl(b[i]) {
					b[i] = by
				}
			}
			return string(b)
		}
	}
	return s
}

// IsControl reports whether a byte is an ASCII control character.
func IsControl(c byte) bool { return c < ' ' || c == 0x7f }

// OneLine joins the words of a text, which may have several lines, with one blank each.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
