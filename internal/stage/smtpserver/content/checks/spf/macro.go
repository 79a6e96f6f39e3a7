package spf

import (
	"fmt"
	"slices"
	"strings"
)

// spec is a domain-spec or a macro-string (section 7.1).
type spec []part

// part is a text or a macro.
type part struct {
	text       string // of a literal
	letter     byte   // of a macro, in lower case; 0: a literal
	escape     bool   // its letter is a capital: what is special in a URL is escaped
	keep       int    // how many of the rightmost parts are kept; 0: all
	reverse    bool
	delimiters string
}

// parseSpec reads a domain-spec; with free a macro-string, which may be any text. The letters
// that are for explanations alone are errors (section 7.2).
func parseSpec(text string, free bool) (s spec, ok bool) {
	s = spec{}
	for rest := text; rest != ""; {
		i := strings.IndexByte(rest, '%')
		switch {
		case i < 0:
			s, rest = append(s, part{text: rest}), ""
			continue
		case i > 0:
			s, rest = append(s, part{text: rest[:i]}), rest[i:]
		}
		if len(rest) < 2 {
			return nil, false
		}
		switch rest[1] {
		case '%':
			s, rest = append(s, part{text: "%"}), rest[2:]
		case '_':
			s, rest = append(s, part{text: " "}), rest[2:]
		case '-':
			s, rest = append(s, part{text: "%20"}), rest[2:]
		case '{':
			inner, after, closed := strings.Cut(rest[2:], "}")
			p, valid := parseMacro(inner)
			if !closed || !valid {
				return nil, false
			}
			s, rest = append(s, p), after
		default:
			return nil, false
		}
	}
	return s, free || endsWell(text)
}

// endsWell reports whether a domain-spec ends in a macro or in a label that can be a top one.
func endsWell(text string) bool {
	for _, end := range []string{"}", "%%", "%_", "%-"} {
		if strings.HasSuffix(text, end) {
			return end != "}" || strings.LastIndex(text, "%{") > strings.LastIndex(text[:len(text)-1], "}")
		}
	}
	text = strings.TrimSuffix(text, ".")
	dot := strings.LastIndexByte(text, '.')
	label := text[dot+1:]
	if dot < 0 || label == "" || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	numeric := true
	for i := range len(label) {
		if !isAlnum(label[i]) && label[i] != '-' {
			return false
		}
		numeric = numeric && isDigit(label[i])
	}
	return !numeric
}

// parseMacro reads what stands in the braces: a letter, digits, r, delimiters.
func parseMacro(text string) (p part, ok bool) {
	if text == "" {
		return p, false
	}
	p.letter, p.escape = text[0]|0x20, text[0] < 'a'
	if strings.IndexByte("slodiphv", p.letter) < 0 || !isAlpha(text[0]) {
		return p, false
	}
	text = text[1:]
	digits := 0
	for digits < len(text) && isDigit(text[digits]) {
		p.keep = min(p.keep*10+int(text[digits]-'0'), 1000)
		digits++
	}
	if digits > 0 && p.keep == 0 {
		return p, false
	}
	if text = text[digits:]; text != "" && text[0]|0x20 == 'r' {
		p.reverse, text = true, text[1:]
	}
	p.delimiters = text
	if text == "" {
		p.delimiters = "."
	}
	return p, strings.Trim(text, ".-+,/_=") == ""
}

// maxName is the longest domain name.
const maxName = 253

// expand makes a domain of a domain-spec (section 7.3). One that is too long loses labels from
// the left.
func (c *check) expand(s spec, domain string) string {
	var b strings.Builder
	for _, p := range s {
		if p.letter == 0 {
			b.WriteString(p.text)
		} else {
			b.WriteString(p.transform(c.macro(p.letter, domain)))
		}
	}
	name := strings.TrimSuffix(b.String(), ".")
	for len(name) > maxName {
		_, rest, ok := strings.Cut(name, ".")
		if !ok {
			break
		}
		name = rest
	}
	return name
}

// macro returns the value of a macro.
func (c *check) macro(letter byte, domain string) string {
	switch letter {
	case 's':
		return c.local + "@" + c.from
	case 'l':
		return c.local
	case 'o':
		return c.from
	case 'd':
		return domain
	case 'h':
		return c.helo
	case 'v':
		if c.client.Is4() {
			return "in-addr"
		}
		return "ip6"
	case 'p':
		return c.ownName(domain)
	}
	if c.client.Is4() {
		return c.client.String()
	}
	var nibbles []string
	for _, b := range c.client.AsSlice() {
		nibbles = append(nibbles, fmt.Sprintf("%x.%x", b>>4, b&0xf))
	}
	return strings.Join(nibbles, ".")
}

// ownName returns the client's name for %{p}: the domain itself, else one below it, else any.
func (c *check) ownName(domain string) string {
	names := c.ownNames()
	for _, name := range names {
		if strings.EqualFold(name, strings.TrimSuffix(domain, ".")) {
			return name
		}
	}
	for _, name := range names {
		if isBelow(name, domain) {
			return name
		}
	}
	if len(names) > 0 {
		return names[0]
	}
	return "unknown"
}

// transform splits a value, reverses its parts, keeps the last ones and escapes them.
func (p *part) transform(value string) string {
	var parts []string
	for rest := value; ; {
		i := strings.IndexAny(rest, p.delimiters)
		if i < 0 {
			parts = append(parts, rest)
			break
		}
		parts, rest = append(parts, rest[:i]), rest[i+1:]
	}
	if p.reverse {
		slices.Reverse(parts)
	}
	if p.keep > 0 && p.keep < len(parts) {
		parts = parts[len(parts)-p.keep:]
	}
	value = strings.Join(parts, ".")
	if !p.escape {
		return value
	}
	var b strings.Builder
	for i := range len(value) {
		if ch := value[i]; isAlnum(ch) || strings.IndexByte("-._~", ch) >= 0 {
			b.WriteByte(ch)
		} else {
			fmt.Fprintf(&b, "%%%02X", ch)
		}
	}
	return b.String()
}
