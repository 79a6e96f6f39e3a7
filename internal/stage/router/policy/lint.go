package policy

import (
	"fmt"
	"slices"

	"go.starlark.net/resolve"
	"go.starlark.net/syntax"
)

// lint finds mistakes that would show only when certain mail comes: attributes that the
// parameters of message and recipient do not have, and functions with almost these names.
func lint(f *syntax.File) error {
	for _, s := range f.Stmts {
		d, ok := s.(*syntax.DefStmt)
		if !ok {
			continue
		}
		switch d.Name.Name {
		case "message", "recipient":
			if err := lintAttributes(d); err != nil {
				return err
			}
		case "messages", "recipients", "Message", "Recipient":
			return at(d.Name.NamePos, d.Name.Name+" is never called: want message(m) or recipient(m, r)")
		}
	}
	return nil
}

// lintAttributes looks at m.NAME and r.NAME in a function that does not assign to m and r.
func lintAttributes(d *syntax.DefStmt) (err error) {
	known := map[any][]string{}
	for i, p := range d.Params[:min(len(d.Params), 2)] {
		if id, ok := p.(*syntax.Ident); ok {
			known[id.Binding] = [][]string{(&Message{}).object("").AttrNames(), (&Recipient{}).object().AttrNames()}[i]
		}
	}
	visit := func(n syntax.Node, each func(syntax.Node)) {
		syntax.Walk(n, func(n syntax.Node) bool { each(n); return true })
	}
	forget := func(n syntax.Node) {
		if id, ok := n.(*syntax.Ident); ok && id.Binding != nil {
			delete(known, id.Binding.(*resolve.Binding))
		}
	}
	visit(d, func(n syntax.Node) {
		switch n := n.(type) {
		case *syntax.AssignStmt:
			visit(n.LHS, forget)
		case *syntax.ForStmt:
			visit(n.Vars, forget)
		}
	})
	visit(d, func(n syntax.Node) {
		e, ok := n.(*syntax.DotExpr)
		if !ok || err != nil {
			return
		}
		if id, ok := e.X.(*syntax.Ident); ok && id.Binding != nil {
			if list := known[id.Binding]; list != nil && !slices.Contains(list, e.Name.Name) {
				err = at(e.Name.NamePos, fmt.Sprintf("there is no .%s; there are %v", e.Name.Name, list))
			}
		}
	})
	return err
}
