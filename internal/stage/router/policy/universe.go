package policy

import (
	"fmt"
	"strings"

	"go.starlark.net/starlark"
)

// universe gives the functions of the language, each of which pays for what it looks
// through; what it makes is at most some times as large.
func universe() starlark.StringDict {
	d := starlark.StringDict{}
	for name, v := range starlark.Universe {
		b, ok := v.(*starlark.Builtin)
		if !ok {
			d[name] = v // None, True, False
			continue
		}
		switch name {
		case "bytes", "dir":
			// Nothing in mail rules asks for them.
			d[name] = withheld(name)
		case "getattr":
			d[name] = starlark.NewBuiltin(name, getattr)
		case "int":
			d[name] = starlark.NewBuiltin(name, func(t *starlark.Thread, _ *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
				if s, ok := first(a).(starlark.String); ok && len(s) > 1000 {
					return nil, errBits
				}
				return b.CallInternal(t, a, kw)
			})
		case "range", "len", "type", "bool":
			d[name] = b // of any size at once
		case "hasattr":
			d[name] = b
		default:
			d[name] = paying(b)
		}
	}
	return d
}

func withheld(name string) *starlark.Builtin {
	return starlark.NewBuiltin(name, func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error) {
		return nil, fmt.Errorf("there is no %s in %s", name, File)
	})
}

// paying is a function that pays for its arguments, and for what it gives.
func paying(b *starlark.Builtin) *starlark.Builtin {
	return starlark.NewBuiltin(b.Name(), func(t *starlark.Thread, _ *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		m := meterOf(t)
		if err := m.use(a...); err != nil {
			return nil, err
		}
		for _, k := range kw {
			if err := m.use(k[1]); err != nil {
				return nil, err
			}
		}
		v, err := b.CallInternal(t, a, kw)
		if err != nil {
			return nil, err
		}
		return v, m.pay(shallow(v))
	})
}

func first(a starlark.Tuple) starlark.Value {
	if len(a) == 0 {
		return starlark.None
	}
	return a[0]
}

// getattr is getattr(x, name, default).
func getattr(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var x, other starlark.Value
	var name string
	if err := starlark.UnpackPositionalArgs(b.Name(), a, kw, 2, &x, &name, &other); err != nil {
		return nil, err
	}
	v, err := attribute(t, meterOf(t), starlark.Tuple{x, starlark.String(name)})
	if err != nil && other != nil {
		return other, nil
	}
	return v, err
}

// attribute is x.name.
func attribute(_ *starlark.Thread, _ *meter, a starlark.Tuple) (starlark.Value, error) {
	x, name := a[0], string(a[1].(starlark.String))
	if has, ok := x.(starlark.HasAttrs); ok && len(name) < 100 {
		v, err := has.Attr(name)
		if err != nil {
			return nil, err
		}
		if b, ok := v.(*starlark.Builtin); ok {
			switch x := x.(type) {
			case starlark.String, *starlark.List, *starlark.Dict, *starlark.Set:
				if !strings.HasPrefix(name, "codepoint") {
					return method(x, b), nil
				}
				v = nil
			case starlark.Bytes:
				v = nil
			}
		}
		if v != nil {
			return v, nil
		}
	}
	return nil, fmt.Errorf("%s has no .%.100s field or method", x.Type(), name)
}

// method is a method of a value that pays before it does something.
func method(x starlark.Value, b *starlark.Builtin) *starlark.Builtin {
	return starlark.NewBuiltin(b.Name(), func(t *starlark.Thread, _ *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		if err := meterOf(t).method(x, b.Name(), a, kw); err != nil {
			return nil, err
		}
		return b.CallInternal(t, a, kw)
	}).BindReceiver(x)
}

func (m *meter) method(x starlark.Value, name string, a starlark.Tuple, kw []starlark.Tuple) error {
	var args []starlark.Value
	args = append(args, a...)
	for _, k := range kw {
		args = append(args, k[1])
	}
	switch x := x.(type) {
	case starlark.String:
		return m.stringMethod(string(x), name, args)
	case *starlark.List:
		switch name {
		case "append", "clear":
			return m.pay(16)
		case "insert", "pop":
			return m.pay(16 + int64(x.Len()))
		case "extend":
			if len(a) == 1 {
				return m.spread(a[0])
			}
		}
	case *starlark.Dict:
		switch name {
		case "items", "keys", "values":
			return m.pay(64 * int64(x.Len()+1))
		case "get", "pop", "popitem", "clear":
			return m.use(args...)
		case "setdefault":
			return m.use(first(a))
		}
	case *starlark.Set:
		switch name {
		case "add", "discard", "remove", "pop", "clear":
			return m.use(args...)
		}
	}
	if err := m.use(x); err != nil {
		return err
	}
	return m.use(args...)
}

func (m *meter) stringMethod(s, name string, args []starlark.Value) error {
	n := int64(len(s))
	switch name {
	case "format":
		return m.format(int64(strings.Count(s, "{")), n, args...)
	case "join":
		if len(args) == 1 {
			if err := m.use(args[0]); err != nil {
				return err
			}
			return m.fits(n * int64(max(starlark.Len(args[0]), 0)))
		}
	case "replace":
		if len(args) >= 2 {
			old, _ := starlark.AsString(args[0])
			with, _ := starlark.AsString(args[1])
			return m.fits(n + int64(strings.Count(s, old))*int64(len(with)))
		}
	case "split", "rsplit", "splitlines", "elems":
		if err := m.pay(16 * n); err != nil {
			return err
		}
	}
	if err := m.pay(16 + 3*n); err != nil {
		return err
	}
	return m.use(args...)
}
