package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/admin/check"
	"zmailer/internal/run/config"
)

// docs/check.md explains every problem that check can name, with its severity, and
// every step of a repair.
func TestEveryProblemIsExplained(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	problems := constants(t, "../../internal/admin/check/problems.go", "Problem")
	if len(problems) < 30 {
		t.Errorf("only %d problems", len(problems))
	}
	for _, p := range problems {
		row := fmt.Sprintf("| `%s` | %s | ", p, check.SeverityOf(check.Problem(p)))
		if n := strings.Count(string(text), row); n != 1 {
			t.Errorf("docs/check.md has %d rows %q, want one", n, row)
		}
	}
	if got := strings.Count(string(text), "| warning |") + strings.Count(string(text), "| error |"); got != len(problems) {
		t.Errorf("docs/check.md explains %d problems, there are %d", got, len(problems))
	}
	for _, a := range constants(t, "../../internal/admin/repair/repair.go", "") {
		if !strings.Contains(string(text), "| `"+a+"` | ") {
			t.Errorf("docs/check.md does not explain the action %s", a)
		}
	}
}

// constants are the values of the string constants of a type in a file.
func constants(t *testing.T, file, ofType string) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range tree.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			name, _ := spec.Type.(*ast.Ident)
			if (name == nil) != (ofType == "") || name != nil && name.Name != ofType {
				continue
			}
			for _, v := range spec.Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					list = append(list, text)
				}
			}
		}
	}
	return list
}

// What was asked for and cannot be done with the rest is refused, not passed over.
func TestCheckRefusesFlagsThatDoNotGoTogether(t *testing.T) {
	newOffice(t)
	for _, flags := range [][]string{{"--ledger", "--repair"}, {"--ledger", "--dry-run"}, {"--problems", "--repair"},
		{"--ledger", "--older", "1h"}, {"--dry-run", "--stuck", "1h"}, {"--older", "soon"}, {"--stuck", "-5s"}} {
		if out, code, err := invoke(t, append([]string{"check"}, flags...)...); code != config.ExitUsage || err == nil {
			t.Errorf("%v: got %d, %v, want %d\n%s", flags, code, err, config.ExitUsage, out)
		}
	}
	if out, code, _ := invoke(t, "check", "--older", "2d", "--stuck", "1h30m"); code != 1 {
		t.Errorf("got %d, want 1: no daemon runs\n%s", code, out)
	}
}
