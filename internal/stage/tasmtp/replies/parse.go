package replies

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"zmailer/internal/run/config"
	"zmailer/internal/run/glob"
)

// maxExpr bounds a regular expression, and maxRules the table: every reply that is no
// success is held against all of them.
const (
	maxExpr  = 1000
	maxRules = 1000
)

// Parse reads a table. file is its name for errors; all invalid lines are
// reported at once.
func Parse(file string, text []byte) (*Table, error) {
	t := &Table{}
	var errs []error
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		bare := strings.TrimLeft(line, " \t")
		if bare == "" || bare[0] == '#' {
			continue
		}
		p := parser{line: line, rest: line, rule: Rule{File: file, Line: number, text: strings.TrimSpace(line)}}
		if err := p.parse(); err != nil {
			errs = append(errs, &config.Error{File: file, Line: number, Column: p.column(), Reason: err.Error()})
			continue
		}
		if t.rules = append(t.rules, p.rule); len(t.rules) > maxRules {
			errs = append(errs, &config.Error{File: file, Line: number, Reason: fmt.Sprintf("more than %d rules", maxRules)})
			break
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return t, nil
}

// parser reads one line; rest is the unread part, and the place of an error.
type parser struct {
	line, rest string
	rule       Rule
}

func (p *parser) column() int {
	return utf8.RuneCountInString(p.line[:len(p.line)-len(p.rest)]) + 1
}

// blanks drops those before the next word.
func (p *parser) blanks() { p.rest = strings.TrimLeft(p.rest, " \t") }

// word returns the next one; it is not dropped.
func (p *parser) word() string {
	p.blanks()
	if i := strings.IndexAny(p.rest, " \t"); i >= 0 {
		return p.rest[:i]
	}
	return p.rest
}

func (p *parser) parse() error {
	pattern := p.word()
	if !utf8.ValidString(p.line) {
		return errors.New("a character that is no text")
	}
	channel, host, ok := strings.Cut(pattern, "/")
	if !ok || channel == "" || host == "" {
		return fmt.Errorf("%s: a rule begins with channel/host, like smtp/*.example.com", pattern)
	}
	p.rule.channel, p.rule.host = glob.Simple(channel), glob.Simple(strings.ToLower(host))
	p.rest = p.rest[len(pattern):]
	if err := p.parseAction(); err != nil {
		return err
	}
	return p.parseExpr()
}

func (p *parser) parseAction() error {
	word := p.word()
	switch strings.ToLower(word) {
	case "defer":
		p.rule.Action = Defer
	case "fail":
		p.rule.Action = Fail
	case "slow":
		p.rule.Action = Slow
	case "source":
		p.rule.Action = Source
	case "host":
		p.rule.Action = Host
	default:
		return fmt.Errorf("%q is no action; there are defer, fail, slow TIME, source and host", word)
	}
	p.rest = p.rest[len(word):]
	if p.rule.Action != Slow {
		return nil
	}
	word = p.word()
	d, err := config.ParseDuration(word)
	if err != nil || d < time.Second || d > 30*24*time.Hour {
		return fmt.Errorf("slow %s: how long the host is left alone, from 1s to 30d, like 10m", word)
	}
	p.rule.Wait = d
	p.rest = p.rest[len(word):]
	return nil
}

// parseExpr reads /REGEX/ or /REGEX/i up to the end of the line.
func (p *parser) parseExpr() error {
	p.blanks()
	text := strings.TrimRight(p.rest, " \t")
	flags := ""
	if rest, ok := strings.CutSuffix(text, "/i"); ok && len(rest) > 0 {
		text, flags = rest+"/", "(?i)"
	}
	if len(text) < 3 || text[0] != '/' || text[len(text)-1] != '/' {
		return errors.New("the rule ends with a regular expression between slashes, /.../ or /.../i")
	}
	if len(text) > maxExpr {
		return fmt.Errorf("the regular expression is longer than %d bytes", maxExpr)
	}
	expr, err := regexp.Compile(flags + text[1:len(text)-1])
	if err != nil {
		return err
	}
	p.rule.expr = expr
	return nil
}
