package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"zmailer/internal/run/config"
)

// Bounds of the files.
const (
	maxSource = 128 << 10 // bytes of one
	maxFiles  = 20        // with those that are loaded
)

// language is Starlark as it is, with sets and if and for at the top level.
func language() *syntax.FileOptions { return &syntax.FileOptions{Set: true, TopLevelControl: true} }

// predeclared are the names that every file knows besides the language's own.
var predeclared = sync.OnceValue(func() starlark.StringDict {
	d := functions()
	maps.Copy(d, actions())
	d[containerName] = starlark.NewBuiltin(containerName, container)
	d[repeatName] = starlark.NewBuiltin(repeatName, repeat)
	d.Freeze()
	return d
})

// compiler reads router.star and what it loads.
type compiler struct {
	c       *Config
	state   *callState
	seen    map[string]signature
	modules map[string]*module
	texts   map[string][]byte // of the files that were read
	kept    map[string][]byte // they are read in place of the files; nil: the files are
}

type module struct {
	globals starlark.StringDict
	err     error
}

// compile reads the program; nil: there is none. seen are the files that it is made of,
// also of one that cannot be used. Its error is a *config.Error.
func compile(c Config) (p *Program, seen map[string]signature, err error) {
	k, p, err := build(c, nil)
	if err == nil && c.Keeper != nil {
		main := filepath.Join(c.Dir, File)
		bundle := []byte(nil)
		if p != nil {
			if bundle, err = json.Marshal(k.texts); err != nil {
				return p, k.seen, nil // it is not kept
			}
		}
		c.Keeper.Good(main, bundle, uint32(os.Geteuid()), nil)
	}
	return p, k.seen, err
}

// compileKept makes a program of the texts that compile had kept; nil: they are of no use.
func compileKept(c Config, bundle []byte) *Program {
	texts := map[string][]byte{}
	if err := json.Unmarshal(bundle, &texts); err != nil {
		return nil
	}
	_, p, err := build(c, texts)
	if err != nil {
		return nil
	}
	return p
}

func build(c Config, kept map[string][]byte) (*compiler, *Program, error) {
	main := filepath.Join(c.Dir, File)
	k := &compiler{c: &c, seen: map[string]signature{}, modules: map[string]*module{}, texts: map[string][]byte{}, kept: kept}
	sig, _ := sign(main, c.Now())
	k.seen[main] = sig
	if !sig.exists && kept == nil {
		return k, nil, nil
	}
	p := &Program{c: &c, path: main}
	p.refs.Store(1)
	k.state = &callState{c: &c, prog: p, top: true}
	globals, err := k.module(main)
	if err == nil {
		err = p.entries(globals)
	}
	if err != nil {
		return k, nil, errors.Join(err, p.Release())
	}
	return k, p, nil
}

// entries finds the functions that the router calls.
func (p *Program) entries(globals starlark.StringDict) error {
	for _, e := range []struct {
		name   string
		params int
		to     *starlark.Callable
	}{{"message", 1, &p.message}, {"recipient", 2, &p.recipient}} {
		v, ok := globals[e.name]
		if !ok {
			continue
		}
		f, ok := v.(*starlark.Function)
		if !ok {
			return &config.Error{File: p.path, Reason: fmt.Sprintf("%s is a value of type %s, want a function", e.name, v.Type())}
		}
		needed := f.NumParams()
		for i := range f.NumParams() {
			if f.ParamDefault(i) != nil {
				needed--
			}
		}
		if needed != e.params || f.HasKwargs() || f.HasVarargs() {
			pos := f.Position()
			want := "message(m)"
			if e.params == 2 {
				want = "recipient(m, r)"
			}
			return &config.Error{File: pos.Filename(), Line: int(pos.Line), Column: int(pos.Col), Reason: "want " + want}
		}
		*e.to = f
	}
	if p.message == nil && p.recipient == nil {
		return &config.Error{File: p.path, Reason: "defines neither message(m) nor recipient(m, r)"}
	}
	return nil
}

// module runs one file, once.
func (k *compiler) module(path string) (starlark.StringDict, error) {
	if m, ok := k.modules[path]; ok {
		return m.globals, m.err
	}
	if len(k.modules) >= maxFiles {
		return nil, &config.Error{File: path, Reason: fmt.Sprintf("more than %d files", maxFiles)}
	}
	m := &module{}
	k.modules[path] = m
	m.err = &config.Error{File: path, Reason: "files load one another in a circle"}
	globals, err := k.run(path)
	m.globals, m.err = globals, err
	return globals, err
}

func (k *compiler) run(path string) (starlark.StringDict, error) {
	text, err := k.read(path)
	if err != nil {
		return nil, err
	}
	prog, err := k.translate(path, text)
	if err != nil {
		return nil, err
	}
	var globals starlark.StringDict
	// The top level may prepare what the calls then only look at.
	_, err = bounded(context.Background(), k.state, "the top level", 2*DefaultSteps, func(t *starlark.Thread) (starlark.Value, error) {
		t.Load = k.load
		globals, err = prog.Init(t, predeclared())
		return starlark.None, err
	})
	if err != nil {
		return nil, configError(path, err)
	}
	globals.Freeze()
	return globals, nil
}

// load is load("x.star", ...): a file beside router.star.
func (k *compiler) load(t *starlark.Thread, name string) (starlark.StringDict, error) {
	if !strings.HasSuffix(name, ".star") || name != filepath.Base(name) || name[0] == '.' {
		return nil, fmt.Errorf("want the name of a file beside %s that ends in .star", File)
	}
	return k.module(filepath.Join(k.c.Dir, name))
}

// read reads a file and takes down its state before that.
func (k *compiler) read(path string) ([]byte, error) {
	bad := func(reason string, err error) ([]byte, error) {
		if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
			err = perr.Err
		}
		return nil, &config.Error{File: path, Reason: reason, Err: err}
	}
	if k.kept != nil {
		text, ok := k.kept[path]
		if !ok {
			return bad("is not among the copies", nil)
		}
		return text, nil
	}
	sig, _ := sign(path, k.c.Now())
	k.seen[path] = sig
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return bad("cannot be read", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return bad("cannot be read", err)
	case !info.Mode().IsRegular():
		return bad("is no regular file", nil)
	case info.Mode().Perm()&0o002 != 0:
		return bad("may be written by everybody, who could then redirect all mail: chmod o-w", nil)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	if err != nil {
		return bad("cannot be read", err)
	}
	if len(b) > maxSource {
		return bad(fmt.Sprintf("has more than %d kB: put data into a table", maxSource>>10), nil)
	}
	// The scanner takes it for the end of the file.
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return nil, &config.Error{File: path, Line: 1 + bytes.Count(b[:i], []byte("\n")), Reason: "byte 0x00: this is no text"}
	}
	k.texts[path] = b
	return b, nil
}

func (k *compiler) translate(path string, text []byte) (*starlark.Program, error) {
	f, err := language().Parse(path, text, 0)
	if err != nil {
		return nil, configError(path, err)
	}
	askContainers(f)
	boundRepeats(f)
	prog, err := starlark.FileProgram(f, predeclared().Has)
	if err != nil {
		return nil, configError(path, err)
	}
	if path == filepath.Join(k.c.Dir, File) {
		err = lint(f)
	}
	return prog, err
}

func at(p syntax.Position, text string) error {
	return &config.Error{File: p.Filename(), Line: int(p.Line), Column: int(p.Col), Reason: text}
}

// configError names file, line and column of what the interpreter does not take. Of
// several undefined names all are reported.
func configError(path string, err error) error {
	if done := (*config.Error)(nil); errors.As(err, &done) {
		return err
	}
	if list := (resolve.ErrorList)(nil); errors.As(err, &list) {
		var all []error
		for _, e := range list[:min(len(list), 10)] {
			all = append(all, at(e.Pos, e.Msg))
		}
		return errors.Join(all...)
	}
	if one := (syntax.Error{}); errors.As(err, &one) {
		return at(one.Pos, one.Msg)
	}
	out := &config.Error{File: path, Reason: err.Error()}
	if failed := (*Error)(nil); errors.As(err, &failed) {
		// The innermost place may be in a file that was loaded.
		part := strings.Split(failed.Where, ":")
		if n := len(part); n >= 3 {
			fmt.Sscan(part[n-2], &out.Line)
			fmt.Sscan(part[n-1], &out.Column)
			out.File = filepath.Join(filepath.Dir(path), strings.Join(part[:n-2], ":"))
			out.Reason = failed.Text
			if strings.Count(failed.Trace, ", ") > 0 {
				out.Reason += " (" + failed.Trace + ")"
			}
		}
	}
	return out
}
