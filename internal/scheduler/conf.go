package scheduler

import (
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"zmailer/internal/config"
)

// Conf is a read scheduler.conf.
type Conf struct {
	// ReportInterval is how long failures of a message are gathered before they are
	// reported while others of its recipients are still open (PARAM
	// global-report-interval).
	ReportInterval time.Duration
	// CopyUndeliverable: what cannot be delivered and has no sender to tell is kept
	// for the postmaster, in postman/ (PARAM deliveryreports = postman).
	CopyUndeliverable bool
	// MailQSock and AuthFile are for the query socket.
	MailQSock, AuthFile string
	// NoEffect are the settings that are read and checked but not acted upon, as
	// "file:line: key".
	NoEffect []string

	clauses []clause
	bodies  int
	mu      sync.Mutex
	cache   map[string]*Settings // by the bodies that match
}

// clause is a pattern and what it sets; clauses that share a body have its number.
type clause struct {
	name          string
	channel, host []string // shell patterns, of which one is to match
	line          int
	body          int
	sets          []setting
	last          bool // it has a command
}

// setting changes one value.
type setting func(*Settings)

const defaultReportInterval = 5 * time.Minute

// ParseConf reads scheduler.conf (formats.md "scheduler.conf"). file is its name for
// errors, which are *config.Error. getenv looks up ${NAME} of commands.
func ParseConf(file string, text []byte, getenv func(string) (string, bool)) (*Conf, error) {
	p := confParser{
		file: file, getenv: getenv,
		conf: &Conf{ReportInterval: defaultReportInterval, cache: map[string]*Settings{}},
	}
	if err := p.parse(string(text)); err != nil {
		return nil, err
	}
	if len(p.conf.clauses) == 0 {
		return nil, &config.Error{File: file, Reason: "no clause: nothing could be delivered"}
	}
	return p.conf, nil
}

type confParser struct {
	file   string
	getenv func(string) (string, bool)
	conf   *Conf
	line   int // at hand, from 1
	open   int // clauses at the end that have no body yet
	inBody bool
}

func (p *confParser) bad(format string, args ...any) error {
	return &config.Error{File: p.file, Line: p.line, Reason: fmt.Sprintf(format, args...)}
}

func (p *confParser) parse(text string) error {
	joined := ""
	for line := range strings.Lines(text) {
		p.line++
		line = strings.TrimRight(line, "\r\n")
		if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return p.bad("a character that is no text")
		}
		// A backslash at the end goes on with the next line.
		if cut, ok := strings.CutSuffix(line, `\`); ok {
			joined += cut
			continue
		}
		if err := p.parseLine(joined + line); err != nil {
			return err
		}
		joined = ""
	}
	if joined != "" {
		return p.bad(`the last line ends in \`)
	}
	if p.open > 0 && !p.inBody {
		p.line = p.conf.clauses[len(p.conf.clauses)-1].line
		return p.bad("the last clause has no settings")
	}
	return nil
}

func (p *confParser) parseLine(line string) error {
	rest := strings.TrimLeft(line, " \t")
	if rest == "" || rest[0] == '#' {
		return nil
	}
	if param, ok := cutFold(rest, "PARAM"); ok {
		return p.parseParam(param)
	}
	if len(rest) == len(line) {
		end := strings.IndexAny(line, " \t#")
		if end < 0 {
			end = len(line)
		}
		if err := p.startClause(line[:end]); err != nil {
			return err
		}
		rest = line[end:]
	}
	if p.open == 0 && strings.TrimLeft(rest, " \t") != "" {
		return p.bad("settings before the first clause; a clause starts at column 1 with channel/host")
	}
	for {
		key, value, quoted, left, err := p.nextSetting(rest)
		if err != nil {
			return err
		}
		if key == "" {
			return nil
		}
		set, err := p.setting(strings.ToLower(key), value, quoted)
		if err != nil {
			return err
		}
		p.add(set, strings.EqualFold(key, "command"))
		p.noEffect(strings.ToLower(key))
		rest = left
	}
}

// noEffect notes a setting that does nothing yet, or never will.
func (p *confParser) noEffect(key string) {
	switch key {
	case "queueonly", "wakeuprestartonly", "user", "group", "nice", // to come
		"mailqsock", "authfile", // of the query socket, to come
		"skew", "priority", "syspriority", "sysnice", "expiryform", "deliveryform": // ZMailer's
		p.conf.NoEffect = append(p.conf.NoEffect, fmt.Sprintf("%s:%d: %s", p.file, p.line, key))
	}
}

// cutFold cuts a word in any case from the start of s.
func cutFold(s, word string) (string, bool) {
	if len(s) < len(word) || !strings.EqualFold(s[:len(word)], word) {
		return s, false
	}
	return s[len(word):], true
}

// startClause begins a clause. One before it without settings shares its body.
func (p *confParser) startClause(pattern string) error {
	channel, host, ok := strings.Cut(pattern, "/")
	if !ok {
		host = "*"
	}
	if channel == "" || host == "" {
		return p.bad("%s: a clause is channel/host", pattern)
	}
	if strings.ContainsRune(pattern, '=') {
		return p.bad("%s: settings stand on lines that begin with a blank", pattern)
	}
	for _, glob := range []string{channel, host} {
		if err := checkGlob(glob); err != nil {
			return p.bad("%s: %v", pattern, err)
		}
	}
	if p.open == 0 || p.inBody {
		p.open, p.inBody = 0, false
		if p.conf.bodies++; p.conf.bodies > 1<<16 {
			return p.bad("more than %d clauses", 1<<16)
		}
	}
	p.open++
	p.conf.clauses = append(p.conf.clauses, clause{
		name: pattern, channel: expandBraces(channel), host: expandBraces(strings.ToLower(host)),
		line: p.line, body: p.conf.bodies - 1})
	return nil
}

// add gives a setting to all clauses that share the body at hand.
func (p *confParser) add(set setting, command bool) {
	p.inBody = true
	list := p.conf.clauses[len(p.conf.clauses)-p.open:]
	for i := range list {
		list[i].sets = append(list[i].sets, set)
		list[i].last = list[i].last || command
	}
}

// nextSetting cuts one keyword or key=value from s; an empty key means that none is
// left.
func (p *confParser) nextSetting(s string) (key, value string, quoted bool, rest string, err error) {
	s = strings.TrimLeft(s, " \t")
	if s == "" || s[0] == '#' {
		return "", "", false, "", nil
	}
	end := strings.IndexAny(s, " \t=#\"")
	if end < 0 {
		end = len(s)
	}
	key, s = s[:end], s[end:]
	after := strings.TrimLeft(s, " \t")
	if !strings.HasPrefix(after, "=") {
		if key == "" || strings.HasPrefix(s, `"`) {
			return "", "", false, "", p.bad("%.40q is no key=value", key+s)
		}
		return key, "", false, s, nil
	}
	if key == "" {
		return "", "", false, "", p.bad("= without a key")
	}
	s = strings.TrimLeft(after[1:], " \t")
	if strings.HasPrefix(s, `"`) {
		value, rest, ok := unquote(s[1:])
		if !ok {
			return "", "", false, "", p.bad(`%s: no closing "`, key)
		}
		if rest != "" && !strings.ContainsAny(rest[:1], " \t#") {
			return "", "", false, "", p.bad(`%s: text after the closing "`, key)
		}
		return key, value, true, rest, nil
	}
	end = strings.IndexAny(s, " \t")
	if end < 0 {
		end = len(s)
	}
	if end == 0 || s[0] == '#' {
		return "", "", false, "", p.bad("%s= has no value", key)
	}
	return key, s[:end], true, s[end:], nil
}

// unquote reads up to the closing quote; a backslash takes the next character as it
// is.
func unquote(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:], true
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// parseParam reads what follows PARAM: name = value.
func (p *confParser) parseParam(s string) error {
	key, value, has, rest, err := p.nextSetting(s)
	if err != nil {
		return err
	}
	rest = strings.TrimLeft(rest, " \t")
	if key == "" || !has || rest != "" && rest[0] != '#' {
		return p.bad("want PARAM name = value")
	}
	p.noEffect(strings.ToLower(key))
	switch strings.ToLower(key) {
	case "mailqsock":
		p.conf.MailQSock = value
	case "authfile":
		p.conf.AuthFile = value
	case "global-report-interval":
		p.conf.ReportInterval, err = config.ParseDuration(value)
		if err != nil {
			return p.bad("PARAM %s=%s: %v", key, value, err)
		}
	case "deliveryreports":
		switch value {
		case "postman":
			p.conf.CopyUndeliverable = true
		case "drop":
			p.conf.CopyUndeliverable = false
		default:
			return p.bad("PARAM %s=%s: it must be drop or postman", key, value)
		}
	default:
		return p.bad("PARAM %s is not known; there are mailqsock, authfile, global-report-interval, deliveryreports", key)
	}
	return nil
}
