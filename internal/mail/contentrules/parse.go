package contentrules

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// parseFile reads a file; its errors are *config.Error.
func parseFile(at place, file string, text []byte) (*list, error) {
	l := &list{}
	var wrong config.Mistakes
	for _, line := range logicalLines(string(text)) {
		where := path.Base(file) + ":" + strconv.Itoa(line.number)
		err := error(nil)
		if isTableLine(line.text) {
			err = l.tableLine(at, line, where)
		} else {
			var s step
			if s, err = parseRule(at, line.text); err == nil {
				s.rule.where = where
				err = l.endTable()
				l.steps = append(l.steps, s)
			}
		}
		if err != nil && wrong.Add(&config.Error{File: file, Line: line.number, Reason: err.Error()}) {
			break
		}
	}
	if err := l.endTable(); err != nil {
		wrong.Add(&config.Error{File: file, Line: strings.Count(string(text), "\n"), Reason: err.Error()})
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	l.plain = !slices.ContainsFunc(l.steps, func(s step) bool { return s.table != nil || s.at != at })
	return l, nil
}

// logicalLine is a line with those that begin with a blank behind it, without comments.
type logicalLine struct {
	number int
	text   string
}

func logicalLines(text string) (lines []logicalLine) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#':
		case (line[0] == ' ' || line[0] == '\t') && len(lines) > 0 && isTableLine(lines[len(lines)-1].text):
			lines[len(lines)-1].text += " " + trimmed // as Postfix has it
		default:
			lines = append(lines, logicalLine{n, trimmed})
		}
	}
	return lines
}

// decisions are the actions of our own form beside add, remove and replace.
var decisions = map[string]action{
	"reject": reject, "discard": discard, "hold": hold, "redirect": redirect, "bcc": copyTo, "filter": filter, "warn": warn, "info": info,
}

func parseRule(at place, line string) (s step, err error) {
	r := &Rule{}
	s = step{at: at, rule: r}
	who, rest := cutBlank(line)
	verb, rest := cutBlank(rest)
	name, rest := cutBlank(rest)
	switch who {
	case "all":
	case "local":
		r.who = Local
	case "external":
		r.who = External
	case "submitted":
		r.who = Submitted
	default:
		return s, fmt.Errorf("%.40q where local, external, submitted or all is wanted", who)
	}
	for prefix, p := range map[string]place{"mime:": inPart, "nested:": inNested} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && at == inHeader {
			s.at, name = p, rest
		}
	}
	name = strings.TrimSuffix(name, ":")
	if name == "body" && at == inHeader {
		s.at = inBody
	}
	var known bool
	if r.action, known = decisions[verb]; known {
		return s, r.parseDecision(s.at, name, rest)
	}
	switch verb {
	case "add":
		if s.at != inHeader {
			return s, errors.New("add is for the message's own header; PREPEND in a line of Postfix's form adds fields to parts, and lines")
		}
		r.action = addField
		r.line, err = newField(name, rest)
	case "remove", "replace":
		r.name = strings.ToLower(name)
		if s.at != inBody {
			if err := checkFieldGlob(r.name, s.at == inHeader); err != nil {
				return s, err
			}
		}
		if r.pattern, rest, err = cutPattern(rest); err != nil {
			return s, err
		}
		if s.at == inBody && r.pattern == nil {
			return s, errBodyPattern
		}
		if verb == "remove" {
			r.action = removeField
			if rest != "" {
				err = fmt.Errorf("%.40q behind the pattern: remove takes no text", rest)
			}
			break
		}
		r.action = replaceField
		if r.pattern == nil {
			return s, errors.New("replace wants a pattern: /.../ behind the field's name")
		}
		r.text, err = []byte(rest), checkText(rest, r.pattern)
	default:
		err = fmt.Errorf("%.40q where add, remove, replace, reject, discard, hold, redirect, bcc, filter, warn or info is wanted", verb)
	}
	return s, err
}

var errBodyPattern = errors.New("a rule about the body wants a pattern: /.../ behind \"body\"")

// parseDecision reads "FIELD [/PATTERN/] [TEXT]".
func (r *Rule) parseDecision(at place, name, rest string) (err error) {
	if r.name = strings.ToLower(name); at != inBody {
		if err := checkFieldGlob(r.name, false); err != nil {
			return err
		}
	}
	if strings.HasPrefix(rest, "/") {
		if r.pattern, rest, err = cutPattern(rest); err != nil {
			return err
		}
	}
	if at == inBody && r.pattern == nil {
		return errBodyPattern
	}
	r.text = []byte(rest)
	if r.pattern != nil {
		err = checkText(rest, r.pattern)
	} else {
		err = checkLine(rest)
	}
	if err == nil {
		err = checkArgument(r.action, rest)
	}
	return err
}

// checkArgument checks what an action wants as its text.
func checkArgument(a action, text string) error {
	switch a {
	case redirect, copyTo:
		if strings.Contains(text, "$") {
			return errors.New("the address must be written out: an address from a message would be its sender's choice")
		}
		m, err := address.Parse(text)
		if err != nil || m.IsNull() || m.Domain == "" {
			return fmt.Errorf("%.80q is no address, like user@example.org", text)
		}
	case filter:
		channel, host := Route(text)
		for _, own := range []string{"local", "file", "pipe", "error", "bitbucket"} {
			if channel == own {
				return fmt.Errorf("channel %s is not for rules", channel)
			}
		}
		if channel == "" || strings.Trim(channel, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || !strings.ContainsAny(text, "!:") || strings.ContainsAny(text, " \t$") {
			return fmt.Errorf("%.80q is no CHANNEL!HOST, like smtp![127.0.0.1]:10025", text)
		}
		kind, _, _ := strings.Cut(channel, "-")
		if host = strings.TrimPrefix(host, "inet:"); host != "" && (strings.HasPrefix(kind, "smtp") || kind == "relay" || kind == "lmtp") {
			return address.CheckNextHop(host)
		}
	}
	return nil
}

// Route parts "CHANNEL!HOST", or "CHANNEL:HOST" as Postfix writes it.
func Route(text string) (channel, host string) {
	i := strings.IndexAny(text, "!:")
	if i < 0 {
		return "", ""
	}
	return text[:i], text[i+1:]
}

func cutBlank(s string) (word, rest string) {
	i := strings.IndexAny(s, " \t")
	if i < 0 {
		return s, ""
	}
	return s[:i], strings.TrimLeft(s[i:], " \t")
}

// newField returns the line that add puts on.
func newField(name, value string) (string, error) {
	if !IsFieldName(name) {
		return "", fmt.Errorf("%.80q is no field name", name)
	}
	if isTrace(name) {
		return "", fmt.Errorf("%s is for mail systems to add: messages in a circle are known by it", name)
	}
	if value == "" {
		return "", fmt.Errorf("no text behind %s", name)
	}
	if err := checkLine(value); err != nil {
		return "", err
	}
	return string(appendField(nil, name, []byte(value))), nil
}

func checkFieldGlob(glob string, edits bool) error {
	if !IsFieldName(glob) {
		return fmt.Errorf("%.80q is no field name", glob)
	}
	if _, err := path.Match(glob, ""); err != nil {
		return fmt.Errorf("%.80q: %w", glob, err)
	}
	if edits && isTrace(glob) {
		return fmt.Errorf("%s cannot be changed: messages in a circle are known by it", glob)
	}
	return nil
}

// cutPattern reads "/expression/" or "/expression/i"; a slash inside is written \/.
func cutPattern(s string) (*regexp.Regexp, string, error) {
	if s == "" {
		return nil, "", nil
	}
	if s[0] != '/' {
		return nil, "", fmt.Errorf("%.40q where a pattern must begin with /", s)
	}
	expression, rest, ok := cutExpression(s)
	if !ok {
		return nil, "", errors.New("pattern without / at its end")
	}
	flags, rest := cutBlank(rest)
	switch flags {
	case "":
	case "i":
		expression = "(?i)" + expression
	default:
		return nil, "", fmt.Errorf("%.40q behind the pattern; only i, for any case, is known", flags)
	}
	re, err := regexp.Compile(expression)
	if err != nil {
		return nil, "", err
	}
	return re, rest, nil
}

// cutExpression parts a text that begins with a delimiter at the next one.
func cutExpression(s string) (expression, rest string, ok bool) {
	end := 1
	for ; end < len(s) && s[end] != s[0]; end++ {
		if s[end] == '\\' {
			end++
		}
	}
	if end >= len(s) {
		return "", "", false
	}
	return s[1:end], s[end+1:], true
}

// reference is what regexp's Expand takes for one.
var reference = regexp.MustCompile(`\$(?:\$|(\w+)|\{(\w+)\})`)

// checkText checks a replacement: its references must be groups of the pattern.
func checkText(text string, re *regexp.Regexp) error {
	for _, m := range reference.FindAllStringSubmatch(text, -1) {
		name := m[1] + m[2]
		if name == "" {
			continue
		}
		if n, err := strconv.Atoi(name); err == nil && n <= re.NumSubexp() || re.SubexpIndex(name) >= 0 {
			continue
		}
		return fmt.Errorf("%s: the pattern has no such group; a dollar sign is written $$, a letter behind a group needs ${1}", m[0])
	}
	return checkLine(text)
}

// checkLine keeps a text on its line.
func checkLine(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("text that is not UTF-8")
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }); i >= 0 {
		return fmt.Errorf("control character 0x%02x in the text", text[i])
	}
	return nil
}
