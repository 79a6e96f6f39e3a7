package mailbox

import (
	"bufio"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// quote sends a message through the quoter in pieces of some size.
func quote(t *testing.T, s string, piece int) string {
	t.Helper()
	var b strings.Builder
	w := bufio.NewWriterSize(&b, 16)
	q := fromQuoter{w: w}
	for rest := s; rest != ""; {
		n := min(max(piece, 1), len(rest))
		if m, err := q.Write([]byte(rest[:n])); m != n || err != nil {
			t.Fatalf("Write: got %d, %v, want %d", m, err, n)
		}
		rest = rest[n:]
	}
	q.end()
	assert.Must(t, w.Flush())
	return b.String()
}

func TestQuotingAddsOneMarkToEachFromLine(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"nothing":                  {"", "\n\n"},
		"no newline":               {"x", "x\n\n"},
		"a line":                   {"x\n", "x\n\n"},
		"an empty line":            {"\n", "\n\n"},
		"From":                     {"From \n", ">From \n\n"},
		"quoted From":              {">From x\n>>>From y\n", ">>From x\n>>>>From y\n\n"},
		"almost":                   {"From\nFro\n>F\n>>\nfrom x\n", "From\nFro\n>F\n>>\nfrom x\n\n"},
		"blank before, tab behind": {" From x\nFrom\tx\n", " From x\nFrom\tx\n\n"},
		"mark within the word":     {"Fr>om x\n> From x\n", "Fr>om x\n> From x\n\n"},
		"word cut by the end":      {"From", "From\n\n"},
		"word at the end":          {"From ", ">From \n\n"},
		"carriage return":          {"\rFrom x\n", "\rFrom x\n\n"},
	} {
		for piece := 1; piece < 8; piece++ {
			assert.Equal(t, quote(t, c.in, piece), c.want, "%s, in pieces of %d", name, piece)
		}
	}
}

// No line of a quoted message looks like the start of one, and the message comes
// back whole.
func FuzzQuotingCanBeUndone(f *testing.F) {
	for _, s := range []string{"", "x", "From x\n", ">From x\n\n>>From y", "\nFrom ", "\x00\xffFrom \n>>>>>"} {
		f.Add(s, 1)
		f.Add(s, 5)
	}
	marked := regexp.MustCompile(`(?m)^>(>*From )`)
	f.Fuzz(func(t *testing.T, s string, piece int) {
		got := quote(t, s, piece)
		if strings.HasPrefix(got, "From ") || strings.Contains(got, "\nFrom ") {
			t.Fatalf("%q: got %q, which starts another message", s, got)
		}
		want := s
		if !strings.HasSuffix(s, "\n") {
			want += "\n"
		}
		assert.Equal(t, marked.ReplaceAllString(got, "$1"), want+"\n", "back")
	})
}
