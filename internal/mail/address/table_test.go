package address

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// tableCase is a line of testdata/addresses.tsv.
type tableCase struct {
	line         int
	kind, source string
	in, want     string
}

func readTable(t testing.TB) []tableCase {
	t.Helper()
	text := assert.Get(os.ReadFile("testdata/addresses.tsv"))(t)
	var list []tableCase
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 || f[1] == "" {
			t.Fatalf("addresses.tsv:%d: got %d columns, want 4", n, len(f))
		}
		c := tableCase{line: n, kind: f[0], source: f[1]}
		var err error
		if c.in, err = strconv.Unquote(f[2]); err != nil {
			t.Fatalf("addresses.tsv:%d: %v", n, err)
		}
		if c.want, err = strconv.Unquote(f[3]); err != nil {
			t.Fatalf("addresses.tsv:%d: %v", n, err)
		}
		list = append(list, c)
	}
	return list
}

func TestTableOfDifficultAddresses(t *testing.T) {
	table := readTable(t)
	if got, want := len(table), 300; got < want {
		t.Errorf("the table has %d cases, want %d at least", got, want)
	}
	for _, c := range table {
		t.Run(strconv.Itoa(c.line)+" "+c.source, func(t *testing.T) {
			switch c.kind {
			case "path":
				checkPath(t, c)
			case "list":
				checkList(t, c)
			default:
				t.Errorf("kind %q", c.kind)
			}
		})
	}
}

func checkPath(t *testing.T, c tableCase) {
	t.Helper()
	m, err := Parse(c.in)
	if c.want == "error" {
		if err == nil || !m.IsNull() {
			t.Errorf("%q: got %+v, %v, want an error alone", c.in, m, err)
		}
		return
	}
	if err != nil || m.String() != c.want {
		t.Fatalf("%q: got %q, %v, want %q", c.in, m, err, c.want)
	}
	if again, err := Parse(m.String()); err != nil || again != m {
		t.Errorf("%q: read again %+v, %v, want %+v", c.in, again, err, m)
	}
	if _, err := m.ASCIIDomain(); err != nil {
		t.Errorf("%q: ASCIIDomain: %v", c.in, err)
	}
	// What an envelope may hold is found in a header, too.
	found := ParseList("Name <" + strings.Trim(c.in, " <>\t") + ">")
	if len(found) != 1 || found[0].Err != nil || found[0].Mailbox != m {
		t.Errorf("%q: in a header %+v, want %+v", c.in, found, m)
	}
}

func checkList(t *testing.T, c tableCase) {
	t.Helper()
	var got []string
	for _, i := range ParseList(c.in) {
		if i.Err != nil {
			got = append(got, "error: "+i.Text)
			continue
		}
		got = append(got, i.Mailbox.String())
	}
	assert.Equal(t, strings.Join(got, " | "), c.want, "%q", c.in)
}
