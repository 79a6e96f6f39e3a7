package archtest

import (
	"go/ast"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

var function = regexp.MustCompile("`((?:internal|cmd|test|scripts)(?:/[a-z0-9-]+)+)\\.((?:[A-Za-z0-9]+\\.)?[A-Za-z][A-Za-z0-9]*)`")

// isFile reports whether what stands behind the first dot of a name is the end of a file name.
func isFile(behind string) bool {
	ext, _, _ := strings.Cut(behind, ".")
	return ext == "go" || ext == "md" || ext == "conf"
}

// Functions that docs/HACKING.md and CONTRIBUTING.md name exist: `internal/workspec.Parse`,
// `internal/workspec.Spec.Open`.
func TestFunctionsOfTheGuidesExist(t *testing.T) {
	tree := root(t)
	declared := map[string]bool{}
	for _, s := range assert.Get(load(tree))(t) {
		declare(s, declared)
	}
	for page, least := range map[string]int{"docs/HACKING.md": 20, "CONTRIBUTING.md": 0} {
		named := 0
		for _, m := range function.FindAllStringSubmatch(string(assert.Get(fs.ReadFile(tree, page))(t)), -1) {
			if isFile(m[2]) {
				continue
			}
			named++
			if !declared[m[1]+"."+m[2]] {
				t.Errorf("%s names %s.%s, which does not exist", page, m[1], m[2])
			}
		}
		if named < least {
			t.Errorf("%s names %d functions; the life of a message alone has more", page, named)
		}
	}
}

// declare adds the functions, methods and types of a source.
func declare(s *source, declared map[string]bool) {
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
				ts, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
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

// Tests, benchmarks, files and folders that any page names exist, also in the commands that
// run them. docs/notes/smaller.md names what is gone.
func TestPagesNameTestsAndFilesThatExist(t *testing.T) {
	tree := root(t)
	tests := map[string]bool{"TestName": true} // and by package, "internal/table TestX"
	for _, s := range assert.Get(load(tree))(t) {
		for _, d := range s.tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				tests[f.Name.Name], tests[s.pkg+" "+f.Name.Name] = true, true
			}
		}
	}
	name := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z0-9]\w*`)
	path := regexp.MustCompile("(?m)(?:^|[\\s(`])((?:internal|cmd|test|scripts|packaging)(?:/[A-Za-z0-9_.-]+)+)")
	chosen := regexp.MustCompile(`-(run|bench)[ =]'?([A-Za-z]\w*)`)
	place := regexp.MustCompile(`\./((?:internal|test|scripts)(?:/[a-z0-9]+)+)`)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/notes/*.md"} {
		for _, page := range assert.Get(fs.Glob(tree, pattern))(t) {
			if page == "docs/notes/smaller.md" {
				continue
			}
			text := string(assert.Get(fs.ReadFile(tree, page))(t))
			for _, n := range name.FindAllString(text, -1) {
				if !tests[n] {
					t.Errorf("%s names %s, which does not exist", page, n)
				}
			}
			for _, m := range path.FindAllStringSubmatch(text, -1) {
				file := strings.TrimRight(m[1], ".")
				_, err := fs.Stat(tree, file)
				if err != nil && !function.MatchString("`"+file+"`") && !strings.Contains(file, "PROGRAM") {
					t.Errorf("%s names %s, which does not exist", page, file)
				}
			}
			for line := range strings.Lines(text) {
				_, command, _ := strings.Cut(line, "go test ")
				where := place.FindStringSubmatch(command)
				for _, which := range chosen.FindAllStringSubmatch(command, -1) {
					if where == nil || tests[which[2]] || strings.EqualFold(which[2], "xxx") {
						continue
					}
					found := false
					for known := range tests {
						pkg, test, _ := strings.Cut(known, " ")
						found = found || pkg == where[1] && strings.Contains(test, which[2]) &&
							strings.HasPrefix(test, "Benchmark") == (which[1] == "bench")
					}
					if !found {
						t.Errorf("%s runs %s of %s, which has none", page, which[2], where[1])
					}
				}
			}
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
