// Package address is the mailbox of an envelope: local part and domain, the null
// sender, SMTPUTF8 and IDNA (RFC 5321 §4.1.2, RFC 6531, RFC 5891), and the xtext
// that addresses are wrapped in as parameters (RFC 3461 §4).
//
//	m, err := address.Parse("<Ann@Example.ORG>") // m.String() is Ann@Example.ORG
//	m.Key()                                      // Ann@example.org, to compare
//	for _, a := range address.ParseList("Ann <ann@example.org>, bob") { ... }
//
// It owns no state: a Mailbox is a plain value, there is nothing to survive a crash.
//
// Diagnostics: Parse's errors say what is wrong with the address and quote it.
// They concern the address alone; a caller answers 501 or 553 5.1.3.
package address

import (
	"strings"
	"unicode/utf8"
)

// Mailbox is an address. The zero value is the null sender <>.
type Mailbox struct {
	Local  string // unquoted, case kept
	Domain string // without a final dot, in U-labels if not ASCII; "" for a bare local name
}

// IsNull reports whether it is the null sender.
func (m Mailbox) IsNull() bool { return m == Mailbox{} }

// String returns the address without brackets, the local part quoted if it must be. What
// Parse gave is read back by Parse as the same mailbox.
func (m Mailbox) String() string {
	if m.IsNull() {
		return ""
	}
	local := m.Local
	if !isDotString(local) {
		local = quote(local)
	}
	if m.Domain == "" {
		return local
	}
	return local + "@" + m.Domain
}

// IsASCII reports whether the address can be sent without SMTPUTF8.
func (m Mailbox) IsASCII() bool { return isASCII(m.Local) && isASCII(m.Domain) }

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// isAtext is RFC 5322 §3.2.3's, with every byte of a non-ASCII character (RFC 6531
// §3.3).
func isAtext(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b >= utf8.RuneSelf:
		return true
	}
	return strings.IndexByte("!#$%&'*+-/=?^_`{|}~", b) >= 0
}

// isDotString reports whether a local part needs no quotes: RFC 5321 section 4.1.2 Dot-string.
func isDotString(s string) bool {
	dot := true // a dot may not be first, last or beside another
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '.' && dot:
			return false
		case s[i] == '.':
			dot = true
		case !isAtext(s[i]):
			return false
		default:
			dot = false
		}
	}
	return !dot
}

// quote is RFC 5321 §4.1.2 Quoted-string.
func quote(s string) string {
	b := make([]byte, 0, len(s)+4)
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return string(append(b, '"'))
}
