// Package text reads the text form of the tables aliases, fqdnaliases, routes,
// localnames (formats.md "Routing tables"), masquerade, and those of virtual and relay domains:
// it parts entries, brings keys into the form that is compared, and checks values. What makes a compiled table and what routes mail
// read tables by it alike.
//
// It owns nothing, not even on disk.
//
// Diagnostics: an error of Scan is a *config.Error that names file, line and reason; one
// of the others says the errors with the words it was given.
package text

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"zmailer/internal/run/config"
)

// Kind is one of the tables, by the name of its file.
type Kind string

// The tables.
const (
	Aliases     Kind = "aliases"
	FQDNAliases Kind = "fqdnaliases"
	Routes      Kind = "routes"
	LocalNames  Kind = "localnames"
	Masquerade  Kind = "masquerade"

	// Those of domain classes (docs/virtual-domains.md, docs/relay-domains.md), by the names of
	// their settings in lower case.
	VirtualAliasDomains   Kind = "virtualaliasdomains"
	VirtualMailboxDomains Kind = "virtualmailboxdomains"
	VirtualMailboxMaps    Kind = "virtualmailboxmaps"
	VirtualUIDMaps        Kind = "virtualuidmaps"
	VirtualGIDMaps        Kind = "virtualgidmaps"
	RelayDomains          Kind = "relaydomains"
	RelayRecipientMaps    Kind = "relayrecipientmaps"
)

// Kinds lists the tables.
func Kinds() []Kind {
	return append([]Kind{Aliases, FQDNAliases, Routes, LocalNames, Masquerade}, ClassKinds()...)
}

// ClassKinds lists the tables of domain classes.
func ClassKinds() []Kind {
	return []Kind{VirtualAliasDomains, VirtualMailboxDomains, VirtualMailboxMaps, VirtualUIDMaps, VirtualGIDMaps, RelayDomains, RelayRecipientMaps}
}

// Entry is one of a table's.
type Entry struct {
	Key    string  // in the form that is compared
	Text   string  // the text after the key: values, a route; "" in localnames
	Line   int     // where it begins
	Values []Value // of an alias: Text, read
	Route  Route   // of a route: Text, read
	Store  Store   // of a virtual mailbox or a domain of a class: Text, read
	ID     uint32  // of virtualuidmaps and virtualgidmaps: Text, read
}

// MaxLine is how long a line may be: a table is no place for a stray image.
const MaxLine = 1 << 20

// Scan reads a table and hands over its entries in their order, checked each by itself.
// That a key occurs twice is for the caller to find. file is for errors. All lines with an
// error are reported, joined; an error of each that is no *config.Error ends it at once.
func Scan(kind Kind, file string, r io.Reader, each func(Entry) error) error {
	s := scanner{kind: kind, file: file, each: each}
	var wrong config.Mistakes
	enough := func(err error) bool {
		bad := (*config.Error)(nil)
		return err != nil && (wrong.Add(err) || !errors.As(err, &bad))
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), MaxLine)
	lines.Split(wholeLines)
	for lines.Scan() {
		s.number++
		if enough(s.line(lines.Text())) {
			return wrong.Err()
		}
	}
	err := lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		err = s.bad(s.number+1, fmt.Sprintf("longer than %d bytes: this is no table", MaxLine), nil)
	}
	if err == nil {
		err = s.end()
	}
	wrong.Add(err)
	return wrong.Err()
}

// wholeLines splits behind the newline, which a value may go on over.
func wholeLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// scanner is a table that is being read.
type scanner struct {
	kind   Kind
	file   string
	each   func(Entry) error
	number int
	entry  strings.Builder // of aliases: the entry so far
	begin  int             // its first line; 0: none
}

func (s *scanner) bad(line int, reason string, err error) error {
	return &config.Error{File: s.file, Line: line, Reason: reason, Err: err}
}

func (s *scanner) line(line string) error {
	switch s.kind {
	case Aliases, FQDNAliases:
		return s.aliasLine(line)
	case Masquerade:
		return s.masqueradeLine(line)
	case Routes, LocalNames:
	default:
		return s.classLine(line)
	}
	words := strings.Fields(withoutComment(line))
	if len(words) == 0 {
		return nil
	}
	if s.kind == LocalNames {
		if len(words) != 1 {
			return s.bad(s.number, "want one domain a line", nil)
		}
		key, err := Domain(words[0])
		if err != nil {
			return s.bad(s.number, "bad domain", err)
		}
		return s.each(Entry{Key: key, Line: s.number})
	}
	if len(words) != 2 {
		return s.bad(s.number, "want two words, a key and channel!host", nil)
	}
	to, err := ParseRoute(words[1])
	if err != nil {
		return s.bad(s.number, "bad route", err)
	}
	key, err := RouteKey(words[0])
	if err != nil {
		return s.bad(s.number, "bad key", err)
	}
	return s.each(Entry{Key: key, Text: words[1], Line: s.number, Route: to})
}

// aliasLine takes a line of entries that begin at column 1 and go on in lines that
// begin with a blank. Lines with # as their first character mean nothing.
func (s *scanner) aliasLine(line string) error {
	trimmed := strings.TrimSpace(line)
	comment := trimmed == "" || trimmed[0] == '#'
	switch {
	case comment && s.begin != 0:
		s.entry.WriteByte('\n') // keeps the count of lines
	case comment:
	case line[0] == ' ' || line[0] == '\t':
		if s.begin == 0 {
			return s.bad(s.number, "begins with a blank, but there is no alias that it could continue", nil)
		}
		s.entry.WriteString(line)
	default:
		err := s.end()
		s.begin = s.number
		s.entry.WriteString(line)
		return err
	}
	return nil
}

// end hands over the alias that the next one ends.
func (s *scanner) end() error {
	if s.begin == 0 {
		return nil
	}
	text, begin := s.entry.String(), s.begin
	s.entry.Reset()
	s.begin = 0
	e, line, err := parseAlias(text, s.kind)
	if err != nil {
		return s.bad(begin+line, "bad alias", err)
	}
	e.Line = begin
	return s.each(e)
}

// parseAlias reads "name: value, value" over several lines. line counts from 0 to what
// is wrong.
func parseAlias(text string, kind Kind) (e Entry, line int, err error) {
	colon := indexOutside(text, ':')
	if colon < 0 {
		return Entry{}, 0, errors.New("no colon: want name: value")
	}
	key, err := Key(kind, strings.TrimSpace(text[:colon]))
	if err != nil {
		return Entry{}, 0, err
	}
	behind := text[colon+1:]
	values, where, err := ParseValues(behind)
	if err == nil && len(values) == 0 {
		err = errors.New("no value; /dev/null drops the mail")
	}
	return Entry{Key: key, Text: strings.TrimSpace(behind), Values: values}, strings.Count(text[:colon+1+where], "\n"), err
}

// withoutComment cuts what follows a # that begins a word.
func withoutComment(line string) string {
	for i := 0; i < len(line); i++ {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}
