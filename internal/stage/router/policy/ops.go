package policy

import (
	"fmt"
	"strings"
	"sync"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// guarded is a guard in Go. It gets exactly its arguments.
type guarded func(t *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error)

// guards are what the rewritten tree calls.
func guards() starlark.StringDict {
	d := starlark.StringDict{gNone: starlark.None}
	for name, do := range map[string]guarded{
		gOp: operator, gAssignOp: assignOp, gIndex: index, gSet: setIndex, gSetOp: setOp,
		gSlice: slice, gAttr: attribute, gDict: dictOf, gPairs: dictOfPairs, gElements: setOf, gSpread: spread,
	} {
		d[name] = starlark.NewBuiltin(name, func(t *starlark.Thread, _ *starlark.Builtin, a starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return do(t, meterOf(t), a)
		})
	}
	return d
}

// plainly are the functions of plainSource.
var plainly = sync.OnceValue(func() starlark.StringDict {
	d, err := plain()
	if err != nil {
		panic(err) // it is our own
	}
	return d
})

func doPlainly(t *starlark.Thread, name string, a ...starlark.Value) (starlark.Value, error) {
	v, err := starlark.Call(t, plainly()[name], a, nil)
	if e, ok := err.(*starlark.EvalError); ok {
		return nil, fmt.Errorf("%s", e.Msg) // its place is the caller's
	}
	return v, err
}

func tokens() map[string]syntax.Token {
	m := map[string]syntax.Token{}
	for _, t := range []syntax.Token{
		syntax.PLUS, syntax.MINUS, syntax.STAR, syntax.SLASH, syntax.SLASHSLASH, syntax.PERCENT, syntax.AMP, syntax.PIPE,
		syntax.CIRCUMFLEX, syntax.LTLT, syntax.GTGT, syntax.LT, syntax.GT, syntax.LE, syntax.GE, syntax.EQL, syntax.NEQ,
		syntax.IN, syntax.NOT_IN,
	} {
		m[t.String()] = t
	}
	return m
}

var tokenOf = sync.OnceValue(tokens)

// operator is x op y.
func operator(t *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	op := tokenOf()[string(a[0].(starlark.String))]
	return binary(t, m, op, a[1], a[2])
}

func binary(t *starlark.Thread, m *meter, op syntax.Token, x, y starlark.Value) (starlark.Value, error) {
	if err := m.binary(op, x, y); err != nil {
		return nil, err
	}
	switch op {
	case syntax.EQL, syntax.NEQ, syntax.LT, syntax.LE, syntax.GT, syntax.GE:
		ok, err := starlark.Compare(op, x, y)
		return starlark.Bool(ok), err
	case syntax.IN, syntax.NOT_IN:
		ok, err := contains(t, x, y)
		return starlark.Bool(ok == (op == syntax.IN)), err
	}
	v, err := starlark.Binary(op, x, y)
	if i, ok := v.(starlark.Int); ok && err == nil {
		if _, small := i.Int64(); !small && i.BigInt().BitLen() > maxBits {
			return nil, errBits
		}
	}
	return v, err
}

func contains(t *starlark.Thread, x, y starlark.Value) (bool, error) {
	if tab, ok := y.(*source); ok {
		_, there, err := tab.find(t, x)
		return there, err
	}
	v, err := starlark.Binary(syntax.IN, x, y)
	if err != nil {
		return false, err
	}
	return bool(v.Truth()), nil
}

// binary pays for an operator.
func (m *meter) binary(op syntax.Token, x, y starlark.Value) error {
	if isScalar(x) && isScalar(y) {
		return nil
	}
	switch op {
	case syntax.PLUS:
		return m.fits(shallow(x) + shallow(y))
	case syntax.STAR:
		return m.repeat(x, y)
	case syntax.PERCENT:
		if s, ok := x.(starlark.String); ok {
			return m.format(int64(strings.Count(string(s), "%")), int64(len(s)), y)
		}
	case syntax.IN, syntax.NOT_IN:
		switch y.(type) {
		case *starlark.Dict, *starlark.Set, *source:
			return m.use(x)
		}
	}
	return m.use(x, y)
}

// isScalar tells values that no operator makes large, or looks through.
func isScalar(v starlark.Value) bool {
	switch v := v.(type) {
	case starlark.Bool, starlark.NoneType, starlark.Float:
		return true
	case starlark.Int:
		n, small := v.Int64()
		return small && n < 1<<31 && n > -1<<31
	}
	return false
}

// repeat pays for x * y, of which one may be a string or a list.
func (m *meter) repeat(x, y starlark.Value) error {
	if _, ok := x.(starlark.Int); ok {
		x, y = y, x
	}
	n, ok := y.(starlark.Int)
	if _, number := x.(starlark.Int); number || !ok {
		return m.use(x, y)
	}
	times, small := n.Int64()
	if times <= 0 && small {
		return nil
	}
	if !small || times > maxValue {
		if starlark.Len(x) <= 0 {
			return m.use(x)
		}
		return errLarge
	}
	return m.fits(16 + (shallow(x)-16)*times)
}

// format pays for a text with so many places, at each of which all of v may stand.
func (m *meter) format(places, length int64, v ...starlark.Value) error {
	sum := int64(0)
	for _, one := range v {
		w, err := weigh(one)
		if err != nil {
			return err
		}
		sum += w
	}
	// What is quoted may be four times as long.
	return m.fits(length + 4*(places+1)*sum)
}

// assignOp is what x op= y makes of x; a list is extended in its place.
func assignOp(t *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	word := string(a[0].(starlark.String))
	op := tokenOf()[strings.TrimSuffix(word, "=")]
	x, y := a[1], a[2]
	if _, list := x.(*starlark.List); list && op == syntax.PLUS {
		if _, ok := y.(starlark.Iterable); ok {
			if err := m.spread(y); err != nil {
				return nil, err
			}
			return doPlainly(t, "extend", x, y)
		}
	}
	if _, dict := x.(*starlark.Dict); dict && op == syntax.PIPE {
		if err := m.use(y); err != nil {
			return nil, err
		}
		return doPlainly(t, "union", x, y)
	}
	return binary(t, m, op, x, y)
}

// spread pays for the elements of a list, not for what is in them.
func (m *meter) spread(v starlark.Value) error {
	n := starlark.Len(v)
	if n < 0 {
		return m.use(v)
	}
	return m.fits(16 + 16*int64(n))
}

// spread is what follows * in a call; the interpreter copies it some times.
func spread(_ *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	if err := m.spread(a[0]); err != nil {
		return nil, err
	}
	return a[0], m.pay(64 * int64(max(starlark.Len(a[0]), 0)))
}

// index is x[i].
func index(t *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	if tab, ok := a[0].(*source); ok {
		v, there, err := tab.find(t, a[1])
		if err == nil && !there {
			err = fmt.Errorf("key %v not in %s", a[1], tab)
		}
		return v, err
	}
	if err := m.use(a[1]); err != nil {
		return nil, err
	}
	return doPlainly(t, "index", a...)
}

// setIndex is x[i] = v, told as v, x, i: the order in which they are found.
func setIndex(t *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	if err := m.use(a[2]); err != nil {
		return nil, err
	}
	return doPlainly(t, "put", a[1], a[2], a[0])
}

// setOp is x[i] op= y.
func setOp(t *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	old, err := index(t, m, starlark.Tuple{a[1], a[2]})
	if err != nil {
		return nil, err
	}
	v, err := assignOp(t, m, starlark.Tuple{a[0], old, a[3]})
	if err != nil {
		return nil, err
	}
	return setIndex(t, m, starlark.Tuple{v, a[1], a[2]})
}

// slice is x[from:to:step].
func slice(t *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	if err := m.pay(shallow(a[0])); err != nil {
		return nil, err
	}
	return doPlainly(t, "slice", a...)
}

// dictOf is {key: value, ...}.
func dictOf(_ *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	d := starlark.NewDict(len(a) / 2)
	for i := 0; i < len(a); i += 2 {
		if err := m.use(a[i]); err != nil {
			return nil, err
		}
		if _, there, err := d.Get(a[i]); err != nil || there {
			if there {
				err = fmt.Errorf("duplicate key: %v", a[i])
			}
			return nil, err
		}
		if err := d.SetKey(a[i], a[i+1]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// dictOfPairs is {key: value for ...}, of which the last of two keys counts.
func dictOfPairs(_ *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	list := a[0].(*starlark.List)
	d := starlark.NewDict(list.Len())
	for i := range list.Len() {
		pair := list.Index(i).(starlark.Tuple)
		if err := m.use(pair[0]); err != nil {
			return nil, err
		}
		if err := d.SetKey(pair[0], pair[1]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// setOf is {value for ...}.
func setOf(_ *starlark.Thread, m *meter, a starlark.Tuple) (starlark.Value, error) {
	list := a[0].(*starlark.List)
	s := starlark.NewSet(list.Len())
	for i := range list.Len() {
		if err := m.use(list.Index(i)); err != nil {
			return nil, err
		}
		if err := s.Insert(list.Index(i)); err != nil {
			return nil, err
		}
	}
	return s, nil
}
