package archtest

import (
	"go/ast"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Functions that docs/HACKING.md and CONTRIBUTING.md name exist: `internal/workspec.Parse`,
// `internal/workspec.Spec.Open`. Files and folders that they name exist, too.
func TestFunctionsOfTheGuidesExist(t *testing.T) {
	tree := root(t)
	sources := assert.Get(load(tree))(t)
	declared := map[string]bool{}
	for _, s := range sources {
		for _, d := range s.tree.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = receiver(d.Recv.List[0].Type) + "." + name
				}
				declared[s.pkg+"."+name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						declared[s.pkg+"."+ts.Name.Name] = true
						if it, ok := ts.Type.(*ast.InterfaceType); ok {
							for _, m := range it.Methods.List {
								for _, n := range m.Names {
									declared[s.pkg+"."+ts.Name.Name+"."+n.Name] = true
								}
							}
						}
					}
				}
			}
		}
	}
	function := regexp.MustCompile("`((?:internal|cmd|test|scripts)(?:/[a-z0-9-]+)+)\\.((?:[A-Za-z0-9]+\\.)?[A-Za-z][A-Za-z0-9]*)`")
	path := regexp.MustCompile("`((?:internal|cmd|test|scripts|docs)(?:/[A-Za-z0-9_.-]+)+)`")
	for _, page := range []string{"docs/HACKING.md", "CONTRIBUTING.md"} {
		text := assert.Get(fs.ReadFile(tree, page))(t)
		named := 0
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			if ext, _, _ := strings.Cut(m[2], "."); ext == "go" || ext == "md" || ext == "conf" {
				continue // a file
			}
			named++
			if !declared[m[1]+"."+m[2]] {
				t.Errorf("%s names %s.%s, which does not exist", page, m[1], m[2])
			}
		}
		for _, m := range path.FindAllStringSubmatch(string(text), -1) {
			if declared[m[1]] || strings.Contains(m[1], "PROGRAM") {
				continue
			}
			if _, err := fs.Stat(tree, m[1]); err != nil && !function.MatchString("`"+m[1]+"`") {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
		if page == "docs/HACKING.md" && named < 20 {
			t.Errorf("%s names %d functions; the life of a message alone has more", page, named)
		}
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}
