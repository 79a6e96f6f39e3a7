// Package settings reads the files that sqlite: and ldap: sources name: NAME = value, one
// a line, a line that begins with a blank going on the one above, # before comments.
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

// Check reads the file of a sqlite: or ldap: source.
func Check(scheme, path string) error {
	switch scheme {
	case "sqlite":
		_, err := ReadSQLite(path)
		return err
	case "ldap":
		_, err := ReadLDAP(path)
		return err
	}
	return &config.Error{File: path, Reason: fmt.Sprintf("%q is served by no program of ours: want sqlite or ldap", scheme)}
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
