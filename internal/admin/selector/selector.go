// Package selector is the language in which operators select queued mail: the flags
// and the expression that every verb of zmctl takes (docs/queue.md).
//
//	from *@example.com and (host a.example or host b.example) and not older 3d
//
// It is pure: text becomes a Selector, and a Selector decides on the Facts of one
// recipient whether they match. A Selector prints itself in a form that it reads again.
//
// Diagnostics: *Error has the column of the text, counted from 1 in characters, and the
// word that was being read. Matching never errs.
package selector

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"zmailer/internal/run/glob"
)

// Facts are the values of one recipient of one message. A message whose recipients
// are not known has the zero values of those.
type Facts struct {
	ID   string // spool ID
	From string // sender's address, "" for the null sender
	Size int64  // bytes of the message file
	Age  time.Duration

	// Where the message came in: the SMTP client's address without port, its host name, the
	// user who logged in; "": not known, or not by SMTP.
	Client, ClientName, User string
	MessageID                string // with its brackets; "": not known

	To, Channel, Host string
	OrigTo            string // the recipient before aliases; "": To
	// States are all that hold: those of the recipient and of its message.
	States []string
	Reply  string // last answer of the other side
	Cause  string // why it was put aside or frozen: users, policy, person
}

// Selector selects recipients. The zero Selector is empty, which is not
// to be acted on; see Empty.
type Selector struct{ root node }

// Empty reports whether nothing was selected.
func (s Selector) Empty() bool { return s.root == nil }

// Match reports whether a recipient is selected. An empty Selector selects all of them.
func (s Selector) Match(f *Facts) bool { return s.root == nil || s.root.match(f) }

// String returns the canonical form; "" if it is empty.
func (s Selector) String() string {
	if s.root == nil {
		return ""
	}
	var b strings.Builder
	s.root.print(&b, precedenceOr)
	return b.String()
}

// IDs returns the only spool IDs that can match; ok is false if others can, too.
func (s Selector) IDs() (ids []string, ok bool) {
	if s.root == nil {
		return nil, false
	}
	return s.root.ids()
}

// And returns what both mean; an empty one adds nothing.
func (s Selector) And(t Selector) Selector {
	switch {
	case s.root == nil:
		return t
	case t.root == nil:
		return s
	}
	return Selector{allOf(flat[allOf](s.root, t.root))}
}

// Error is a text that cannot be read.
type Error struct {
	Column int    // of the text, from 1
	Name   string // the selector's word that was being read: "older"; "" if none
	Reason string
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("column %d: %s", e.Column, e.Reason)
	}
	return fmt.Sprintf("column %d: %s: %s", e.Column, e.Name, e.Reason)
}

// Precedences of print: an operand of lower precedence gets parentheses.
const (
	precedenceOr = iota
	precedenceAnd
	precedenceNot
)

type node interface {
	match(f *Facts) bool
	print(b *strings.Builder, within int)
	ids() ([]string, bool)
}

type (
	allOf  []node
	anyOf  []node
	noneOf struct{ of node }
	every  struct{}
)

func (n allOf) match(f *Facts) bool {
	return !slices.ContainsFunc(n, func(m node) bool { return !m.match(f) })
}

func (n anyOf) match(f *Facts) bool {
	return slices.ContainsFunc(n, func(m node) bool { return m.match(f) })
}

func (n noneOf) match(f *Facts) bool { return !n.of.match(f) }
func (every) match(*Facts) bool      { return true }

func (n allOf) print(b *strings.Builder, within int) { printList(b, n, " and ", precedenceAnd, within) }
func (n anyOf) print(b *strings.Builder, within int) { printList(b, n, " or ", precedenceOr, within) }

func printList(b *strings.Builder, list []node, word string, own, within int) {
	if within > own {
		b.WriteByte('(')
		defer b.WriteByte(')')
	}
	for i, n := range list {
		if i > 0 {
			b.WriteString(word)
		}
		n.print(b, own+1)
	}
}

func (n noneOf) print(b *strings.Builder, _ int) {
	b.WriteString("not ")
	n.of.print(b, precedenceNot)
}

func (every) print(b *strings.Builder, _ int) { b.WriteString(wordAll) }

func (n allOf) ids() ([]string, bool) {
	for _, m := range n {
		if ids, ok := m.ids(); ok {
			return ids, true
		}
	}
	return nil, false
}

func (n anyOf) ids() ([]string, bool) {
	var all []string
	for _, m := range n {
		ids, ok := m.ids()
		if !ok {
			return nil, false
		}
		all = append(all, ids...)
	}
	return all, true
}

func (noneOf) ids() ([]string, bool) { return nil, false }
func (every) ids() ([]string, bool)  { return nil, false }

// flat makes one list of nodes, taking those that are such a list apart.
func flat[L ~[]node](nodes ...node) []node {
	var list []node
	for _, n := range nodes {
		if inner, ok := n.(interface{ nodes() []node }); ok {
			if _, same := n.(any).(L); same {
				list = append(list, inner.nodes()...)
				continue
			}
		}
		list = append(list, n)
	}
	return list
}

func (n allOf) nodes() []node { return n }
func (n anyOf) nodes() []node { return n }

// pattern is one of the texts that a column may have.
type pattern struct {
	text  string
	exact bool // spool IDs differ by the case of a letter
	net   netip.Prefix
	glob  string // in lower case; "": text itself
}

func (p *pattern) match(s string) bool {
	switch {
	case p.exact:
		return p.text == s
	case p.net.IsValid():
		a, err := netip.ParseAddr(s)
		return err == nil && p.net.Contains(a)
	case p.glob == "":
		return strings.EqualFold(p.text, s)
	}
	return glob.Match(p.glob, strings.ToLower(s))
}

// textTerm compares a text with a list of patterns.
type textTerm struct {
	column   *column
	patterns []pattern
}

func (t *textTerm) match(f *Facts) bool {
	for _, s := range t.column.text(f) {
		for i := range t.patterns {
			if t.patterns[i].match(s) {
				return true
			}
		}
	}
	return false
}

func (t *textTerm) print(b *strings.Builder, _ int) {
	b.WriteString(t.column.name)
	for i := range t.patterns {
		b.WriteByte(" ,"[min(i, 1)])
		if text := t.patterns[i].text; text == "" && t.column.address {
			b.WriteString("<>")
		} else {
			b.WriteString(quoted(text))
		}
	}
}

func (t *textTerm) ids() ([]string, bool) {
	if t.column.name != "id" {
		return nil, false
	}
	ids := make([]string, len(t.patterns))
	for i := range t.patterns {
		ids[i] = t.patterns[i].text
	}
	return ids, true
}

// replyTerm looks for a regular expression in the last answer.
type replyTerm struct {
	text string
	find *regexp.Regexp
}

func (t *replyTerm) match(f *Facts) bool             { return t.find.MatchString(f.Reply) }
func (t *replyTerm) print(b *strings.Builder, _ int) { b.WriteString("reply " + quoted(t.text)) }
func (t *replyTerm) ids() ([]string, bool)           { return nil, false }

// boundTerm compares a number: at least, or less than.
type boundTerm struct {
	column *column
	bound  int64
}

func (t *boundTerm) match(f *Facts) bool {
	if t.column.less {
		return t.column.number(f) < t.bound
	}
	return t.column.number(f) >= t.bound
}

func (t *boundTerm) print(b *strings.Builder, _ int) {
	b.WriteString(t.column.name + " " + t.column.printBound(t.bound))
}

func (t *boundTerm) ids() ([]string, bool) { return nil, false }

// Quote returns a value as an expression takes it.
func Quote(s string) string { return quoted(s) }

// quoted returns a word as the parser takes it. A backslash is itself unless a quote
// or another one is behind it.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, special) && !reserved(s) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' && (i+1 == len(s) || s[i+1] == '"' || s[i+1] == '\\') {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('"')
	return b.String()
}
