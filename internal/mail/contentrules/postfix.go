package contentrules

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// entry is a line of Postfix's regexp_table(5) and pcre_table(5), as header_checks(5) has it.
type entry struct {
	where  string
	re     *regexp.Regexp
	not    bool
	action action
	text   string
	// end: the line is an if; the entries before end are looked at only if it fits. 0: it is not.
	end int
}

// isTableLine reports whether a line is of Postfix's form.
func isTableLine(s string) bool {
	word, _ := cutBlank(s)
	switch {
	case word == "endif" || word == "if":
		return true
	case s[0] == '!':
		s = strings.TrimLeft(s[1:], " \t")
	}
	return s != "" && strings.IndexByte("/|%~=,;", s[0]) >= 0
}

// first returns the first entry that fits a text, and how its text is expanded.
func first(table []entry, text string) (*entry, func() string) {
	for i := 0; i < len(table); i++ {
		e := &table[i]
		m := e.re.FindStringSubmatchIndex(text)
		fits := (m != nil) != e.not
		switch {
		case e.end > 0 && !fits:
			i = e.end - 1
		case e.end == 0 && fits:
			return e, func() string {
				if m == nil {
					return e.text
				}
				return string(e.re.ExpandString(nil, e.text, text, m))
			}
		}
	}
	return nil, nil
}

func (e *entry) decision(expand func() string, where string) Decision {
	return Decision{Rule: e.where, Text: oneLine(expand()), Where: cut(where)}
}

// open marks an if without its endif while a table is read.
const open = -1

// tableLine adds a line to the table that the list ends with.
func (l *list) tableLine(at place, line logicalLine, where string) error {
	if n := len(l.steps); n == 0 || l.steps[n-1].table == nil {
		l.steps = append(l.steps, step{at: at})
	}
	s := &l.steps[len(l.steps)-1]
	text := line.text
	word, rest := cutBlank(text)
	switch word {
	case "endif":
		for i := len(s.table) - 1; i >= 0; i-- {
			if s.table[i].end == open {
				s.table[i].end = len(s.table)
				return nil
			}
		}
		if len(s.table) == 0 {
			l.steps = l.steps[:len(l.steps)-1]
		}
		return errors.New("endif without if")
	case "if":
		text = rest
	}
	e := entry{where: where}
	if rest, ok := strings.CutPrefix(text, "!"); ok {
		e.not, text = true, strings.TrimLeft(rest, " \t")
	}
	var err error
	if e.re, rest, err = postfixPattern(text); err != nil {
		return err
	}
	if word == "if" {
		if e.end = open; rest != "" {
			return fmt.Errorf("%.40q behind the pattern of if", rest)
		}
		s.table = append(s.table, e)
		return nil
	}
	if err := e.parseAction(at, rest); err != nil {
		return err
	}
	s.table = append(s.table, e)
	return nil
}

// endTable ends the table that the list ends with.
func (l *list) endTable() error {
	if n := len(l.steps); n > 0 {
		for i := range l.steps[n-1].table {
			if e := &l.steps[n-1].table[i]; e.end == open {
				return fmt.Errorf("the if of %s has no endif", e.where)
			}
		}
	}
	return nil
}

// postfixPattern reads "/expression/flags". Without flags upper and lower case are one, and a dot
// fits a line end, as in pcre_table(5); a flag switches.
func postfixPattern(s string) (*regexp.Regexp, string, error) {
	if s == "" || strings.IndexByte("/|%~=,;", s[0]) < 0 {
		return nil, "", fmt.Errorf("%.40q where a pattern must begin with /", s)
	}
	expression, rest, ok := cutExpression(s)
	if !ok {
		return nil, "", fmt.Errorf("pattern without %c at its end", s[0])
	}
	if s[0] != '/' {
		expression = strings.ReplaceAll(expression, `\`+s[:1], s[:1])
	}
	letters, rest := cutBlank(rest)
	on := map[rune]bool{'i': true, 's': true}
	for _, c := range letters {
		switch c {
		case 'i', 'm', 's', 'U':
			on[c] = !on[c]
		case 'A':
			expression = `\A(?:` + expression + ")"
		case 'E', 'x':
			return nil, "", fmt.Errorf("flag %c is not known here; i, m, s, U and A are", c)
		default:
			return nil, "", fmt.Errorf("%.40q behind the pattern; a flag of i, m, s, U and A, then a blank and the action are wanted", letters)
		}
	}
	flags := ""
	for _, c := range "imsU" {
		if on[c] {
			flags += string(c)
		}
	}
	if flags != "" {
		expression = "(?" + flags + ")" + expression
	}
	re, err := regexp.Compile(expression)
	if err != nil {
		return nil, "", fmt.Errorf("%w; patterns are RE2, without look-around and back-references", err)
	}
	return re, rest, nil
}

// postfixActions are those of header_checks(5).
var postfixActions = map[string]action{
	"REJECT": reject, "DISCARD": discard, "HOLD": hold, "REDIRECT": redirect, "BCC": copyTo, "FILTER": filter, "WARN": warn, "INFO": info,
	"DUNNO": dunno, "OK": dunno, "IGNORE": removeField, "STRIP": removeField, "PREPEND": prependField, "REPLACE": replaceLine,
}

// parenthesized is Postfix's $(1), which is ${1}.
var parenthesized = regexp.MustCompile(`\$\((\w+)\)`)

func (e *entry) parseAction(at place, text string) error {
	word, rest := cutBlank(text)
	var ok bool
	if e.action, ok = postfixActions[strings.ToUpper(word)]; !ok {
		return fmt.Errorf("%.40q where REJECT, DISCARD, HOLD, REDIRECT, BCC, FILTER, WARN, INFO, DUNNO, IGNORE, STRIP, PREPEND or REPLACE is wanted", word)
	}
	e.text = parenthesized.ReplaceAllString(rest, "$${$1}")
	if e.action == prependField || e.action == replaceLine {
		name, _, _ := strings.Cut(rest, ":")
		switch name = strings.TrimRight(name, " \t"); {
		case rest == "":
			return fmt.Errorf("%s without a text", word)
		case at == inBody:
		case at == inHeader && isTrace(name):
			return fmt.Errorf("%s is for mail systems to add: messages in a circle are known by it", name)
		case !strings.Contains(rest, ":") || !strings.Contains(name, "$") && !IsFieldName(name):
			return fmt.Errorf("%.80q is no field: want NAME: TEXT", rest)
		}
	}
	if e.not {
		e.text = strings.ReplaceAll(e.text, "$$", "$") // nothing is expanded where nothing was found
		if err := checkLine(e.text); err != nil {
			return err
		}
		return checkArgument(e.action, e.text)
	}
	if err := checkText(e.text, e.re); err != nil {
		return err
	}
	return checkArgument(e.action, e.text)
}
