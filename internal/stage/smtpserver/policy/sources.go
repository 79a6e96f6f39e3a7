package policy

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"zmailer/internal/run/config"
	"zmailer/internal/table"
)

// source is one of the sources in LOCALNAMES or SENDERLOGIN.
type source interface {
	lookup(ctx context.Context, key string) (words []string, ok bool, err error)
}

// sources are asked in their order; the first one that has a key answers.
type sources []source

func (s sources) lookup(ctx context.Context, key string) ([]string, bool, error) {
	for _, one := range s {
		if words, ok, err := one.lookup(ctx, key); ok || err != nil {
			return words, ok, err
		}
	}
	return nil, false, nil
}

func (s sources) close() (err error) {
	for _, one := range s {
		if t, ok := one.(asked); ok {
			err = errors.Join(err, t.Close())
		}
	}
	return err
}

// words are the lines of a file: what follows each key.
type words map[string][]string

func (w words) lookup(_ context.Context, key string) ([]string, bool, error) {
	list, ok := w[key]
	return list, ok, nil
}

// parseWordLines reads lines of a key and words; key returns the first word as it is looked up.
func parseWordLines(name string, text []byte, key func(fields []string) (string, error)) (words, error) {
	all := words{}
	number, where := 0, map[string]int{}
	var wrong config.Mistakes
	for line := range bytes.Lines(text) {
		number++
		content, _, _ := strings.Cut(string(line), "#")
		f := splitWords(strings.TrimSpace(content))
		if len(f) == 0 {
			continue
		}
		k, err := key(f)
		switch first, twice := where[k]; {
		case err != nil:
			err = &config.Error{File: name, Line: number, Reason: err.Error()}
		case twice:
			err = config.Duplicate(name, number, f[0], first)
		default:
			all[k], where[k] = f[1:], number
		}
		if err != nil && wrong.Add(err) {
			break
		}
	}
	return all, wrong.Err()
}

// file is a text file that is read again when it changes.
type file struct{ *config.File[words] }

func (f file) lookup(ctx context.Context, key string) ([]string, bool, error) {
	return f.Current().lookup(ctx, key)
}

// asked is a table that is asked for each key.
type asked struct{ table.Table }

func (t asked) lookup(ctx context.Context, key string) ([]string, bool, error) {
	v, ok, err := t.Lookup(ctx, key)
	return splitWords(v.Text), ok, err
}

func splitWords(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}

// openSources opens the sources of a setting; parse reads those that are text files.
func openSources(names []string, o table.Options, parse func(name string, text []byte) (words, error), required bool) (list sources, err error) {
	var errs []error
	defer func() {
		if err = errors.Join(errs...); err != nil {
			err = errors.Join(err, list.close())
			list = nil
		}
	}()
	for _, name := range names {
		s, err := table.Parse(name, o.Dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if s.Scheme == "file" {
			f, err := config.OpenFile(s.Rest, parse, config.FileOptions{Required: required, Keeper: o.Keeper, Log: o.Log})
			if err != nil {
				errs = append(errs, err)
				continue
			}
			list = append(list, file{f})
			continue
		}
		t, err := table.Open(name, o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, asked{t})
	}
	return list, nil
}
