package policy

import (
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// Names of the guards. No program can write them: a NUL is no letter.
const (
	gOp       = "\x00op"       // op, x, y
	gAssignOp = "\x00assign"   // op, x, y: what x op= y makes of x
	gIndex    = "\x00index"    // x, i
	gSet      = "\x00set"      // value, x, i
	gSetOp    = "\x00setop"    // op, x, i, y: x[i] op= y
	gSlice    = "\x00slice"    // x, from, to, step
	gAttr     = "\x00attr"     // x, name
	gDict     = "\x00dict"     // key, value, key, value, ...
	gPairs    = "\x00pairs"    // a list of pairs: a dict
	gElements = "\x00elements" // a list: a set
	gSpread   = "\x00spread"   // what follows * or ** in a call
	gNone     = "\x00none"
)

// maxDepth is how deep expressions and statements may stand in one another; more is no
// program that a person wrote.
const maxDepth = 5000

// guard puts calls of guards in the place of what the interpreter would do at a cost that
// its steps do not show: operators, indexing, attributes. Positions stay.
type guard struct {
	depth int
	bad   *problem // the first
}

// problem is something in a program that it may not have.
type problem struct {
	pos  syntax.Position
	text string
}

func (g *guard) refuse(pos syntax.Position, text string) {
	if g.bad == nil {
		g.bad = &problem{pos, text}
	}
}

// enter tells whether there is room for one more level.
func (g *guard) enter(n syntax.Node) bool {
	g.depth++
	if g.depth > maxDepth {
		g.refuse(syntax.Start(n), "nested too deep")
		return false
	}
	return true
}

func (g *guard) stmts(list []syntax.Stmt) {
	for i := range list {
		if g.enter(list[i]) {
			list[i] = g.stmt(list[i])
		}
		g.depth--
	}
}

func (g *guard) stmt(s syntax.Stmt) syntax.Stmt {
	switch s := s.(type) {
	case *syntax.AssignStmt:
		return g.assign(s)
	case *syntax.DefStmt:
		g.params(s.Params)
		g.stmts(s.Body)
	case *syntax.ExprStmt:
		s.X = g.expr(s.X)
	case *syntax.ForStmt:
		g.names(s.Vars)
		s.X = g.expr(s.X)
		g.stmts(s.Body)
	case *syntax.WhileStmt:
		s.Cond = g.expr(s.Cond)
		g.stmts(s.Body)
	case *syntax.IfStmt:
		s.Cond = g.expr(s.Cond)
		g.stmts(s.True)
		g.stmts(s.False)
	case *syntax.ReturnStmt:
		if s.Result != nil {
			s.Result = g.expr(s.Result)
		}
	}
	return s
}

// assign rewrites an assignment.
func (g *guard) assign(s *syntax.AssignStmt) syntax.Stmt {
	lhs := unparen(s.LHS)
	rhs := g.expr(s.RHS)
	op := s.OpPos
	switch x := lhs.(type) {
	case *syntax.IndexExpr:
		at := call(op, gSet, rhs, g.expr(x.X), g.expr(x.Y))
		if s.Op != syntax.EQ {
			at = call(op, gSetOp, word(op, s.Op.String()), g.expr(x.X), g.expr(x.Y), rhs)
		}
		return &syntax.ExprStmt{X: at}
	case *syntax.Ident:
		if s.Op != syntax.EQ {
			rhs = call(op, gAssignOp, word(op, s.Op.String()), &syntax.Ident{NamePos: x.NamePos, Name: x.Name}, rhs)
		}
		return &syntax.AssignStmt{OpPos: op, Op: syntax.EQ, LHS: s.LHS, RHS: rhs}
	}
	g.names(lhs)
	s.RHS = rhs
	return s
}

// names sees to it that several values are assigned to names alone.
func (g *guard) names(e syntax.Expr) {
	switch e := unparen(e).(type) {
	case *syntax.Ident:
	case *syntax.TupleExpr:
		for _, x := range e.List {
			g.names(x)
		}
	case *syntax.ListExpr:
		for _, x := range e.List {
			g.names(x)
		}
	case *syntax.DotExpr:
		g.refuse(e.Name.NamePos, "attributes cannot be assigned to")
	default:
		g.refuse(syntax.Start(e), "assign to elements in a statement of their own, one by one")
	}
}

func unparen(e syntax.Expr) syntax.Expr {
	for {
		p, ok := e.(*syntax.ParenExpr)
		if !ok {
			return e
		}
		e = p.X
	}
}

// params rewrites the defaults.
func (g *guard) params(list []syntax.Expr) {
	for _, p := range list {
		if b, ok := p.(*syntax.BinaryExpr); ok {
			b.Y = g.expr(b.Y)
		}
	}
}

func (g *guard) list(list []syntax.Expr) []syntax.Expr {
	for i := range list {
		list[i] = g.expr(list[i])
	}
	return list
}

// expr rewrites an expression that is evaluated.
func (g *guard) expr(e syntax.Expr) syntax.Expr {
	defer func() { g.depth-- }()
	if !g.enter(e) {
		return e
	}
	switch e := e.(type) {
	case *syntax.BinaryExpr:
		return g.binary(e)
	case *syntax.CallExpr:
		e.Fn = g.expr(e.Fn)
		g.args(e.Args)
	case *syntax.Comprehension:
		return g.comprehension(e)
	case *syntax.CondExpr:
		e.Cond, e.True, e.False = g.expr(e.Cond), g.expr(e.True), g.expr(e.False)
	case *syntax.DictExpr:
		var all []syntax.Expr
		for _, x := range e.List {
			entry := x.(*syntax.DictEntry)
			all = append(all, g.expr(entry.Key), g.expr(entry.Value))
		}
		return call(e.Lbrace, gDict, all...)
	case *syntax.DotExpr:
		return call(e.Dot, gAttr, g.expr(e.X), word(e.Name.NamePos, e.Name.Name))
	case *syntax.IndexExpr:
		return call(e.Lbrack, gIndex, g.expr(e.X), g.expr(e.Y))
	case *syntax.SliceExpr:
		return call(e.Lbrack, gSlice, g.expr(e.X), g.optional(e, e.Lo), g.optional(e, e.Hi), g.optional(e, e.Step))
	case *syntax.LambdaExpr:
		g.params(e.Params)
		e.Body = g.expr(e.Body)
	case *syntax.ListExpr:
		e.List = g.list(e.List)
	case *syntax.TupleExpr:
		e.List = g.list(e.List)
	case *syntax.ParenExpr:
		e.X = g.expr(e.X)
	case *syntax.UnaryExpr:
		e.X = g.expr(e.X)
	}
	return e
}

func (g *guard) binary(e *syntax.BinaryExpr) syntax.Expr {
	x, y := g.expr(e.X), g.expr(e.Y)
	if e.Op == syntax.AND || e.Op == syntax.OR {
		e.X, e.Y = x, y
		return e
	}
	return call(e.OpPos, gOp, word(e.OpPos, e.Op.String()), x, y)
}

// args rewrites the arguments of a call.
func (g *guard) args(list []syntax.Expr) {
	for i, a := range list {
		switch a := a.(type) {
		case *syntax.BinaryExpr:
			if a.Op == syntax.EQ {
				a.Y = g.expr(a.Y)
				continue
			}
		case *syntax.UnaryExpr:
			if a.Op == syntax.STAR || a.Op == syntax.STARSTAR {
				a.X = call(a.OpPos, gSpread, g.expr(a.X))
				continue
			}
		}
		list[i] = g.expr(a)
	}
}

// comprehension makes dicts and sets of lists.
func (g *guard) comprehension(e *syntax.Comprehension) syntax.Expr {
	for _, c := range e.Clauses {
		switch c := c.(type) {
		case *syntax.ForClause:
			g.names(c.Vars)
			c.X = g.expr(c.X)
		case *syntax.IfClause:
			c.Cond = g.expr(c.Cond)
		}
	}
	entry, dict := e.Body.(*syntax.DictEntry)
	if !dict {
		e.Body = g.expr(e.Body)
		if !e.Curly {
			return e
		}
		e.Curly = false
		return call(e.Lbrack, gElements, e)
	}
	e.Curly = false
	e.Body = &syntax.TupleExpr{Lparen: entry.Colon, List: []syntax.Expr{g.expr(entry.Key), g.expr(entry.Value)}, Rparen: entry.Colon}
	return call(e.Lbrack, gPairs, e)
}

// optional is an expression that may be left out.
func (g *guard) optional(at *syntax.SliceExpr, e syntax.Expr) syntax.Expr {
	if e == nil {
		return &syntax.Ident{NamePos: at.Lbrack, Name: gNone}
	}
	return g.expr(e)
}

// call is the call of a guard.
func call(pos syntax.Position, name string, args ...syntax.Expr) syntax.Expr {
	return &syntax.CallExpr{Fn: &syntax.Ident{NamePos: pos, Name: name}, Lparen: pos, Args: args, Rparen: pos}
}

// word is a string that the guard is told.
func word(pos syntax.Position, s string) syntax.Expr {
	return &syntax.Literal{Token: syntax.STRING, TokenPos: pos, Value: s}
}

// plainFile and plainSource are what the guards have done where the interpreter gives
// its operations to nobody else.
const (
	plainFile   = "\x00plain"
	plainSource = `
def index(x, i): return x[i]
def slice(x, a, b, c): return x[a:b:c]
def extend(x, y):
    x += y
    return x
def union(x, y):
    x |= y
    return x
def put(x, i, v): x[i] = v
`
)

// plain compiles them.
func plain() (starlark.StringDict, error) {
	return starlark.ExecFileOptions(&syntax.FileOptions{}, &starlark.Thread{Name: plainFile}, plainFile, plainSource, nil)
}
