package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Load reads the file. An empty path gives the embedded default configuration.
func Load(path string) (*Config, error) { return load(path, nil) }

// LoadFor reads a file for the postoffice in a directory, whatever POSTOFFICE the file has.
func LoadFor(path, postoffice string) (*Config, error) {
	return load(path, map[string]string{"POSTOFFICE": postoffice})
}

// load reads a file in which the given values hold, whatever it contains.
func load(path string, fixed map[string]string) (*Config, error) { return loadFrom(path, fixed, nil) }

// loadFrom is load with a text in the place of the file's; nil: the file's.
func loadFrom(path string, fixed map[string]string, text []byte) (*Config, error) {
	c := &Config{values: map[string]value{}}
	for name, text := range fixed {
		c.values[name] = value{text: text, file: "command line", fixed: true}
		if err := c.check(name); err != nil {
			return nil, err
		}
	}
	if path == "" {
		return c, c.parse("built-in zmailer.conf", string(Default("zmailer.conf")))
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, &Error{File: path, Reason: "the path cannot be made absolute", Err: err}
	}
	if text == nil {
		if text, err = os.ReadFile(abs); err != nil {
			// The path is in front already.
			if perr := (*os.PathError)(nil); errors.As(err, &perr) {
				err = perr.Err
			}
			return nil, &Error{File: abs, Reason: "cannot be read", Err: err}
		}
	}
	c.File, c.Dir, c.source = abs, filepath.Dir(abs), text
	return c, c.parse(abs, string(text))
}

func (c *Config) parse(file, text string) error {
	number := 0
	var errs []error
	for line := range strings.Lines(text) {
		number++
		if err := c.parseLine(file, number, line); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *Config) parseLine(file string, number int, line string) error {
	bad := func(format string, args ...any) error {
		return &Error{File: file, Line: number, Reason: fmt.Sprintf(format, args...)}
	}
	indented := line[0] == ' ' || line[0] == '\t'
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return nil
	}
	if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' }) {
		return bad("a character that is no text")
	}
	name, rest, ok := strings.Cut(line, "=")
	name = strings.TrimSpace(name)
	switch {
	case !ok && indented:
		return bad("not NAME=value; a value is on one line: write this behind the value of the line above")
	case !ok || name == "" || strings.ContainsAny(name, " \t"):
		return bad("not NAME=value")
	}
	if why, ok := retired[name]; ok {
		c.retired = append(c.retired, &Error{File: file, Line: number, Reason: name + " is ignored: " + why})
		return nil
	}
	if _, known := lookup(name); !known {
		return bad("%s", unknown(name))
	}
	text, err := c.unquote(strings.TrimSpace(rest))
	if err != nil {
		return bad("%s: %v", name, err)
	}
	before, set := c.values[name]
	if before.fixed {
		return nil
	}
	if set && !strings.Contains(rest, "${"+name+"}") {
		c.doubled = append(c.doubled, &Error{File: file, Line: number, Reason: fmt.Sprintf("%s is set in line %d, too, and this line counts", name, before.line), Remedy: "remove one of the two lines"})
	}
	c.values[name] = value{text: text, file: file, line: number}
	if err = c.check(name); err != nil {
		delete(c.values, name) // its default holds, for those who go on
	}
	return err
}

// check applies a variable's own rule to its value.
func (c *Config) check(name string) error {
	v, _ := lookup(name)
	text := c.values[name].text
	if v.check == nil || text == "" {
		return nil
	}
	if err := v.check(text); err != nil {
		return c.Invalid(name, "cannot be used", err)
	}
	return nil
}

// unquote reads a value: 'as it is', "with ${NAME}, \" and \\", or bare with
// ${NAME} up to a comment. $NAME without braces means nothing: the file is not run
// by a shell and sees no environment.
func (c *Config) unquote(s string) (string, error) {
	var out strings.Builder
	quote := byte(0)
	if s != "" && (s[0] == '"' || s[0] == '\'') {
		quote = s[0]
		s = s[1:]
	}
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case quote != 0 && b == quote:
			return out.String(), onlyComment(s[i+1:])
		case quote == 0 && b == '#' && (i == 0 || s[i-1] == ' ' || s[i-1] == '\t'):
			return strings.TrimRight(out.String(), " \t"), nil
		case quote == '"' && b == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\' || s[i+1] == '$'):
			i++
			out.WriteByte(s[i])
		case quote != '\'' && b == '$' && strings.HasPrefix(s[i:], "${"):
			name, _, ok := strings.Cut(s[i+2:], "}")
			if !ok {
				return "", errors.New("${ without }")
			}
			v, set := c.values[name]
			if !set {
				return "", fmt.Errorf("${%s} is not set above this line", name)
			}
			out.WriteString(v.text)
			i += len(name) + 2
		default:
			out.WriteByte(b)
		}
	}
	if quote != 0 {
		return "", fmt.Errorf("no closing %c on this line", quote)
	}
	return out.String(), nil
}

// onlyComment errs if something other than a comment follows a closed quote.
func onlyComment(s string) error {
	if t := strings.TrimLeft(s, " \t"); t != "" && (t == s || t[0] != '#') {
		return errors.New("text after the closing quote")
	}
	return nil
}

// quote writes a value so that unquote gives it back.
func quote(text string) string {
	plain := strings.ContainsFunc(text, func(r rune) bool {
		return strings.ContainsRune(" \t\"'\\#$", r)
	})
	if !plain && text != "" {
		return text
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(text) + `"`
}

// Changed returns the names of the settings whose values in c differ from those of another text
// of zmailer.conf, in the order of Variables. What the command line has set is left out.
func (c *Config) Changed(text []byte) []string {
	old := &Config{File: c.File, Dir: c.Dir, values: map[string]value{}}
	// An old text was right when it was kept; what is wrong now is reported elsewhere.
	_ = old.parse(c.File, string(text))
	return c.ChangedFrom(old)
}
