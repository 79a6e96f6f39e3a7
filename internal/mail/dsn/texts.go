package dsn

import (
	"cmp"
	"embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
)

// Kinds of texts, in the order in which the worst comes first.
func Kinds() []string { return []string{"failed", "delayed", "delivered"} }

// kindOf returns the text that speaks of an action.
func kindOf(a Action) string {
	switch a {
	case Failed:
		return "failed"
	case Delayed:
		return "delayed"
	}
	return "delivered"
}

// DefaultLanguage has texts whatever is replaced.
const DefaultLanguage = "en"

//go:embed texts
var builtin embed.FS

// Texts are the human parts of reports, by language and kind: templates of
// text/template of which only a part is allowed (see check), so that none can run
// for long or fill the memory. The zero value has none; see BuiltIn.
type Texts struct {
	// Language is used if the message names none; "": DefaultLanguage.
	Language string

	texts map[string]*template.Template // by language/kind
}

// BuiltIn returns the texts in the program, English and German. They are the caller's own.
func BuiltIn() (*Texts, error) {
	t, err := parsedOnce()
	if err != nil {
		return nil, err
	}
	// Templates are never changed, only replaced.
	return &Texts{texts: maps.Clone(t.texts)}, nil
}

// parsedOnce parses the built-in texts at their first use: a report without texts of its
// own needs them each time.
var parsedOnce = sync.OnceValues(parseBuiltIn)

func parseBuiltIn() (*Texts, error) {
	t := &Texts{texts: map[string]*template.Template{}}
	for _, language := range []string{"de", DefaultLanguage} {
		for _, kind := range Kinds() {
			text, err := builtin.ReadFile(path.Join("texts", language, kind))
			if err != nil {
				return nil, fmt.Errorf("built-in text: %w", err)
			}
			if err := t.Replace(language, kind, string(text)); err != nil {
				return nil, fmt.Errorf("built-in text %s/%s: %w", language, kind, err)
			}
		}
	}
	return t, nil
}

// TextError is why a text cannot be used.
type TextError struct {
	Line   int // 0: the text as a whole
	Reason string
}

func (e *TextError) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return "line " + strconv.Itoa(e.Line) + ": " + e.Reason
}

// Replace sets one text. After an error, a *TextError, the old text stays.
func (t *Texts) Replace(language, kind, text string) error {
	if !slices.Contains(Kinds(), kind) {
		return &TextError{Reason: "there is no report of this kind; there are " + strings.Join(Kinds(), ", ")}
	}
	if !IsLanguage(language) {
		return &TextError{Reason: "this is no language tag like en, de or pt-br, in lower case"}
	}
	tmpl, err := parseText(text)
	if err != nil {
		return err
	}
	if t.texts == nil {
		t.texts = map[string]*template.Template{}
	}
	t.texts[language+"/"+kind] = tmpl
	return nil
}

// Has reports whether there is any text in a language.
func (t *Texts) Has(language string) bool {
	return slices.ContainsFunc(Kinds(), func(kind string) bool { return t.texts[language+"/"+kind] != nil })
}

// IsLanguage reports whether s is a language tag as directories are named: RFC 5646 in lower
// case.
func IsLanguage(s string) bool {
	if s == "" || len(s) > 35 {
		return false
	}
	for i, part := range strings.Split(s, "-") {
		if part == "" || len(part) > 8 || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			return false
		}
		if i == 0 && (len(part) < 2 || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz") != "") {
			return false
		}
	}
	return true
}

// Choose returns the language for the sender of a message with these fields: Accept-Language
// (RFC 3282 section 3) counts more than the language of the message
// (Content-Language, RFC 3282 §2). A tag without texts is cut at its end until there
// are some (RFC 4647 §3.4).
func (t *Texts) Choose(accept, content string) string {
	for _, list := range []string{accept, content} {
		for _, tag := range languages(list) {
			for tag != "" {
				if t.Has(tag) {
					return tag
				}
				cut := strings.LastIndexByte(tag, '-')
				tag = tag[:max(cut, 0)]
			}
		}
	}
	if t.Language != "" && t.Has(t.Language) {
		return t.Language
	}
	return DefaultLanguage
}

// languages returns the tags of a field's value, the most wanted first.
func languages(value string) []string {
	type weighted struct {
		tag    string
		weight float64
	}
	var list []weighted
	for part := range strings.SplitSeq(value, ",") {
		if len(list) == 32 {
			break // more are not needed
		}
		tag, param, _ := strings.Cut(part, ";")
		tag = strings.ToLower(strings.TrimSpace(tag))
		w := 1.0
		if q, ok := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(param), " ", ""), "q="); ok {
			if f, err := strconv.ParseFloat(q, 64); err == nil && f >= 0 && f <= 1 {
				w = f
			}
		}
		if IsLanguage(tag) && w > 0 {
			list = append(list, weighted{tag, w})
		}
	}
	slices.SortStableFunc(list, func(a, b weighted) int { return cmp.Compare(b.weight, a.weight) })
	tags := make([]string, len(list))
	for i := range list {
		tags[i] = list[i].tag
	}
	return tags
}

// find returns the template of a kind and the language that it is in: the one asked
// for, else that of the fallback.
func (t *Texts) find(language, kind string) (*template.Template, string) {
	for _, l := range []string{language, t.Language, DefaultLanguage} {
		if tmpl := t.texts[l+"/"+kind]; tmpl != nil {
			return tmpl, l
		}
	}
	return nil, ""
}
