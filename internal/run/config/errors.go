package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// Errors returns the errors that were joined, one for each thing that is wrong.
func Errors(err error) []error {
	if err == nil {
		return nil
	}
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	var texts []string
	for _, err := range list.Unwrap() {
		all, texts = append(all, Errors(err)...), append(texts, err.Error())
	}
	if strings.Join(texts, "\n") != err.Error() {
		return []error{err} // one error with several causes
	}
	return all
}

// Sort parts joined errors into those that make something unusable, and warnings.
func Sort(err error) (errs, warnings error) {
	var bad, odd []error
	for _, err := range Errors(err) {
		if e := (*Error)(nil); errors.As(err, &e) && e.Warning {
			odd = append(odd, err)
		} else {
			bad = append(bad, err)
		}
	}
	return errors.Join(bad...), errors.Join(odd...)
}

// mostMistakes is how many errors of one file are reported.
const mostMistakes = 100

// Mistakes collects the errors and warnings about the lines of one file. The zero value is
// ready for use.
type Mistakes struct {
	errs []error
	full bool
}

// Add keeps an error. It reports whether there are so many that the rest of the file need
// not be read.
func (m *Mistakes) Add(err error) (enough bool) {
	m.errs = append(m.errs, Errors(err)...)
	m.full = m.full || len(m.errs) >= mostMistakes
	return m.full
}

// Err returns all of them, joined; nil if there is none.
func (m *Mistakes) Err() error { return errors.Join(m.errs...) }

// Usable reports whether there are no errors, only warnings.
func (m *Mistakes) Usable() bool {
	errs, _ := Sort(m.Err())
	return errs == nil
}

// Duplicate returns the warning that a key is in an earlier line: the earlier one counts, as
// with Postfix's tables.
func Duplicate(file string, line int, key string, first int) error {
	return &Error{File: file, Line: line, Warning: true, Reason: fmt.Sprintf("%s is in line %d already, which counts", key, first), Remedy: "remove one of the two lines"}
}

// Reader takes the settings of a stage one after the other and keeps every error, so that
// an operator sees all of them at once. Its Int, Bool, Duration and Size return the default
// where the value is wrong.
type Reader struct {
	*Config
	errs []error
}

// NewReader returns a Reader of these settings.
func NewReader(c *Config) *Reader { return &Reader{Config: c} }

// Err returns all errors, joined; each one is an *Error.
func (r *Reader) Err() error { return errors.Join(r.errs...) }

// Add keeps an error that names its place already.
func (r *Reader) Add(err error) {
	if err != nil {
		r.errs = append(r.errs, Errors(err)...)
	}
}

// Use keeps an error about the value of a setting. One about a line of another file stays as
// it is; any other one gets the line of the setting.
func (r *Reader) Use(name string, err error) {
	for _, err := range Errors(err) {
		r.errs = append(r.errs, r.At(name, err))
	}
}

// At returns an error about what a setting names, with the line of that setting unless it
// has the line of another file.
func (c *Config) At(name string, err error) error {
	bad := (*Error)(nil)
	if errors.As(err, &bad) && (bad.Line > 0 || filepath.IsAbs(bad.File) && c.values[name].text == "") {
		return err
	}
	if bad == nil {
		return c.Invalid(name, "cannot be used", err)
	}
	inner := *bad
	inner.Remedy = ""
	e := c.Invalid(name, "cannot be used", &inner)
	e.Remedy = bad.Remedy
	return e
}

func take[T any](r *Reader, read func(string, T) (T, error), name string, def T) T {
	v, err := read(name, def)
	r.Add(err)
	return v
}

// Int is Config.Int.
func (r *Reader) Int(name string, def int) int { return take(r, r.Config.Int, name, def) }

// Bool is Config.Bool.
func (r *Reader) Bool(name string, def bool) bool { return take(r, r.Config.Bool, name, def) }

// Duration is Config.Duration.
func (r *Reader) Duration(name string, def time.Duration) time.Duration {
	return take(r, r.Config.Duration, name, def)
}

// Size is Config.Size.
func (r *Reader) Size(name string, def int64) int64 { return take(r, r.Config.Size, name, def) }

// Hostname is Config.Hostname.
func (r *Reader) Hostname() string {
	name, err := r.Config.Hostname()
	r.Add(err)
	return name
}

// Metrics is Config.Metrics.
func (r *Reader) Metrics(program string) string {
	place, err := r.Config.Metrics(program)
	r.Add(err)
	return place
}

// Locate adds the line of zmailer.conf to errors about a file or source that a setting names,
// or about a setting itself, so that each error shows an operator a line to correct.
func (c *Config) Locate(err error) error {
	var all []error
	for _, err := range Errors(err) {
		all = append(all, c.locate(err))
	}
	return errors.Join(all...)
}

func (c *Config) locate(err error) error {
	bad := (*Error)(nil)
	if !errors.As(err, &bad) || bad.Line > 0 {
		return err
	}
	if user := c.String("DAEMONUSER", ""); user != "" && bad.Remedy == "" && errors.Is(err, fs.ErrPermission) {
		with := *bad
		with.Remedy = "let DAEMONUSER=" + user + " read it, for example by its group and mode 0640 (docs/privileges.md)"
		bad, err = &with, &with
	}
	if _, known := lookup(bad.File); known {
		e := c.Invalid(bad.File, bad.Reason, bad.Err)
		e.Remedy, e.Warning = bad.Remedy, bad.Warning
		return e
	}
	name, found := c.naming(bad.File)
	if !found {
		return err
	}
	e := c.Invalid(name, "cannot be used", &Error{File: bad.File, Reason: bad.Reason, Err: bad.Err})
	e.Remedy, e.Warning = bad.Remedy, bad.Warning
	return e
}

// naming returns the first setting in the file whose value names a file or a source.
func (c *Config) naming(file string) (name string, found bool) {
	for n, v := range c.values {
		if v.line == 0 || !c.names(v.text, file) {
			continue
		}
		if !found || v.line < c.values[name].line {
			name, found = n, true
		}
	}
	return name, found
}

// names reports whether a value has a word for a file, which may begin with a scheme as those
// of tables do, or be a path that begins beside zmailer.conf.
func (c *Config) names(text, file string) bool {
	if file == "" {
		return false
	}
	for _, word := range append(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t,'\"", r) }), text) {
		_, rest, _ := strings.Cut(word, ":")
		for _, w := range []string{word, rest} {
			if w != "" && (w == file || c.Path(w) == file) {
				return true
			}
		}
	}
	return false
}
