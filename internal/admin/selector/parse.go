package selector

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Words that join; a value that is spelled like one must be quoted.
const (
	wordAnd = "and"
	wordOr  = "or"
	wordNot = "not"
	wordAll = "all"
)

// maxDepth bounds nesting, whatever somebody pastes.
const maxDepth = 200

func reserved(s string) bool {
	switch strings.ToLower(s) {
	case wordAnd, wordOr, wordNot, wordAll:
		return true
	}
	return false
}

// special reports whether a character ends a plain word or has a meaning in it.
func special(r rune) bool {
	return r == '(' || r == ')' || r == '"' || r == ',' || r == '=' || r == '!' || r == utf8.RuneError ||
		unicode.IsSpace(r) || !unicode.IsPrint(r)
}

// All means every recipient there is.
func All() Selector { return Selector{every{}} }

// Parse reads an expression.
func Parse(text string) (Selector, error) {
	p := &parser{text: text}
	if err := p.next(); err != nil {
		return Selector{}, err
	}
	if p.kind == tokenEnd {
		return Selector{}, p.fail("", "nothing is selected; "+wordAll+" selects everything")
	}
	n, err := p.or(0)
	if err != nil {
		return Selector{}, err
	}
	if p.kind != tokenEnd {
		return Selector{}, p.fail("", "there is no ( for this )")
	}
	return Selector{n}, nil
}

// Column makes a selector of one column with values, of which one must match: what
// --NAME VALUE means. Commas part values, but for reply.
func Column(name string, values ...string) (Selector, error) {
	c := find(name)
	if c == nil {
		return Selector{}, &Error{Column: 1, Name: name, Reason: "there is no such column"}
	}
	var list []node
	merged := (*textTerm)(nil)
	for _, v := range values {
		p := &parser{text: v}
		words, err := p.split(c)
		if err != nil {
			return Selector{}, err
		}
		n, err := c.term(words)
		if err != nil {
			return Selector{}, err
		}
		if t, ok := n.(*textTerm); ok && merged != nil {
			merged.patterns = append(merged.patterns, t.patterns...)
			continue
		} else if ok {
			merged = t
		}
		list = append(list, n)
	}
	switch len(list) {
	case 0:
		return Selector{}, nil
	case 1:
		return Selector{list[0]}, nil
	}
	return Selector{anyOf(list)}, nil
}

type token int

const (
	tokenEnd token = iota
	tokenWord
	tokenQuoted
	tokenOpen
	tokenClose
	tokenComma
	tokenEqual
	tokenNot
)

// parser reads one token ahead.
type parser struct {
	text  string
	at    int // byte behind the token
	start int // byte where it begins
	kind  token
	word  string
}

// word is a value with its place.
type word struct {
	text   string
	column int
}

func (p *parser) column() int { return utf8.RuneCountInString(p.text[:p.start]) + 1 }

func (p *parser) fail(name, reason string) error { return &Error{p.column(), name, reason} }

func (p *parser) next() error {
	for p.at < len(p.text) {
		r, n := utf8.DecodeRuneInString(p.text[p.at:])
		if !unicode.IsSpace(r) {
			break
		}
		p.at += n
	}
	p.start, p.word = p.at, ""
	if p.at == len(p.text) {
		p.kind = tokenEnd
		return nil
	}
	p.at++
	switch p.text[p.start] {
	case '(':
		p.kind = tokenOpen
	case ')':
		p.kind = tokenClose
	case ',':
		p.kind = tokenComma
	case '=':
		p.kind = tokenEqual
	case '!':
		p.kind = tokenNot
	case '"':
		return p.quoted()
	default:
		p.at--
		return p.plain()
	}
	return nil
}

func (p *parser) plain() error {
	end := strings.IndexFunc(p.text[p.at:], special)
	if end == 0 {
		return p.fail("", strconv.Quote(p.text[p.at:p.at+1])+" must be in quotes")
	}
	if end < 0 {
		end = len(p.text) - p.at
	}
	p.kind, p.word = tokenWord, p.text[p.at:p.at+end]
	p.at += end
	return nil
}

func (p *parser) quoted() error {
	var b strings.Builder
	for ; p.at < len(p.text); p.at++ {
		c := p.text[p.at]
		switch {
		case c == '"':
			p.at++
			p.kind, p.word = tokenQuoted, b.String()
			return nil
		case c == '\\' && p.at+1 < len(p.text) && (p.text[p.at+1] == '"' || p.text[p.at+1] == '\\'):
			p.at++
			c = p.text[p.at]
		}
		b.WriteByte(c)
	}
	return p.fail("", "a closing quote is missing")
}

func (p *parser) is(w string) bool { return p.kind == tokenWord && strings.EqualFold(p.word, w) }

func (p *parser) or(depth int) (node, error) {
	n, err := p.and(depth)
	list := []node{n}
	for err == nil && p.is(wordOr) {
		if err = p.next(); err == nil {
			n, err = p.and(depth)
			list = append(list, n)
		}
	}
	if err != nil || len(list) == 1 {
		return n, err
	}
	return anyOf(flat[anyOf](list...)), nil
}

// and reads terms with "and" or nothing between them.
func (p *parser) and(depth int) (node, error) {
	n, err := p.not(depth)
	list := []node{n}
	for err == nil && p.kind != tokenEnd && p.kind != tokenClose && !p.is(wordOr) {
		if p.is(wordAnd) {
			err = p.next()
		}
		if err == nil {
			n, err = p.not(depth)
			list = append(list, n)
		}
	}
	if err != nil || len(list) == 1 {
		return n, err
	}
	return allOf(flat[allOf](list...)), nil
}

func (p *parser) not(depth int) (node, error) {
	if depth > maxDepth {
		return nil, p.fail("", "too deeply nested")
	}
	switch {
	case p.kind == tokenNot || p.is(wordNot):
		if err := p.next(); err != nil {
			return nil, err
		}
		n, err := p.not(depth + 1)
		return noneOf{n}, err
	case p.kind == tokenOpen:
		if err := p.next(); err != nil {
			return nil, err
		}
		n, err := p.or(depth + 1)
		if err != nil {
			return nil, err
		}
		if p.kind != tokenClose {
			return nil, p.fail("", "a closing ) is missing")
		}
		return n, p.next()
	}
	return p.term()
}

// term reads a column's name and its value or values.
func (p *parser) term() (node, error) {
	switch p.kind {
	case tokenEnd:
		return nil, p.fail("", "something is missing at the end")
	case tokenWord:
	default:
		return nil, p.fail("", "a column's name is expected here, or not, or (")
	}
	name := strings.ToLower(p.word)
	if name == wordAll {
		return every{}, p.next()
	}
	c := find(name)
	if c == nil {
		names, _ := Names()
		return nil, p.fail("", strconv.Quote(p.word)+" is no column; they are "+strings.Join(names, " "))
	}
	err := p.next()
	if err == nil && p.kind == tokenEqual {
		err = p.next()
	}
	if err != nil {
		return nil, err
	}
	words, err := p.values(c)
	if err != nil {
		return nil, err
	}
	return c.term(words)
}

// values reads words with commas between them.
func (p *parser) values(c *column) ([]word, error) {
	var list []word
	for {
		if p.kind != tokenQuoted && (p.kind != tokenWord || reserved(p.word)) {
			return nil, p.fail(c.name, "its value is missing")
		}
		list = append(list, word{p.word, p.column()})
		if err := p.next(); err != nil {
			return nil, err
		}
		if p.kind != tokenComma {
			return list, nil
		}
		if err := p.next(); err != nil {
			return nil, err
		}
	}
}

// split reads the value of a flag: words with commas between them, in which nothing
// else is special.
func (p *parser) split(c *column) ([]word, error) {
	if c.text == nil {
		return []word{{p.text, 1}}, nil
	}
	var list []word
	at := 1
	for part := range strings.SplitSeq(p.text, ",") {
		list = append(list, word{strings.TrimSpace(part), at})
		at += utf8.RuneCountInString(part) + 1
	}
	return list, nil
}

func (c *column) term(words []word) (node, error) {
	fail := func(w word, err error) (node, error) { return nil, &Error{w.column, c.name, err.Error()} }
	if c.text != nil {
		t := &textTerm{column: c}
		for _, w := range words {
			pattern, err := c.compile(w.text)
			if err != nil {
				return fail(w, err)
			}
			t.patterns = append(t.patterns, pattern)
		}
		return t, nil
	}
	if len(words) > 1 {
		return nil, &Error{words[1].column, c.name, "it takes one value"}
	}
	w := words[0]
	if c.number == nil {
		re, err := regexp.Compile("(?is)" + w.text)
		if err != nil {
			return fail(w, err)
		}
		return &replyTerm{w.text, re}, nil
	}
	n, err := c.bound(w.text)
	if err != nil {
		return fail(w, err)
	}
	return &boundTerm{c, n}, nil
}
