package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/run/config"
)

// Lengths in lines.
const (
	longestFile = 800
	longestMain = 100
)

func checkLength(s *source) []Violation {
	limit := longestFile
	if path.Base(s.name) == "main.go" && path.Dir(s.pkg) == "cmd" {
		limit = longestMain
	}
	if s.lines > limit {
		return []Violation{{s.name, limit + 1, fmt.Sprintf("%d lines, at most %d are to be", s.lines, limit)}}
	}
	return nil
}

// checkComments wants one package comment in each package, which begins as go doc
// expects it and, unless it is there for tests alone, names its diagnostics.
func checkComments(sources []*source) []Violation {
	first, doc, where := map[string]*source{}, map[string]string{}, map[string]*source{}
	for _, s := range sources {
		if s.test {
			continue
		}
		if first[s.pkg] == nil {
			first[s.pkg] = s
		}
		if s.tree.Doc != nil {
			doc[s.pkg] += s.tree.Doc.Text()
			where[s.pkg] = s
		}
	}
	var found []Violation
	for pkg, s := range first {
		text := doc[pkg]
		if text == "" {
			found = append(found, Violation{s.name, s.line(s.tree.Package), pkg + " has no package comment"})
			continue
		}
		s = where[pkg]
		line := s.line(s.tree.Doc.Pos())
		if name := s.tree.Name.Name; name != "main" && !strings.HasPrefix(text, "Package "+name+" ") {
			found = append(found, Violation{s.name, line, fmt.Sprintf("the package comment does not begin with %q", "Package "+name)})
		}
		if within(pkg, "internal") && !strings.HasSuffix(pkg, "test") && !strings.Contains(text, "Diagnostics:") {
			found = append(found, Violation{s.name, line, "the package comment has no \"Diagnostics:\""})
		}
	}
	return found
}

// variable is what a name in zmailer.conf looks like.
var variable = regexp.MustCompile(`^[A-Z][A-Z0-9_]{2,}$`)

// checkCalls refuses sleeps, because a wait is for an event with a deadline, stubs,
// and settings that zmailer.conf does not know. Below test/ other processes are
// looked at, whose files give no event.
func checkCalls(s *source) []Violation {
	if !within(s.pkg, "internal") && !within(s.pkg, "cmd") {
		return nil
	}
	var found []Violation
	add := func(n ast.Node, format string, args ...any) {
		found = append(found, Violation{s.name, s.line(n.Pos()), fmt.Sprintf(format, args...)})
	}
	ast.Inspect(s.tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch fun := call.Fun.(type) {
		case *ast.Ident:
			if fun.Name == "panic" && len(call.Args) == 1 && literal(call.Args[0]) == "stub" {
				add(call, "a stub")
			}
		case *ast.SelectorExpr:
			pkg, _ := fun.X.(*ast.Ident)
			if pkg != nil && pkg.Name == "time" && fun.Sel.Name == "Sleep" {
				add(call, "time.Sleep; wait for an event with a deadline")
			}
			reads := slices.Contains([]string{"String", "Int", "Bool", "Duration", "Size", "List", "Invalid"}, fun.Sel.Name)
			if reads && !s.test && len(call.Args) > 0 {
				name := literal(call.Args[0])
				known := slices.ContainsFunc(config.Variables(), func(v config.Variable) bool { return v.Name == name })
				if variable.MatchString(name) && !known {
					add(call, "%s is not in config.Variables", name)
				}
			}
		}
		return true
	})
	return found
}

// events returns the constant words that a file's calls of a slog.Logger begin with.
func events(s *source) map[string]int {
	found := map[string]int{}
	ast.Inspect(s.tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		name := ""
		switch fun := call.Fun.(type) {
		case *ast.SelectorExpr:
			name = fun.Sel.Name
		case *ast.Ident:
			if fun.Name == "kind" { // of the scheduler's events
				name = "Info"
			}
		}
		at := 0
		switch name {
		case "Debug", "Info", "Warn", "Error":
		case "Log", "LogAttrs":
			at = 2 // behind context and level
		default:
			return true
		}
		if at < len(call.Args) {
			if word := literal(call.Args[at]); word != "" {
				found[word] = s.line(call.Pos())
			}
		}
		return true
	})
	return found
}

// literal returns the value of a string literal, "" for anything else.
func literal(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}
