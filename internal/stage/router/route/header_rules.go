package route

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/config"
)

// headerRules are what the file header-rules asks for, in its order (docs/headers.md).
type headerRules struct{ list []headerRule }

// headerRule is one of its lines.
type headerRule struct {
	who     mailFrom
	action  headerAction
	name    string         // lower case; of remove and replace a glob
	pattern *regexp.Regexp // nil: any value
	line    string         // add: the field with its newline
	text    []byte         // replace: with $1
}

// mailFrom is the origin of the mail that a rule concerns.
type mailFrom uint8

const (
	fromAll mailFrom = iota
	fromHere
	fromOutside
	fromUs // a report of this mail system: no rule concerns it
)

type headerAction uint8

const (
	addField headerAction = iota
	removeField
	replaceField
)

func (msg *message) origin() mailFrom {
	switch {
	case msg.external:
		return fromOutside
	case msg.trusted && msg.head.ErrorMsg:
		return fromUs
	}
	return fromHere
}

func openHeaderRules(c Config) (*config.File[*headerRules], error) {
	if c.Rules.Dir == "" {
		return nil, nil
	}
	return config.OpenFile(filepath.Join(c.Rules.Dir, "header-rules"), parseHeaderRules, config.FileOptions{Now: c.Now, Log: c.Log})
}

// rulesOfHeaders returns those that hold now; nil: none.
func (en *Engine) rulesOfHeaders() *headerRules {
	if en.headerRules == nil {
		return nil
	}
	return en.headerRules.Current()
}

// parseHeaderRules reads the file; its errors are *config.Error.
func parseHeaderRules(file string, text []byte) (*headerRules, error) {
	list := &headerRules{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		rule, err := parseHeaderRule(line)
		if err != nil {
			return nil, &config.Error{File: file, Line: n, Reason: err.Error()}
		}
		list.list = append(list.list, rule)
	}
	return list, nil
}

func parseHeaderRule(line string) (r headerRule, err error) {
	who, rest := cutBlank(line)
	action, rest := cutBlank(rest)
	name, rest := cutBlank(rest)
	switch who {
	case "all":
	case "local":
		r.who = fromHere
	case "external":
		r.who = fromOutside
	default:
		return r, fmt.Errorf("%.40q where local, external or all is wanted", who)
	}
	name = strings.TrimSuffix(name, ":")
	switch action {
	case "add":
		r.action = addField
		r.line, err = newField(name, rest)
	case "remove", "replace":
		r.name = strings.ToLower(name)
		if err := checkFieldGlob(r.name); err != nil {
			return r, err
		}
		if r.pattern, rest, err = cutPattern(rest); err != nil {
			return r, err
		}
		if action == "remove" {
			r.action = removeField
			if rest != "" {
				err = fmt.Errorf("%.40q behind the pattern: remove takes no text", rest)
			}
			break
		}
		r.action = replaceField
		if r.pattern == nil {
			return r, errors.New("replace wants a pattern: /.../ behind the field's name")
		}
		r.text, err = []byte(rest), checkText(rest, r.pattern)
	default:
		err = fmt.Errorf("%.40q where add, remove or replace is wanted", action)
	}
	return r, err
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
	if !isFieldName(name) {
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

// isTrace reports whether a field is one that no rule touches (RFC 5321 §4.4, §6.3).
func isTrace(name string) bool {
	return strings.EqualFold(name, "Received") || strings.EqualFold(name, "Return-Path")
}

func isFieldName(name string) bool {
	f := envelope.Fields([]byte(name + ": x\n"))
	return len(f) == 1 && f[0].Name == name && name != ""
}

func checkFieldGlob(glob string) error {
	if !isFieldName(glob) {
		return fmt.Errorf("%.80q is no field name", glob)
	}
	if _, err := path.Match(glob, ""); err != nil {
		return fmt.Errorf("%.80q: %w", glob, err)
	}
	if isTrace(glob) {
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
	end := 1
	for ; end < len(s) && s[end] != '/'; end++ {
		if s[end] == '\\' {
			end++
		}
	}
	if end >= len(s) {
		return nil, "", errors.New("pattern without / at its end")
	}
	flags, rest := cutBlank(s[end+1:])
	expression := s[1:end]
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

func (h *headerRules) concern(msg *message) bool {
	if h == nil {
		return false
	}
	from := msg.origin()
	for i := range h.list {
		if h.list[i].concerns(from) {
			return true
		}
	}
	return false
}

func (r *headerRule) concerns(from mailFrom) bool {
	return from != fromUs && (r.who == fromAll || r.who == from)
}

// apply appends a header block as the rules for such mail want it to b. What no rule
// concerns stays as it is, byte for byte.
func (h *headerRules) apply(b, block []byte, from mailFrom) []byte {
	fields := envelope.Fields(block)
	added := 0
	for i := range h.list {
		r := &h.list[i]
		if !r.concerns(from) {
			continue
		}
		if r.action == addField {
			f := envelope.Fields([]byte(r.line))
			fields = append(fields[:added:added], append(f, fields[added:]...)...)
			added++
			continue
		}
		kept, left := fields[:0], 0
		for j, f := range fields {
			raw, keep := r.change(f)
			if !keep {
				continue
			}
			if j < added {
				left++
			}
			f.Raw = raw
			kept = append(kept, f)
		}
		fields, added = kept, left
	}
	for _, f := range fields {
		b = append(b, f.Raw...)
	}
	return b
}

// change returns what a rule that removes or replaces makes of a field.
func (r *headerRule) change(f envelope.Field) (raw []byte, keep bool) {
	if f.Name == "" || isTrace(f.Name) {
		return f.Raw, true
	}
	if ok, err := path.Match(r.name, strings.ToLower(f.Name)); err != nil || !ok {
		return f.Raw, true
	}
	value := []byte(f.Value())
	if r.pattern != nil && !r.pattern.Match(value) {
		return f.Raw, true
	}
	if r.action == removeField {
		return nil, false
	}
	return appendField(nil, f.Name, r.pattern.ReplaceAll(value, r.text)), true
}

// appendField appends a field, folded before blanks where a line would pass foldAt; the
// blanks stay (RFC 5322 §2.2.3).
func appendField(b []byte, name string, value []byte) []byte {
	begin := len(b)
	b = append(append(b, name...), ':', ' ')
	for first := true; len(value) > 0; first = false {
		n := 0
		for n < len(value) && (value[n] == ' ' || value[n] == '\t') {
			n++
		}
		blanks := n
		for n < len(value) && value[n] != ' ' && value[n] != '\t' {
			n++
		}
		if !first && blanks > 0 && n > blanks && len(b)-begin+n > foldAt {
			b = append(b, '\n')
			begin = len(b)
		}
		b = append(b, value[:n]...)
		value = value[n:]
	}
	return append(b, '\n')
}
