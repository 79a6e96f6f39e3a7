package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// token is a value that differs from run to run.
type token struct {
	shape string // as it stands in a page
	real  string // as it may be in a run
	bound bool   // the same one in the page is the same one in the run
}

// tokens are tried in this order at each place of a page.
func tokens() []token {
	months := "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
	mailDate := `(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), +\d{1,2} ` + months + ` \d{4} \d\d:\d\d:\d\d [+-]\d{4}`
	clock := `\d\d:\d\d:\d\d(?:\.\d+)?`
	stamp := `\d{4}-\d\d-\d\d[T ]` + clock + `(?:Z|[+-]\d\d:\d\d)?`
	span := `(?:\d+(?:\.\d+)?(?:ns|µs|ms|s|m|h|d|w))+`
	return []token{
		{`\.\.\.`, `[^\n]*?`, false},
		{`S\d+A[0-9A-Za-z]{6,}`, `S\d+A[0-9A-Za-z]+`, true},
		{`\d{8}-\d{6}-[a-z]+-\d+`, `\d{8}-\d{6}-[a-z]+-\d+`, true},
		{mailDate, mailDate, false},
		{stamp, stamp, false},
		{clock, clock, false},
		{`\d{4}-\d\d-\d\d`, `\d{4}-\d\d-\d\d`, false},
		{`\b(?:submit|smtp|report|zmctl)\.\d+\.[0-9a-z]+\.[0-9a-z]+`, `(?:submit|smtp|report|zmctl)\.\d+\.[0-9a-z]+\.[0-9a-z]+`, false},
		{`\b\d+ bytes`, `\d+ bytes`, false},
		{`,S=\d+`, `,S=\d+`, false},
		{`> \d{3} `, `> \d+ `, false},                 // the place of a recipient's line, behind an address
		{`d \d+:\d+:\d+::`, `d \d+:\d+:\d+::`, false}, // a diagnostic's places
		{`d\+\d+:\d+:\d+::`, `d\+\d+:\d+:\d+::`, false},
		{`rcpts=\d{3}\b`, `rcpts=\d+`, false},
		{`SIZE=\d+`, `SIZE=\d+`, false},
		{`_seconds":\d+`, `_seconds":\d+`, false},
		{`\bz \d+ [0-9a-f]{8}`, `z \d+ [0-9a-f]{8}`, false}, // of a specification: its length
		{`\bh \d{13} \d+`, `h \d{13} \d+`, false},           // and the place of a recipient's line
		{`\b[0-9a-f]*(?:[0-9][a-f]|[a-f][0-9])[0-9a-f]*\b`, `[0-9a-f]+`, false},
		{`\b` + span + `\b`, span, false},
		{`\b\d{4,}(?:\b|_)`, `\d+`, true}, // the underscore stands for itself
	}
}

// matcher compares pages with runs and remembers which value of the page is which of the
// run.
type matcher struct {
	all    []token
	anyOf  *regexp.Regexp
	values map[string]string // of a page → of the run
}

func newMatcher() *matcher {
	m := &matcher{all: tokens(), values: map[string]string{}}
	var shapes []string
	for _, t := range m.all {
		shapes = append(shapes, "("+t.shape+")")
	}
	m.anyOf = regexp.MustCompile(strings.Join(shapes, "|"))
	return m
}

// split calls text for each part of s that stands for itself, and value for the others.
func (m *matcher) split(s string, text func(string), value func(token, string)) {
	for s != "" {
		at := m.anyOf.FindStringSubmatchIndex(s)
		if at == nil {
			text(s)
			return
		}
		text(s[:at[0]])
		if s[at[1]-1] == '_' {
			at[1]--
		}
		for i, t := range m.all {
			if at[2*i+2] >= 0 {
				value(t, s[at[0]:at[1]])
				break
			}
		}
		s = s[at[1]:]
	}
}

// real puts the run's values in the place of the page's.
func (m *matcher) real(s string) string {
	var b strings.Builder
	m.split(s, func(text string) { b.WriteString(text) }, func(t token, text string) {
		if v, ok := m.values[text]; ok {
			text = v
		}
		b.WriteString(text)
	})
	return b.String()
}

// pattern returns what a text of the page allows; names are those of its groups.
func (m *matcher) pattern(want string) (pattern string, names []string) {
	var b strings.Builder
	b.WriteString(`^`)
	group := map[string]bool{}
	for line := range strings.Lines(want) {
		if strings.TrimSpace(line) == "..." {
			b.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		m.split(line, func(text string) { b.WriteString(regexp.QuoteMeta(text)) }, func(t token, text string) {
			switch v, known := m.values[text]; {
			case !t.bound:
				b.WriteString(t.real)
			case known:
				b.WriteString(regexp.QuoteMeta(v))
			case group[text]:
				b.WriteString(t.real) // compared below
				names = append(names, "")
			default:
				group[text] = true
				b.WriteString("(" + t.real + ")")
				names = append(names, text)
			}
		})
	}
	b.WriteString(`$`)
	return b.String(), names
}

// match reports whether got is what the page shows, and stores the values that are new.
func (m *matcher) match(want, got string) (bool, error) {
	want, got = squeeze(want), squeeze(got)
	pattern, names := m.pattern(want)
	re, err := regexp.Compile(pattern)
	if err != nil {
		return false, fmt.Errorf("pattern of %q: %w", want, err)
	}
	found := re.FindStringSubmatch(got)
	if found == nil {
		return false, nil
	}
	group := 1
	for _, name := range names {
		if name != "" {
			m.take(name, found[group])
			group++
		}
	}
	return true, nil
}

var inode = regexp.MustCompile(`^S(\d+)A`)

// take notes a value of the page and that of the run; with a spool ID the inode number in it.
func (m *matcher) take(page, real string) {
	m.values[page] = real
	p, r := inode.FindStringSubmatch(page), inode.FindStringSubmatch(real)
	if p == nil || r == nil {
		return
	}
	if _, known := m.values[p[1]]; !known {
		m.values[p[1]] = r[1]
	}
}

var blanks = regexp.MustCompile(`[ \t]+`)

// squeeze leaves one blank where there are several: columns are as wide as their values.
func squeeze(s string) string {
	var list []string
	for line := range strings.Lines(s) {
		if passing.MatchString(line) {
			continue
		}
		list = append(list, strings.TrimSpace(blanks.ReplaceAllString(line, " ")))
	}
	for len(list) > 0 && list[len(list)-1] == "" {
		list = list[:len(list)-1]
	}
	sortOutcomes(list)
	return strings.Join(list, "\n") + "\n"
}

// passing is what submit -v says only if it looks at the right moment.
var passing = regexp.MustCompile(`^submit: (being routed|queued.*|waits for the router in .*)\n$`)

var outcome = regexp.MustCompile(`^submit: \S+@\S+: `)

// sortOutcomes brings what submit -v says of several recipients, which come as they are
// delivered, into one order.
func sortOutcomes(list []string) {
	for i := 0; i < len(list); i++ {
		begin := i
		for i < len(list) && outcome.MatchString(list[i]) {
			i++
		}
		slices.Sort(list[begin:i])
	}
}
