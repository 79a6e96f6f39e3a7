package policy

import (
	"fmt"
	"slices"

	"go.starlark.net/resolve"
	"go.starlark.net/syntax"
)

// lint finds what would fail on mail only: message and recipient that return what is no
// action, attributes that their parameters do not have, functions that are called
// almost like that.
func lint(f *syntax.File, main bool) error {
	if !main {
		return nil
	}
	for _, s := range f.Stmts {
		d, ok := s.(*syntax.DefStmt)
		if !ok {
			continue
		}
		switch d.Name.Name {
		case "message", "recipient":
			l := linter{what: d.Name.Name, known: map[*resolve.Binding][]string{}}
			for i, p := range d.Params {
				if id, ok := p.(*syntax.Ident); ok && i < 2 {
					if b, ok := id.Binding.(*resolve.Binding); ok {
						l.known[b] = [][]string{messageAttrs(), recipientAttrs()}[i]
						l.kinds = append(l.kinds, b)
					}
				}
			}
			l.assigned(d.Body)
			if err := l.body(d.Body); err != nil {
				return err
			}
		case "messages", "recipients", "Message", "Recipient":
			return at(d.Name.NamePos, d.Name.Name+" is never called: want message(m) or recipient(m, r)")
		}
	}
	return nil
}

type linter struct {
	what  string
	known map[*resolve.Binding][]string // attributes of the parameters
	kinds []*resolve.Binding
	err   error
}

// assigned forgets parameters that are given another value.
func (l *linter) assigned(body []syntax.Stmt) {
	for _, s := range body {
		syntax.Walk(s, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.AssignStmt:
				l.forget(n.LHS)
			case *syntax.ForStmt:
				l.forget(n.Vars)
			}
			return true
		})
	}
}

func (l *linter) forget(e syntax.Expr) {
	syntax.Walk(e, func(n syntax.Node) bool {
		if id, ok := n.(*syntax.Ident); ok {
			if b, ok := id.Binding.(*resolve.Binding); ok {
				delete(l.known, b)
			}
		}
		return true
	})
}

// body looks at the statements of the function itself.
func (l *linter) body(body []syntax.Stmt) error {
	for _, s := range body {
		syntax.Walk(s, func(n syntax.Node) bool {
			if l.err != nil {
				return false
			}
			switch n := n.(type) {
			case *syntax.DefStmt, *syntax.LambdaExpr:
				return false // returns to the function
			case *syntax.ReturnStmt:
				l.result(n.Result)
			case *syntax.DotExpr:
				l.attribute(n)
			}
			return true
		})
	}
	return l.err
}

// result refuses what is plainly no action.
func (l *linter) result(e syntax.Expr) {
	kind := ""
	switch e := e.(type) {
	case *syntax.ParenExpr:
		l.result(e.X)
	case *syntax.CondExpr:
		l.result(e.True)
		l.result(e.False)
	case *syntax.ListExpr:
		for _, x := range e.List {
			l.result(x)
		}
	case *syntax.Literal:
		kind = map[syntax.Token]string{syntax.STRING: "a string", syntax.BYTES: "bytes"}[e.Token]
		if kind == "" {
			kind = "a number"
		}
	case *syntax.DictExpr:
		kind = "a dict"
	case *syntax.LambdaExpr:
		kind = "a function"
	case *syntax.DotExpr:
		if _, ok := l.attrs(e); ok {
			kind = "a property of the mail"
		}
	case *syntax.Ident:
		b, ok := e.Binding.(*resolve.Binding)
		switch {
		case ok && (b.Scope == resolve.Predeclared || b.Scope == resolve.Universal) && e.Name == "None":
		case ok && (b.Scope == resolve.Predeclared || b.Scope == resolve.Universal) && (e.Name == "True" || e.Name == "False"):
			kind = "a bool"
		case ok && b.Scope == resolve.Predeclared:
			kind = e.Name + ", which is not called: " + e.Name + "(...)"
		}
	}
	if kind != "" && l.err == nil {
		l.err = at(syntax.Start(e), fmt.Sprintf("%s returns %s; want None, an action like route(...), or a list of actions", l.what, kind))
	}
}

// attrs is what the object in front of a dot has, if that is known.
func (l *linter) attrs(e *syntax.DotExpr) ([]string, bool) {
	id, ok := e.X.(*syntax.Ident)
	if !ok {
		return nil, false
	}
	b, ok := id.Binding.(*resolve.Binding)
	if !ok {
		return nil, false
	}
	list, ok := l.known[b]
	return list, ok
}

func (l *linter) attribute(e *syntax.DotExpr) {
	if list, ok := l.attrs(e); ok && !slices.Contains(list, e.Name.Name) {
		l.err = at(e.Name.NamePos, fmt.Sprintf("there is no .%s; there are %v", e.Name.Name, list))
	}
}
