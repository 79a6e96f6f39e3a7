package checks

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/emersion/go-msgauth/authres"

	"zmailer/internal/mail/envelope"
)

// fieldName is RFC 8601's.
const fieldName = "Authentication-Results"

// Field returns the Authentication-Results field with its line end, to be put on top.
func (c *Checker) Field(r *Results) []byte {
	var list []authres.Result
	if c.cfg.SPF {
		list = append(list, &authres.SPFResult{Value: authres.ResultValue(r.SPF.Value), From: value(r.SPF.From), Helo: value(r.SPF.Helo)})
	}
	if c.cfg.DKIM && len(r.DKIM) == 0 {
		list = append(list, &authres.DKIMResult{Value: authres.ResultNone})
	}
	for _, s := range r.DKIM {
		list = append(list, &authres.DKIMResult{Value: authres.ResultValue(s.Value), Domain: value(s.Domain), Identifier: value(s.Identifier)})
	}
	if c.cfg.DMARC {
		params := map[string]string{"header.from": value(r.DMARC.Domain)}
		if r.DMARC.Policy != "" {
			params["policy.dmarc"] = r.DMARC.Policy
		}
		list = append(list, &authres.GenericResult{Method: "dmarc", Value: authres.ResultValue(r.DMARC.Value), Params: params})
	}
	text := authres.Format(c.cfg.Host, list)
	parts := strings.Split(text, "; ")
	for i := range parts {
		parts[i] = strings.TrimRight(parts[i], " ")
	}
	return []byte(fieldName + ": " + strings.Join(parts, ";\n\t") + "\n")
}

// maxValue is how much of a value from the message is shown. Bytes.
const maxValue = 256

// value returns a value from the message without the characters that could end a value, a
// result or the field. The library escapes quotes only.
func value(s string) string {
	if len(s) > maxValue {
		s = s[:maxValue]
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError, !unicode.IsPrint(r), r == ' ', strings.ContainsRune(`;()"\<>`, r):
			return '?'
		}
		return r
	}, s)
}

// Forged reports whether a field claims to be ours: it has come with the message, so it
// cannot be (RFC 8601 section 5). One that cannot be parsed counts, and one behind a bare CR,
// which some programs take for a line end.
func (c *Checker) Forged(f envelope.Field) bool {
	raw := string(f.Raw)
	for line := range strings.SplitSeq(strings.TrimRight(raw, "\r\n"), "\r") {
		name, id, ok := strings.Cut(strings.TrimPrefix(line, "\n"), ":")
		if !ok || !strings.EqualFold(strings.TrimRight(name, " \t"), fieldName) {
			continue
		}
		if who, ok := identity(id); !ok || strings.EqualFold(who, strings.TrimSuffix(c.cfg.Host, ".")) {
			return true
		}
	}
	return false
}

// identity reads the authserv-id that a field's value begins with: a token or a quoted
// string behind blanks and comments (RFC 8601 §2.2).
func identity(s string) (string, bool) {
	s, ok := skipComments(s)
	if !ok || s == "" {
		return "", false
	}
	var b strings.Builder
	if s[0] == '"' {
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '"':
				return strings.TrimSuffix(b.String(), "."), true
			case '\\':
				i++
				if i == len(s) {
					return "", false
				}
			case '\r', '\n':
				continue // folding
			}
			b.WriteByte(s[i])
		}
		return "", false
	}
	if i := strings.IndexAny(s, "; \t\r\n("); i >= 0 {
		s = s[:i]
	}
	return strings.TrimSuffix(s, "."), s != ""
}

// skipComments passes over blanks and comments (RFC 5322 §3.2.2); false: a comment has
// no end.
func skipComments(s string) (string, bool) {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case b == '\\' && depth > 0:
			i++
		case b == '(':
			depth++
		case b == ')' && depth > 0:
			depth--
		case depth == 0 && !strings.ContainsRune(" \t\r\n", rune(b)):
			return s[i:], true
		}
	}
	return "", depth == 0
}
