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
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/run/config"
)

// Schemes returns the kinds of sources that the program lookup asks.
func Schemes() []string { return []string{"sqlite", "ldap", "pgsql", "mysql", "redis", "http"} }

// Open opens a file of settings, or of a password that one names, for reading; nil: as this process
// may (keys.Client.Secret opens those that root alone can read).
type Open func(path string) (*os.File, error)

// Check reads the file of such a source.
func Check(open Open, scheme, path string) error {
	var err error
	switch scheme {
	case "sqlite":
		_, err = ReadSQLite(open, path)
	case "ldap":
		_, err = ReadLDAP(open, path)
	case "pgsql", "mysql":
		_, err = ReadSQL(open, scheme, path)
	case "redis":
		_, err = ReadRedis(open, path)
	case "http":
		_, err = ReadHTTP(open, path)
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
	open   Open
	values map[string]setting
	errs   []error
}

// read reads a file whose names must be among those known.
func read(open Open, path string, known ...string) (*file, error) {
	content, err := readAll(open, path)
	if perr := (*os.PathError)(nil); errors.As(err, &perr) {
		err = perr.Err
	}
	if err != nil {
		return nil, &config.Error{File: path, Reason: "cannot be read", Err: err}
	}
	f := &file{path: path, open: open, values: map[string]setting{}}
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

// most bounds a file. Bytes.
const most = 16 << 20

func readAll(open Open, path string) ([]byte, error) {
	if open == nil {
		open = func(path string) (*os.File, error) { return os.Open(path) }
	}
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
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
