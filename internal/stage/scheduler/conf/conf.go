// Package conf is scheduler.conf as values: it parses the file, checks it, and answers
// which settings hold for a channel and host (docs/scheduler.conf.md).
//
// It owns the syntax of the file, the table of its keywords with their defaults, the
// matching of clauses, and the identities that agents may be given.
//
// What survives a crash: nothing; the file is only read.
//
// Diagnostics: each error of Parse, Load and Check is a *config.Error with file, line and
// column; Errors lists those that were joined. A FindProgram or Credential error is why an
// agent cannot be started.
package conf

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"zmailer/internal/run/config"
	"zmailer/internal/run/glob"
)

// File is a parsed scheduler.conf.
type File struct {
	// ReportInterval is how long failures of a message are collected before they are
	// reported, while other recipients are still open (PARAM global-report-interval).
	ReportInterval time.Duration
	// CopyUndeliverable: undeliverable mail of the null sender is copied to postman/ for
	// the postmaster (PARAM deliveryreports = postman).
	CopyUndeliverable bool
	// Reports are the settings for reports.
	Reports Reports
	// MailQSock and AuthFile are for the query socket.
	MailQSock, AuthFile string
	// NoEffect are ZMailer's settings that have no effect, as "file:line:column: key".
	NoEffect []*config.Error

	// Name is the file's name, Text its content.
	Name, Text string

	// fingerprint identifies the settings of zmailer.conf that a program reads; nil: there are none.
	fingerprint func(program string) string

	clauses []clause
	bodies  []body
	mu      sync.Mutex
	cache   map[string]*Settings // by the bodies that match
	next    atomic.Pointer[File] // the version in force; nil: this one
}

// place is a position in the file, counted from 1.
type place struct{ line, column int }

// clause is a pattern with a body of settings, which clauses may share.
type clause struct {
	name          string
	channel, host []string // shell patterns; one of them must match
	at            place
	body          int
}

// body is the settings of one or more clauses.
type body struct {
	// name identifies the body, also in a later version of the file: the pattern of its
	// last clause, with a number if an earlier body has the same.
	name  string
	sets  []setting
	where map[string]place // where each key was set last
	last  bool             // it has a command
}

// settings returns those of the body alone.
func (b *body) settings() Settings {
	s := Defaults()
	for _, set := range b.sets {
		set(&s)
	}
	return s
}

// setting changes one value.
type setting func(*Settings)

const defaultReportInterval = 5 * time.Minute

// Parse parses scheduler.conf (docs/scheduler.conf.md). file is its name in errors; getenv
// looks up ${NAME} of commands. The error joins a *config.Error for each problem.
func Parse(file string, text []byte, getenv func(string) (string, bool)) (*File, error) {
	p := confParser{
		getenv: getenv, words: keywords(),
		conf: &File{ReportInterval: defaultReportInterval, Reports: defaultReports(), cache: map[string]*Settings{}, Name: file, Text: string(text)},
	}
	p.parse(string(text))
	if len(p.conf.clauses) == 0 && len(p.errs) == 0 {
		p.errs = append(p.errs, &config.Error{File: file, Reason: "no clause: no mail can be delivered"})
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	p.conf.nameBodies()
	return p.conf, nil
}

// Errors returns the errors that Parse or Load has joined.
func Errors(err error) []error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

type confParser struct {
	getenv func(string) (string, bool)
	words  map[string]keyword
	conf   *File
	errs   []error
	line   line // current
	open   int  // clauses at the end that have no body yet, or share the last one
	inBody bool
}

// line is a line, or several lines joined by backslashes.
type line struct {
	text   string
	pieces []piece
}

// piece is where a line of the file begins in a joined line.
type piece struct{ start, line int }

// at returns the position of a rest of the line.
func (l *line) at(rest string) place {
	off := len(l.text) - len(rest)
	i := len(l.pieces) - 1
	for i > 0 && l.pieces[i].start > off {
		i--
	}
	return place{l.pieces[i].line, utf8.RuneCountInString(l.text[l.pieces[i].start:off]) + 1}
}

// Clauses returns the number of clauses.
func (c *File) Clauses() int { return len(c.clauses) }

// Current returns the version of the file in force. Many goroutines may call it, on the
// first version.
func (c *File) Current() *File {
	if next := c.next.Load(); next != nil {
		return next
	}
	return c
}

// Replace puts next in force. It is called on the first version.
func (c *File) Replace(next *File) { c.next.Store(next) }

func (c *File) bad(at place, format string, args ...any) *config.Error {
	return &config.Error{File: c.Name, Line: at.line, Column: at.column, Reason: fmt.Sprintf(format, args...)}
}

// bad records an error; parsing goes on to find the others.
func (p *confParser) bad(at place, format string, args ...any) {
	const most = 100
	if len(p.errs) < most {
		p.errs = append(p.errs, p.conf.bad(at, format, args...))
	}
}

func (p *confParser) parse(text string) {
	number := 0
	for l := range strings.Lines(text) {
		number++
		l = strings.TrimRight(l, "\r\n")
		if i := strings.IndexFunc(l, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f || r == utf8.RuneError }); i >= 0 {
			p.bad(place{number, utf8.RuneCountInString(l[:i]) + 1}, "invalid character")
			p.line = line{}
			continue
		}
		p.line.pieces = append(p.line.pieces, piece{len(p.line.text), number})
		// A backslash at the end goes on with the next line.
		cut, more := strings.CutSuffix(l, `\`)
		if p.line.text += cut; more {
			continue
		}
		p.parseLine()
		p.line = line{}
	}
	if len(p.line.pieces) > 0 {
		p.bad(place{number, 0}, `the last line ends in \`)
	}
	if p.open > 0 && !p.inBody {
		p.bad(p.conf.clauses[len(p.conf.clauses)-1].at, "the last clause has no settings")
	}
}

func (p *confParser) parseLine() {
	text := p.line.text
	rest := strings.TrimLeft(text, " \t")
	if rest == "" || rest[0] == '#' {
		return
	}
	if param, ok := cutFold(rest, "PARAM"); ok {
		p.parseParam(param)
		return
	}
	if len(rest) == len(text) {
		end := strings.IndexAny(text, " \t#")
		if end < 0 {
			end = len(text)
		}
		p.startClause(text[:end])
		rest = text[end:]
	}
	if p.open == 0 && strings.TrimLeft(rest, " \t") != "" {
		p.bad(p.line.at(strings.TrimLeft(rest, " \t")), "setting before the first clause; a clause starts at column 1 with channel/host")
		return
	}
	for {
		t, left, err := p.next(rest)
		if err != "" {
			p.bad(t.at, "%s", err)
			return
		}
		if t.key == "" {
			return
		}
		p.set(t)
		rest = left
	}
}

// set parses a setting and adds it to the current body.
func (p *confParser) set(t token) {
	p.inBody = true
	key := strings.ToLower(t.key)
	word, ok := p.words[key]
	if !ok {
		p.bad(t.at, "unknown setting %s; did you mean %s? (docs/scheduler.conf.md)", t.key, nearest(key, p.words))
		return
	}
	set, err := word.read(p, t.value, t.has)
	switch {
	case err != nil && key == "command":
		p.bad(t.valueAt, "command: %v", err)
		return
	case err != nil:
		p.bad(t.valueAt, "%s=%s: %v", t.key, t.value, err)
		return
	}
	if word.idle {
		p.conf.NoEffect = append(p.conf.NoEffect, p.conf.bad(t.at, "%s", key))
	}
	b := &p.conf.bodies[len(p.conf.bodies)-1]
	b.sets = append(b.sets, set)
	b.where[key] = t.at
	b.last = b.last || key == "command"
}

// cutFold is strings.CutPrefix without regard to case.
func cutFold(s, word string) (string, bool) {
	if len(s) < len(word) || !strings.EqualFold(s[:len(word)], word) {
		return s, false
	}
	return s[len(word):], true
}

// startClause begins a clause. A clause before it without settings shares its body.
func (p *confParser) startClause(pattern string) {
	at := p.line.at(p.line.text)
	if p.open == 0 || p.inBody {
		p.open, p.inBody = 0, false
		p.startBody()
	}
	p.open++
	channel, host, ok := strings.Cut(pattern, "/")
	if !ok {
		host = "*"
	}
	c := clause{name: pattern, at: at, body: len(p.conf.bodies) - 1}
	defer func() { p.conf.clauses = append(p.conf.clauses, c) }()
	switch {
	case channel == "" || host == "":
		p.bad(at, "%s: want channel/host", pattern)
		return
	case strings.ContainsRune(pattern, '='):
		p.bad(at, "%s: a line with settings begins with a blank", pattern)
		return
	}
	for _, part := range []string{channel, host} {
		if err := glob.Check(part); err != nil {
			p.bad(at, "%s: %v", pattern, err)
			return
		}
	}
	c.channel, c.host = glob.Expand(channel), glob.Expand(literal(strings.ToLower(host)))
}

func (p *confParser) startBody() {
	if len(p.conf.bodies) == 1<<16 {
		p.bad(p.line.at(p.line.text), "more than %d clauses", 1<<16)
	}
	p.conf.bodies = append(p.conf.bodies, body{where: map[string]place{}})
}

// nameBodies sets the name of each body.
func (c *File) nameBodies() {
	last, seen := map[int]string{}, map[string]int{}
	for i := range c.clauses {
		last[c.clauses[i].body] = c.clauses[i].name
	}
	for i := range c.bodies {
		b := &c.bodies[i]
		b.name = last[i]
		if seen[last[i]]++; seen[last[i]] > 1 {
			b.name = fmt.Sprintf("%s\x00%d", last[i], seen[last[i]])
		}
	}
}
