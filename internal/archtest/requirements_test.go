package archtest

import (
	"cmp"
	"flag"
	"go/ast"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "write the tables of docs/requirements.md and docs/notes/licences.md")

// requirementID is the id of a requirement in a comment or in the name of a test.
var requirementID = regexp.MustCompile(`\b(?:[MKAZS]\d{1,2}|C(?:[1-9]|1[01])|(?:Test)?(?:Sec|Dur|Loc|Net|Zm|Del|Op|Peer|Atk)\d{1,2})(?:[A-Z]\w*)?\b`)

// idsIn returns the ids in a text, without the rest of a test's name.
func idsIn(text string) []string {
	var list []string
	for _, at := range requirementID.FindAllStringIndex(text, -1) {
		if at[0] > 0 && text[at[0]-1] == '=' {
			continue // a byte of quoted-printable text
		}
		m := strings.TrimPrefix(text[at[0]:at[1]], "Test")
		digits := strings.IndexAny(m, "0123456789")
		end := digits
		for end < len(m) && m[end] >= '0' && m[end] <= '9' {
			end++
		}
		if end == len(m) || digits > 1 {
			list = append(list, m[:end])
		}
	}
	return list
}

// planned is in place of the test files of a requirement that nothing shows yet.
const planned = "planned"

// Each id in a comment is explained in docs/requirements.md, and each requirement there names
// the test files that show it. `go test ./internal/archtest -run Requirements -update` writes
// the files' names.
func TestRequirementsAreExplainedAndShown(t *testing.T) {
	sources := assert.Get(load(os.DirFS("../..")))(t)
	const page = "../../docs/requirements.md"
	text := assert.Get(os.ReadFile(page))(t)
	row := regexp.MustCompile(`(?m)^\| ([A-Z][a-z]*\d+) \| (.*) \| (.*) \|\n`)
	known := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if was, ok := known[m[1]]; ok && was != m[2] {
			t.Errorf("%s is explained twice: %s, and: %s", m[1], was, m[2])
		}
		known[m[1]] = m[2]
	}
	shown := map[string]map[string]bool{}
	for _, s := range sources {
		var ids []string
		for _, group := range s.tree.Comments {
			ids = append(ids, idsIn(group.Text())...)
		}
		for _, d := range s.tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test {
				ids = append(ids, idsIn(f.Name.Name)...)
			}
		}
		for _, id := range ids {
			if known[id] == "" {
				t.Errorf("%s mentions %s, which docs/requirements.md does not explain", s.name, id)
			}
			if s.test {
				if shown[id] == nil {
					shown[id] = map[string]bool{}
				}
				shown[id][s.name] = true
			}
		}
	}
	written := map[string]bool{}
	want := row.ReplaceAllStringFunc(string(text), func(line string) string {
		m := row.FindStringSubmatch(line)
		if written[m[1]] {
			return "" // a merge has left both versions (.gitattributes)
		}
		written[m[1]] = true
		files := slices.SortedFunc(maps.Keys(shown[m[1]]), cmp.Compare[string])
		switch {
		case len(files) == 0 && m[3] == planned:
			return line
		case len(files) == 0:
			t.Errorf("no test shows %s: %s", m[1], m[2])
		}
		more := ""
		if n := len(files) - 4; n > 0 {
			files, more = files[:4], " and more"
		}
		return "| " + m[1] + " | " + m[2] + " | " + strings.Join(files, " ") + more + " |\n"
	})
	if *update {
		assert.Must(t, os.WriteFile(page, []byte(want), 0o644))
	} else if want != string(text) {
		t.Error("docs/requirements.md does not name the right files; -update writes them")
	}
}
