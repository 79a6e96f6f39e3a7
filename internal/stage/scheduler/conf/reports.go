package conf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/run/config"
)

// Reports are the PARAM lines for reports.
type Reports struct {
	// Language is for senders whose mail names none (report-language).
	Language string
	// Size is the largest message that a failure report returns whole if the sender gave no
	// RET (RFC 3461 section 4.3), FullSize with RET=FULL (report-size, report-full-size).
	// Bytes; 0: no limit.
	Size, FullSize int64
	// CopyTo gets a copy of each failure report; "": no copies (report-copies).
	CopyTo string
	// Texts are the templates; nil: the built-in ones.
	Texts *dsn.Texts
}

func defaultReports() Reports {
	return Reports{Language: dsn.DefaultLanguage, Size: 64 << 10, FullSize: 10 << 20}
}

// Limit returns the size of the largest message that is returned whole for a RET.
func (r *Reports) Limit(ret string) int64 {
	if strings.EqualFold(ret, "FULL") {
		return r.FullSize
	}
	return r.Size
}

// LoadTexts reads the words of reports: the built-in ones, and instead of them those
// in reports/LANGUAGE/KIND beside zmailer.conf. Its errors, *config.Error, name every
// text that cannot be used.
func (r *Reports) LoadTexts(c *config.Config) (errs []error) {
	texts, err := dsn.BuiltIn()
	if err != nil {
		return []error{err}
	}
	dir := c.Path("reports")
	if dir != "" {
		errs = readTexts(texts, dir)
	}
	if texts.Language = r.Language; len(errs) == 0 && !texts.Has(r.Language) {
		errs = append(errs, &config.Error{File: textDir(dir, r.Language), Reason: "named by PARAM report-language, has no texts"})
	}
	if len(errs) == 0 {
		r.Texts = texts
	}
	return errs
}

func textDir(dir, language string) string {
	if dir == "" {
		return "built-in reports/" + language
	}
	return filepath.Join(dir, language)
}

func readTexts(texts *dsn.Texts, dir string) (errs []error) {
	languages, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return []error{&config.Error{File: dir, Reason: "cannot be read", Err: err}}
	}
	for _, l := range languages {
		sub := filepath.Join(dir, l.Name())
		if ignored(l.Name()) {
			continue
		}
		files, err := os.ReadDir(sub)
		if err != nil {
			errs = append(errs, &config.Error{File: sub, Reason: "must be a directory LANGUAGE with the texts " + strings.Join(dsn.Kinds(), ", "), Err: err})
			continue
		}
		for _, f := range files {
			if ignored(f.Name()) {
				continue
			}
			if err := readText(texts, l.Name(), f.Name(), filepath.Join(sub, f.Name())); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

func readText(texts *dsn.Texts, language, kind, file string) error {
	if !slices.Contains(dsn.Kinds(), kind) {
		return &config.Error{File: file, Reason: "unknown report text; known are " + strings.Join(dsn.Kinds(), ", ")}
	}
	text, err := os.ReadFile(file)
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		return &config.Error{File: file, Reason: "cannot be read", Err: perr.Err}
	}
	if err := texts.Replace(language, kind, string(text)); err != nil {
		e := &config.Error{File: file, Reason: fmt.Sprint(err)}
		if t := (*dsn.TextError)(nil); errors.As(err, &t) {
			e.Line, e.Reason = t.Line, t.Reason
		}
		return e
	}
	return nil
}

// ignored reports whether a name is one that editors leave behind.
func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasSuffix(name, "~")
}
