package address

import (
	"errors"
	"fmt"
	"strings"
)

// Listed is one address of a list in a header field.
type Listed struct {
	Mailbox Mailbox
	// Err is why Text is not an address.
	Err  error
	Text string // the addr-spec, without blanks and comments beside its dots and its @
	// Start and End bound the addr-spec in the value: display name, brackets and
	// comments around it lie outside.
	Start, End int
}

// ParseList reads the address list of a header field, folded or not: RFC 5322 §3.4
// with groups, comments and the obsolete forms of §4.4 (source routes, blanks and
// comments around dots, empty elements), bare local names, and what is met in mail
// besides: semicolons for commas, brackets in brackets, a quote or a comment without
// end. It never fails as a whole: what cannot be read comes with Err. The empty
// address <> is the null Mailbox.
func ParseList(value string) []Listed {
	p := listParser{s: value, lastAngle: strings.LastIndexByte(value, '>')}
	for p.i < len(p.s) {
		p.next()
	}
	p.end()
	return p.found
}

// listParser reads one token after the other.
type listParser struct {
	s     string
	i     int
	found []Listed
	plain spec // outside of brackets: a display name, or the address
	angle spec // inside of them
	in    bool // inside
	has   bool // there were brackets
	loose bool // the bracket has no end

	lastAngle int              // the last >
	ends      map[byte][]int32 // what closing gives for each place, once it has found nothing
}

// spec collects the tokens of what may be an addr-spec.
type spec struct {
	text       strings.Builder
	start, end int
	gap        bool // blanks or a comment since the last token
	at         bool // an @ that is not quoted
}

// add takes the token s[from:to] on.
func (a *spec) add(s string, from, to int) {
	if a.text.Len() == 0 {
		a.start = from
	} else if a.gap && !joins(s[from]) && !joins(s[a.end-1]) {
		a.text.WriteByte(' ')
	}
	a.at = a.at || s[from] == '@'
	a.text.WriteString(s[from:to])
	a.end, a.gap = to, false
}

// joins reports the bytes around which CFWS means nothing (RFC 5322 section 4.4).
func joins(b byte) bool { return b == '.' || b == '@' || b == ',' || b == ':' }

func (p *listParser) spec() *spec {
	if p.in {
		return &p.angle
	}
	return &p.plain
}

func (p *listParser) next() {
	b := p.s[p.i]
	switch {
	case b == ' ' || b == '\t' || b == '\r' || b == '\n':
		p.spec().gap = true
		p.i++
	case b == '(':
		p.spec().gap = true
		p.comment()
	case b == '"':
		p.quoted()
	case b == '[':
		p.literal()
	case b == '<':
		p.open()
	case b == '>' && p.in:
		p.in = false
		p.i++
	case (b == ',' || b == ';') && (!p.in || p.loose):
		p.i++
		p.end()
	case b == ':' && !p.in && !p.plain.at && !p.has:
		// The text before was a group's name.
		p.i++
		p.plain = spec{}
	default:
		p.i++
		p.spec().add(p.s, p.i-1, p.i)
	}
}

// comment skips a comment with those inside of it; one without end takes all the rest.
func (p *listParser) comment() {
	depth := 0
	for ; p.i < len(p.s); p.i++ {
		switch p.s[p.i] {
		case '\\':
			p.i++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				p.i++
				return
			}
		}
	}
	p.i = len(p.s)
}

// quoted takes a quoted string on; a quote without end is an error of its address, but
// not of one in brackets behind it.
func (p *listParser) quoted() {
	end := p.closing(p.i, '"')
	if end < 0 {
		end = p.i
	}
	p.spec().add(p.s, p.i, end+1)
	p.i = end + 1
}

// literal takes a domain literal on; a bracket without end is an error of its address.
func (p *listParser) literal() {
	end := p.closing(p.i, ']')
	if end < 0 {
		end = p.i
	}
	p.spec().add(p.s, p.i, end+1)
	p.i = end + 1
}

// closing finds the byte that closes what s[open] opened, past quoted pairs; -1: it is
// not there. A list of nothing but begins takes no longer than another of its length.
func (p *listParser) closing(open int, b byte) int {
	if ends := p.ends[b]; ends != nil {
		return int(ends[open+1])
	}
	for i := open + 1; i < len(p.s); i++ {
		switch p.s[i] {
		case '\\':
			i++
		case b:
			return i
		}
	}
	ends := make([]int32, len(p.s)+2)
	ends[len(p.s)], ends[len(p.s)+1] = -1, -1
	for i := len(p.s) - 1; i > open; i-- {
		switch p.s[i] {
		case '\\':
			ends[i] = ends[i+2]
		case b:
			ends[i] = int32(i)
		default:
			ends[i] = ends[i+1]
		}
	}
	if p.ends == nil {
		p.ends = map[byte][]int32{}
	}
	p.ends[b] = ends
	return -1
}

// open begins a text in brackets. Of brackets in brackets the innermost count; a
// second pair beside the first is an address of its own; one without end ends with its
// element.
func (p *listParser) open() {
	p.i++
	if p.has && !p.in {
		p.end()
	}
	p.in, p.has, p.angle = true, true, spec{start: p.i, end: p.i}
	p.loose = p.lastAngle < p.i
}

// end takes the address that was read, if any.
func (p *listParser) end() {
	a := &p.plain
	if p.has {
		a = &p.angle
	}
	text := a.text.String()
	if p.has || text != "" {
		one := Listed{Text: text, Start: a.start, End: a.end}
		switch {
		case p.in && text == "":
			one.Err = errors.New("address \"<\": < without >")
		default:
			one.Mailbox, one.Err = parseSpec(text)
		}
		p.found = append(p.found, one)
	}
	p.plain, p.angle, p.in, p.has, p.loose = spec{}, spec{}, false, false, false
}

// parseSpec reads an addr-spec without CFWS, in the form of RFC 5321 or as RFC 5322
// §4.4 obs-local-part: words, some of them quoted, with dots between.
func parseSpec(text string) (Mailbox, error) {
	m, err := Parse(text)
	if err == nil {
		return m, nil
	}
	local, rest, ok := obsoleteLocal(text)
	if !ok {
		return Mailbox{}, err
	}
	return Parse(quote(local) + rest)
}

// obsoleteLocal returns the words of an obs-local-part unquoted and joined.
func obsoleteLocal(text string) (local, rest string, ok bool) {
	var b strings.Builder
	words := 0
	for text != "" && text[0] != '@' {
		if words > 0 {
			if text[0] != '.' {
				return "", "", false
			}
			b.WriteByte('.')
			text = text[1:]
		}
		word, after, err := cutWord(text)
		if err != nil {
			return "", "", false
		}
		b.WriteString(word)
		text = after
		words++
	}
	return b.String(), text, words > 1
}

// cutWord parts RFC 5322 §3.2.5 word, unquoted, from the rest.
func cutWord(s string) (word, rest string, err error) {
	if s == "" {
		return "", "", errors.New("no word")
	}
	if s[0] == '"' {
		return cutQuoted(s)
	}
	i := 0
	for i < len(s) && isAtext(s[i]) {
		i++
	}
	if i == 0 {
		return "", "", fmt.Errorf("%q where a word must begin", s[:1])
	}
	return s[:i], s[i:], nil
}
