package archtest

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// What make race leaves without the detector has nothing that runs beside something else.
func TestPackagesWithoutTheDetectorStartNothing(t *testing.T) {
	text := assert.Get(os.ReadFile("../../Makefile"))(t)
	line := regexp.MustCompile(`(?m)^ALONE = (.*)$`).FindSubmatch(text)
	if line == nil {
		t.Fatal("the Makefile has no ALONE")
	}
	sources := assert.Get(load(os.DirFS("../..")))(t)
	for pkg := range strings.FieldsSeq(string(line[1])) {
		files := 0
		for _, s := range sources {
			if s.pkg != strings.TrimPrefix(pkg, "./") {
				continue
			}
			files++
			ast.Inspect(s.tree, func(n ast.Node) bool {
				if starts(n) {
					t.Errorf("%s:%d: something begins to run beside this", s.name, s.line(n.Pos()))
				}
				return true
			})
		}
		if files == 0 {
			t.Errorf("%s is no package", pkg)
		}
	}
}

// starts recognizes what may run two things at the same time.
func starts(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.SelectorExpr:
		switch n.Sel.Name {
		case "Go", "AfterFunc", "Parallel", "RunParallel":
			return true
		}
	}
	return false
}
