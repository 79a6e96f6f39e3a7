package spf

import (
	"net/netip"
	"strconv"
	"strings"
)

// record is a domain's record, without what stands before its terms.
type record struct {
	terms    []*term
	redirect spec // nil: none
	hasAll   bool
}

// term is a directive (section 4.6.1): a mechanism with its result.
type term struct {
	result       Result
	name         string
	domain       spec // nil: the current one
	bits4, bits6 int
	prefix       netip.Prefix // of ip4 and ip6
}

// parse reads all of a record; false: there is an error somewhere in it.
func parse(text string) (*record, bool) {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return nil, false
		}
	}
	rec := &record{}
	seen := map[string]bool{}
	for word := range strings.SplitSeq(text, " ") {
		if word == "" {
			continue
		}
		if name, value, ok := cutModifier(word); ok {
			s, valid := parseSpec(value, name != "redirect" && name != "exp")
			if !valid || seen[name] {
				return nil, false
			}
			if name == "redirect" {
				rec.redirect = s
			}
			seen[name] = name == "redirect" || name == "exp"
			continue
		}
		t, ok := parseTerm(word)
		if !ok {
			return nil, false
		}
		rec.hasAll = rec.hasAll || t.name == "all"
		rec.terms = append(rec.terms, t)
	}
	return rec, true
}

// cutModifier splits name=value (section 4.6.1).
func cutModifier(word string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(word, "=")
	if !ok || name == "" || !isAlpha(name[0]) {
		return "", "", false
	}
	for i := range len(name) {
		if b := name[i]; !isAlnum(b) && b != '-' && b != '_' && b != '.' {
			return "", "", false
		}
	}
	return strings.ToLower(name), value, true
}

// parseTerm reads a directive.
func parseTerm(word string) (*term, bool) {
	t := &term{result: Pass, bits4: 32, bits6: 128}
	switch word[0] {
	case '+':
		word = word[1:]
	case '-':
		t.result, word = Fail, word[1:]
	case '~':
		t.result, word = SoftFail, word[1:]
	case '?':
		t.result, word = Neutral, word[1:]
	}
	end := strings.IndexAny(word, ":/")
	if end < 0 {
		end = len(word)
	}
	var arg string
	t.name, arg = strings.ToLower(word[:end]), word[end:]
	switch t.name {
	case "all":
		return t, arg == ""
	case "ip4", "ip6":
		return t, t.network(arg)
	case "a", "mx":
		var ok bool
		if arg, ok = t.cidr(arg); !ok {
			return nil, false
		}
	case "include", "exists":
		if arg == "" {
			return nil, false
		}
	case "ptr":
	default:
		return nil, false
	}
	if arg == "" {
		return t, true
	}
	if arg[0] != ':' {
		return nil, false
	}
	var ok bool
	t.domain, ok = parseSpec(arg[1:], false)
	return t, ok
}

// network reads the argument of ip4 and ip6 (section 5.6).
func (t *term) network(arg string) bool {
	text, ok := strings.CutPrefix(arg, ":")
	if !ok {
		return false
	}
	text, length, hasLength := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4() != (t.name == "ip4") {
		return false
	}
	bits := addr.BitLen()
	if hasLength {
		if bits, ok = number(length, addr.BitLen()); !ok {
			return false
		}
	}
	p, err := addr.Prefix(bits)
	t.prefix = p
	return err == nil
}

// cidr cuts the lengths off: "/24", "//64", "/24//64" (section 5.3).
func (t *term) cidr(arg string) (rest string, ok bool) {
	if i := strings.LastIndex(arg, "//"); i >= 0 {
		if t.bits6, ok = number(arg[i+2:], 128); !ok {
			return "", false
		}
		arg = arg[:i]
	}
	i := strings.LastIndexByte(arg, '/')
	if i < 0 || strings.Trim(arg[i+1:], "0123456789") != "" {
		return arg, true // a slash may be a part of the domain
	}
	t.bits4, ok = number(arg[i+1:], 32)
	return arg[:i], ok
}

// number reads a length of a prefix, which has no zero in front.
func number(text string, most int) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 8)
	return int(n), err == nil && int(n) <= most && strconv.FormatUint(n, 10) == text
}

func isAlpha(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }
func isDigit(b byte) bool { return '0' <= b && b <= '9' }
func isAlnum(b byte) bool { return isAlpha(b) || isDigit(b) }
