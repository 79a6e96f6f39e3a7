package archtest

import (
	"fmt"
	"go/ast"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"zmailer/internal/run/assert"
)

// testsOf gives what the comments of a tree's tests say, by "package TestName".
func testsOf(sources []*source) map[string]string {
	comments := map[string]string{}
	for _, s := range sources {
		if !s.test {
			continue
		}
		for _, d := range s.tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				comments[s.pkg+" "+f.Name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
		}
	}
	return comments
}

// shownBy is one entry of the last column: tests, then their package.
var shownBy = regexp.MustCompile("^((?:`Test\\w+` )+)([\\w/-]+)$")

// untrue is what is wrong with the table of docs/traps.md: a row without a test, a test
// that is not there, a trap that none of its tests names in its comment.
func untrue(table string, comments map[string]string) (wrong []string) {
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[2]) == "tests" {
			continue
		}
		rows++
		trap, named := strings.TrimSpace(cells[0]), false
		for _, entry := range strings.Split(cells[2], ",") {
			m := shownBy.FindStringSubmatch(strings.TrimSpace(entry))
			if m == nil {
				wrong = append(wrong, fmt.Sprintf("%s: %q is not tests and their package", trap, strings.TrimSpace(entry)))
				continue
			}
			for _, test := range strings.Fields(m[1]) {
				test = m[2] + " " + strings.Trim(test, "`")
				comment, ok := comments[test]
				if !ok {
					wrong = append(wrong, fmt.Sprintf("%s: there is no %s", trap, test))
				}
				named = named || strings.Contains(comment, `"`+trap+`"`)
			}
		}
		if !named {
			wrong = append(wrong, trap+": no comment of its tests names it")
		}
	}
	if rows == 0 {
		wrong = append(wrong, "no table")
	}
	return wrong
}

func TestEveryTrapHasItsTests(t *testing.T) {
	tree := root(t)
	table := assert.Get(fs.ReadFile(tree, "docs/traps.md"))(t)
	sources := assert.Get(load(tree))(t)
	for _, w := range untrue(string(table), testsOf(sources)) {
		t.Errorf("docs/traps.md: %s", w)
	}
}

func TestUntrueTrapsAreFound(t *testing.T) {
	sources := assert.Get(load(fstest.MapFS{"a/b/a_test.go": {Data: []byte(
		"package b\n\nimport \"testing\"\n\n// The trap \"one that\n// is long\": it is.\nfunc TestOne(t *testing.T) {}\n\nfunc TestTwo(t *testing.T) {}\n")}}))(t)
	const head = "|trap|how|tests|\n|---|---|---|\n"
	for row, want := range map[string]string{
		head + "| one that is long | so | `TestOne` `TestTwo` a/b |\n":        "",
		head + "| one that is long | so | `TestTwo` a/b, `TestOne` a/b |\n":   "",
		head + "| one that is long | so | `TestOne` a/b, `TestThree` a/b |\n": "one that is long: there is no a/b TestThree",
		head + "| one that is long | so | `TestOne` a/b, `TestTwo` a |\n":     "one that is long: there is no a TestTwo",
		head + "| another | so | `TestOne` a/b |\n":                           "another: no comment of its tests names it",
		head + "| one that is long | so | `TestOne` a/b, somewhere |\n":       "one that is long: \"somewhere\" is not tests and their package",
		head + "| one that is long | so |  |\n":                               "one that is long: \"\" is not tests and their package|one that is long: no comment of its tests names it",
		head:                                                                  "no table",
	} {
		var list []string
		if want != "" {
			list = strings.Split(want, "|")
		}
		if got := untrue(row, testsOf(sources)); !slices.Equal(got, list) {
			t.Errorf("%s: got %q, want %q", row, got, list)
		}
	}
}
