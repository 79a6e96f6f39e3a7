package docs

import (
	"os"
	"regexp"
	"slices"
	"strings"
)

// found is what a command of a page has printed otherwise than the page says.
type found struct {
	line int // of the command
	text string
	want string
	got  string
}

// note takes the output of a step as it is to stand in the page: with the page's values in
// the place of the run's, of which those are taken that correspond in order.
func (r *run) note(s step, out string) {
	got := squeezeEnd(r.plain(out))
	for _, shape := range []string{`\bS\d+A[0-9A-Za-z]{6,}`, `\b\d{8}-\d{6}-[a-z]+-\d+`, `\b\d{7,}\b`} {
		want, have := distinct(shape, s.want), distinct(shape, got)
		for i := range min(len(want), len(have)) {
			if _, known := r.match.values[want[i]]; !known {
				r.match.take(want[i], have[i])
			}
		}
	}
	for page, real := range r.match.values {
		got = regexp.MustCompile(`\b`+regexp.QuoteMeta(real)+`\b`).ReplaceAllLiteralString(got, page)
	}
	got = regexp.MustCompile(`\b`+regexp.QuoteMeta(r.me.Username)+`\b`).ReplaceAllLiteralString(got, login)
	r.new = append(r.new, found{line: s.line, text: s.text, want: s.want, got: got})
}

func distinct(shape, text string) []string {
	var list []string
	for _, v := range regexp.MustCompile(shape).FindAllString(text, -1) {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

func squeezeEnd(s string) string {
	var list []string
	for line := range strings.Lines(s) {
		list = append(list, strings.TrimRight(line, " \t\n"))
	}
	return strings.TrimRight(strings.Join(list, "\n"), "\n")
}

// rewrite puts what was found into a page's file.
func rewrite(file string, list []found) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	slices.SortFunc(list, func(a, b found) int { return b.line - a.line }) // from the end, so that numbers stay
	for _, f := range list {
		first := f.line - 1 + strings.Count(f.text, "\n") + 1
		last := first
		if f.want != "" {
			last += strings.Count(f.want, "\n") + 1
		}
		var got []string
		if f.got != "" {
			got = strings.Split(f.got, "\n")
		}
		lines = slices.Replace(lines, first, last, got...)
	}
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644)
}
