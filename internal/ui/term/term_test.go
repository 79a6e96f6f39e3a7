package term

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"zmailer/internal/run/assert"
)

// regular has it that no variable of the caller's environment decides.
func regular(t *testing.T) {
	t.Helper()
	t.Setenv(Never, "")
	t.Setenv(Always, "")
	t.Setenv("TERM", "xterm")
}

func TestColoursAreNotForFiles(t *testing.T) {
	regular(t)
	f, err := os.Create(t.TempDir() + "/out")
	assert.Must(t, err)
	defer f.Close()
	for name, w := range map[string]io.Writer{"a file": f, "memory": &strings.Builder{}} {
		if bool(For(w)) || Terminal(w) || Width(w) != 0 || Room(w, 20, 300) != 300 {
			t.Errorf("%s: taken for a terminal", name)
		}
	}
	t.Setenv(Always, "1")
	if !For(f) {
		t.Errorf("%s=1: not coloured", Always)
	}
	t.Setenv(Always, "0")
	if For(f) {
		t.Errorf("%s=0: coloured", Always)
	}
	t.Setenv(Always, "1")
	t.Setenv(Never, "1")
	if For(f) {
		t.Errorf("%s=1: coloured", Never)
	}
}

func TestColoursEndOnTheirLine(t *testing.T) {
	assert.Equal(t, Paint(true).Red("a\n\nb\n"), "\x1b[31ma\x1b[0m\n\n\x1b[31mb\x1b[0m\n")
	assert.Equal(t, Paint(false).Red("a\n"), "a\n", "without colours")
}

// plain takes the colours away.
func plain(text string) string {
	for _, code := range []string{"\x1b[31m", "\x1b[1m", "\x1b[0m"} {
		text = strings.ReplaceAll(text, code, "")
	}
	return text
}

// Whatever the cells: without its colours a table is what text/tabwriter makes of it.
func TestTableIsThatOfTabwriter(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := Paint(true)
	for range 500 {
		var text strings.Builder
		for range rnd.IntN(8) {
			for range rnd.IntN(5) {
				cell := strings.Repeat("x", rnd.IntN(12)) + []string{"", "é", " "}[rnd.IntN(3)]
				text.WriteString([]string{cell, p.Red(cell), p.Bold(cell)}[rnd.IntN(3)] + "\t")
			}
			text.WriteString([]string{"", "end", p.Red("end")}[rnd.IntN(3)] + "\n")
		}
		var want, got strings.Builder
		w := tabwriter.NewWriter(&want, 0, 0, 2, ' ', 0)
		fmt.Fprint(w, plain(text.String()))
		w.Flush()
		table := NewTable(&got)
		fmt.Fprint(table, text.String())
		assert.Must(t, table.Flush())
		if plain(got.String()) != want.String() {
			t.Fatalf("of %q\ngot\n%q\nwant\n%q", text.String(), plain(got.String()), want.String())
		}
	}
}

// Columns are where a terminal has them, whatever the letters.
func TestColumnsStandBelowEachOther(t *testing.T) {
	var got strings.Builder
	table := NewTable(&got)
	table.Width = 20
	fmt.Fprintf(table, "abcdef\tx\n例え\tx\ncafe\u0301\tx\n%s\tx\n", Paint(true).Red("例"))
	assert.Must(t, table.Flush())
	assert.Equal(t, got.String(), "abcdef  x\n例え    x\ncafe\u0301    x\n\x1b[31m例\x1b[0m      x\n")
}

func TestLinesAreCutAtTheWidth(t *testing.T) {
	p := Paint(true)
	for what, tt := range map[string]struct{ line, want string }{
		"short":                    {"abcdefghij", "abcdefghij"},
		"long":                     {"abcdefghijk", "abcdefg..."},
		"colours count nothing":    {p.Red("abcdefghij"), p.Red("abcdefghij")},
		"a colour is ended":        {p.Red("abcdefghijk"), "\x1b[31mabcdefg...\x1b[0m"},
		"letters of several bytes": {"ääääääääääää", "äääääää..."},
		"wide letters":             {"例例例例例例", "例例例..."},
		"wide letters that fit":    {"例例例例例", "例例例例例"},
		"accents":                  {"e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301", "e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301..."},
		"accents that fit":         {"abcdefghie\u0301", "abcdefghie\u0301"},
		"wide letters in colour":   {p.Red("例例例例例例"), "\x1b[31m例例例...\x1b[0m"},
	} {
		assert.Equal(t, Clip(tt.line, 10), tt.want, "%s", what)
	}
	var b strings.Builder
	table := NewTable(&b)
	table.Width = 12
	fmt.Fprintf(table, "A\tTEXT\n%s\tabcdefghijklm\n", p.Bold("long"))
	assert.Must(t, table.Flush())
	assert.Equal(t, b.String(), "A     TEXT\n\x1b[1mlong\x1b[0m  abc...\x1b[0m\n", "table")
}
