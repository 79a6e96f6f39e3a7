package policy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// source is a table that a program has declared: t(key), t.get(key, default), key in t.
type source struct {
	name string
	kind text.Kind // of which its keys have the form; "": any
	file *config.File[map[string]string]
	tab  table.Table // nil: it is a file
}

func (s *source) String() string        { return fmt.Sprintf("table(%q)", s.name) }
func (s *source) Type() string          { return "table" }
func (s *source) Freeze()               {}
func (s *source) Truth() starlark.Bool  { return true }
func (s *source) Hash() (uint32, error) { return starlark.String(s.name).Hash() }
func (s *source) Name() string          { return "table" }
func (s *source) AttrNames() []string   { return []string{"get"} }

func (s *source) Attr(name string) (starlark.Value, error) {
	if name != "get" {
		return nil, nil
	}
	return starlark.NewBuiltin("get", func(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		var key, other starlark.Value = nil, starlark.None
		if err := starlark.UnpackArgs(b.Name(), a, kw, "key", &key, "default?", &other); err != nil {
			return nil, err
		}
		v, ok, err := s.find(t, key)
		if err != nil || ok {
			return v, err
		}
		return other, nil
	}), nil
}

// CallInternal is t(key): the value, None if there is no such key.
func (s *source) CallInternal(t *starlark.Thread, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var key starlark.Value
	if err := starlark.UnpackArgs("table", a, kw, "key", &key); err != nil {
		return nil, err
	}
	v, _, err := s.find(t, key)
	return v, err
}

// find looks a key up. An error means that the answer is unknown now.
func (s *source) find(t *starlark.Thread, key starlark.Value) (starlark.Value, bool, error) {
	k, ok := starlark.AsString(key)
	if !ok {
		return nil, false, fmt.Errorf("%s: the key is a value of type %s, want a string", s, key.Type())
	}
	c := callOf(t)
	if err := c.asking(); err != nil {
		return nil, false, fmt.Errorf("%s %w", s, err)
	}
	defer wait(t)()
	k = strings.ToLower(k)
	if s.kind != "" {
		if norm, err := text.Key(s.kind, k); err == nil {
			k = norm
		}
	}
	if s.file != nil {
		v, ok := s.file.Current()[k]
		if !ok {
			return starlark.None, false, nil
		}
		return starlark.String(v), true, nil
	}
	if c.rates == nil {
		return starlark.None, false, nil // a check: the table may be anywhere
	}
	var w table.Waiter = table.NoWaiter{}
	if c.env != nil && c.env.Waiter != nil {
		w = c.env.Waiter
	}
	v, ok, err := table.Ask(c.ctx, s.tab, k, w)
	if err != nil {
		return nil, false, fmt.Errorf("look up %s: %w", k, err)
	}
	if !ok {
		return starlark.None, false, nil
	}
	return starlark.String(oneLine(v.Text)), true, nil
}

// maxLine bounds a line of a text table. Bytes.
const maxLine = 1 << 20

// maxTables bounds what one program may open.
const maxTables = 100

// containerName is that of a builtin that no program can write: a NUL is in no name.
const containerName = "\x00container"

// askContainers makes "key in T" of a program "key in container(T)": the interpreter gives
// an operator no thread, and so no time limit for the lookup.
func askContainers(f *syntax.File) {
	syntax.Walk(f, func(n syntax.Node) bool {
		if e, ok := n.(*syntax.BinaryExpr); ok && (e.Op == syntax.IN || e.Op == syntax.NOT_IN) {
			e.Y = &syntax.CallExpr{Fn: &syntax.Ident{NamePos: e.OpPos, Name: containerName}, Lparen: e.OpPos, Args: []syntax.Expr{e.Y}, Rparen: e.OpPos}
		}
		return true
	})
}

// inThread is a table as one call of the program asks it.
type inThread struct {
	*source
	t *starlark.Thread
}

// Has implements starlark.Container.
func (i inThread) Has(key starlark.Value) (bool, error) {
	_, found, err := i.find(i.t, key)
	return found, err
}

// container returns the value itself, or a table that can be asked.
func container(t *starlark.Thread, _ *starlark.Builtin, a starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	if s, ok := a[0].(*source); ok {
		return inThread{s, t}, nil
	}
	return a[0], nil
}

// declare is table(source), at the top level.
func declare(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var name string
	if err := starlark.UnpackArgs(b.Name(), a, kw, "source", &name); err != nil {
		return nil, err
	}
	c := callOf(t)
	if !c.top {
		return nil, errors.New("table: declare it at the top level, in a line of its own, so that it is opened once: VIP = table(\"vip\")")
	}
	for _, s := range c.prog.tables {
		if s.name == name {
			return s, nil
		}
	}
	if len(c.prog.tables) >= maxTables {
		return nil, fmt.Errorf("table: more than %d tables", maxTables)
	}
	s, err := openSource(name, c.c)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	c.prog.tables = append(c.prog.tables, s)
	return s, nil
}

func openSource(name string, c *Config) (*source, error) {
	from, err := table.Parse(name, c.Dir)
	if err != nil {
		return nil, err
	}
	s := &source{name: name}
	base := filepath.Base(from.Rest)
	if kind := text.Kind(strings.TrimSuffix(base, filepath.Ext(base))); slices.Contains(text.Kinds(), kind) {
		s.kind = kind
	}
	if from.Scheme == "file" {
		s.file, err = config.OpenFile(from.Rest, s.parse, config.FileOptions{Required: true, Keeper: c.Keeper, Now: c.Now, Log: c.Log})
		return s, err
	}
	o := c.Source
	if from.Scheme != "db" {
		o.Name = "policy" // the map that a server is asked for
	}
	s.tab, err = table.Open(name, o)
	return s, err
}

// parse reads a text table: the known ones in their own form, any other as lines of a
// key, a colon or blanks, and a value.
func (s *source) parse(file string, content []byte) (map[string]string, error) {
	m := map[string]string{}
	if s.kind != "" {
		err := text.Scan(s.kind, file, bytes.NewReader(content), func(e text.Entry) error {
			if _, twice := m[e.Key]; !twice {
				m[e.Key] = oneLine(e.Text)
			}
			return nil
		})
		return m, err
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, maxLine)
	n, where := 0, map[string]int{}
	var wrong config.Mistakes
	for lines.Scan() {
		n++
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.IndexAny(line, " \t")
		if end < 0 {
			end = len(line)
		}
		key := strings.ToLower(strings.TrimSuffix(line[:end], ":"))
		if key == "" {
			wrong.Add(&config.Error{File: file, Line: n, Reason: "no key before the colon"})
			continue
		}
		if first, twice := where[key]; twice {
			wrong.Add(config.Duplicate(file, n, key, first))
			continue
		}
		where[key] = n
		m[key] = strings.TrimSpace(line[end:])
	}
	if err := lines.Err(); err != nil {
		wrong.Add(&config.Error{File: file, Line: n + 1, Reason: "cannot be read", Err: err})
	}
	return m, wrong.Err()
}

// oneLine returns a value that went on over several lines.
func oneLine(s string) string {
	if !strings.Contains(s, "\n") {
		return s
	}
	return human.OneLine(s)
}

func (s *source) close() error {
	if s.tab == nil {
		return nil
	}
	return s.tab.Close()
}
