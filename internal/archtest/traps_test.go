package archtest

import (
	"go/ast"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// shownBy is one entry of the last column of docs/notes/traps.md: tests, then their package.
var shownBy = regexp.MustCompile("^((?:`Test\\w+` )+)([\\w/-]+)$")

// Each row of docs/notes/traps.md names tests that exist.
func TestEveryTrapHasItsTests(t *testing.T) {
	tree := root(t)
	table := assert.Get(fs.ReadFile(tree, "docs/notes/traps.md"))(t)
	tests := map[string]bool{}
	for _, s := range assert.Get(load(tree))(t) {
		for _, d := range s.tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test {
				tests[s.pkg+" "+f.Name.Name] = true
			}
		}
	}
	rows := 0
	for line := range strings.Lines(string(table)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[2]) == "tests" {
			continue
		}
		rows++
		for _, entry := range strings.Split(cells[2], ",") {
			m := shownBy.FindStringSubmatch(strings.TrimSpace(entry))
			if m == nil {
				t.Errorf("%s: %q is not tests and their package", cells[0], entry)
				continue
			}
			for _, test := range strings.Fields(m[1]) {
				if name := m[2] + " " + strings.Trim(test, "`"); !tests[name] {
					t.Errorf("%s: there is no %s", cells[0], name)
				}
			}
		}
	}
	if rows == 0 {
		t.Error("docs/notes/traps.md has no table")
	}
}
