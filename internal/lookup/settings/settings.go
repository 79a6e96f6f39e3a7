// Package settings reads the files that sources name which the program lookup asks, such
// as sqlite: and ldap:. They have NAME = value, one a line, a line that begins with a blank
// going on the one above, # before comments.
//
// It owns nothing and only reads.
//
// Diagnostics: errors are *config.Error and name file, line and what to write instead.
package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/run/config"
)

// Schemes returns the kinds of sources that the program lookup asks.
func Schemes() []string { return []string{"sqlite", "ldap", "pgsql", "mysql", "redis", "http"} }

// Check reads the file of such a source.
func Check(scheme, path string) error {
	var err error
	switch scheme {
	case "sqlite":
		_, err = ReadSQLite(path)
	case "ldap":
		_, err = ReadLDAP(path)
	case "pgsql", "mysql":
		_, err = ReadSQL(scheme, path)
	case "redis":
		_, err = ReadRedis(path)
	case "http":
		_, err = ReadHTTP(path)
	default:
		err = &config.Error{File: path, Reason: fmt.Sprintf("the program lookup does not know %q: want one of %s", scheme, strings.Join(Schemes(), ", "))}
	}
	return err
}

type setting struct {
	text string
	line int
}

type file struct {
	path   string
	values map[string]setting
	errs   []error
}

// read reads a file whose names must be among those known.
func read(path string, known ...string) (*file, error) {
	content, err := os.ReadFile(path)
	if perr := (*os.PathError)(nil); errors.As(err, &perr) {
		return nil, &config.Error{File: path, Reason: "cannot be read", Err: perr.Err}
	}
	f := &file{path: path, values: map[string]setting{}}
	last, number := "", 0
	for line := range strings.Lines(string(content)) {
		number++
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			if last == "" {
				f.bad(number, "begins with a blank, but there is no setting that it could continue")
				continue
			}
			s := f.values[last]
			s.text = strings.TrimSpace(s.text + " " + trimmed)
			f.values[last] = s
			continue
		}
		name, text, ok := strings.Cut(trimmed, "=")
		name = strings.TrimSpace(name)
		switch before, twice := f.values[name]; {
		case !ok:
			f.bad(number, "not NAME = value")
		case !slices.Contains(known, name):
			f.bad(number, fmt.Sprintf("%s is no setting here; there are %s", name, strings.Join(known, ", ")))
		case twice:
			f.bad(number, fmt.Sprintf("%s is in line %d already", name, before.line))
		default:
			f.values[name] = setting{strings.TrimSpace(text), number}
			last = name
		}
	}
	return f, nil
}

func (f *file) bad(line int, reason string) {
	f.errs = append(f.errs, &config.Error{File: f.path, Line: line, Reason: reason})
}

func (f *file) err() error {
	if len(f.errs) == 0 {
		return nil
	}
	return f.errs[0]
}

// get returns a value; "" if it is not set.
func (f *file) get(name string) string { return f.values[name].text }

// need returns a value that must be set.
func (f *file) need(name, meaning string) string {
	s := f.values[name]
	if s.text == "" {
		f.bad(s.line, fmt.Sprintf("%s is not set: %s", name, meaning))
	}
	return s.text
}

// path gives a path, which starts at the directory of the file.
func (f *file) abs(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(f.path), path)
}

// word returns one of some words, the first if none is set.
func (f *file) word(name string, words ...string) string {
	s, ok := f.values[name]
	if !ok || s.text == "" {
		return words[0]
	}
	if !slices.Contains(words, s.text) {
		f.bad(s.line, fmt.Sprintf("%s = %s: want one of %s", name, s.text, strings.Join(words, ", ")))
	}
	return s.text
}

// number gives a number from 1 up.
func (f *file) number(name string, otherwise int) int {
	s, ok := f.values[name]
	if !ok || s.text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s.text)
	if err != nil || n < 1 {
		f.bad(s.line, fmt.Sprintf("%s = %s: want a number above 0", name, s.text))
	}
	return n
}

// checkPlaces checks where a setting has the key.
func (f *file) checkPlaces(name, text string) {
	line := f.values[name].line
	found := false
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			continue
		}
		i++
		switch {
		case i == len(text) || !strings.ContainsRune("sud%", rune(text[i])):
			f.bad(line, name+": want %s, %u, %d, or %% for a percent sign, behind each %")
			return
		case text[i] != '%':
			found = true
		}
	}
	if !found {
		f.bad(line, name+" has none of %s, %u and %d: it would answer the same for every key")
	}
}

// fill puts a key into the places of a text: %s all of it, %u the part before its last
// @ and %d the part behind it. escape makes text harmless.
func fill(text, key string, escape func(string) string) string {
	user, domain := Parts(key)
	return strings.NewReplacer("%%", "%", "%s", escape(key), "%u", escape(user), "%d", escape(domain)).Replace(text)
}

// Parts returns what is before and behind the last @ of a key; one without is all user.
func Parts(key string) (user, domain string) {
	if at := strings.LastIndexByte(key, '@'); at >= 0 {
		return key[:at], key[at+1:]
	}
	return key, ""
}
