package policy

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"go.starlark.net/starlark"
)

// Program is router.star at one moment, frozen. Many goroutines may use it.
type Program struct {
	c         *Config
	path      string
	message   starlark.Callable // nil: it has none
	recipient starlark.Callable
	tables    []*source
	patterns  patterns
	refs      atomic.Int64 // of who uses it; the policy's own is one
}

// Release ends a use; the last one closes the tables. p may be nil.
func (p *Program) Release() (err error) {
	if p == nil || p.refs.Add(-1) > 0 {
		return nil
	}
	for _, s := range p.tables {
		err = errors.Join(err, s.close())
	}
	return err
}

// Error is a program that failed on a message.
type Error struct {
	Where string // router.star:LINE:COL, the innermost place in the program
	What  string // message or recipient
	Text  string
	Trace string // the calls that led there, outermost first
}

func (e *Error) Error() string {
	s := e.Text
	if e.Where != "" {
		s = e.Where + ": " + s
	}
	if e.Trace != "" {
		s += " (" + e.Trace + ")"
	}
	return s
}

// Session is one message's way through a program. For one goroutine.
type Session struct {
	p      *Program
	policy *Policy
	env    *Env
	m      *Message
	object *object
	calls  map[rateKey]int // of rate
}

// Begin starts with a message.
func (p *Policy) Begin(prog *Program, env *Env, m *Message) *Session {
	return &Session{p: prog, policy: p, env: env, m: m, object: m.object(p.c.Hostname), calls: map[rateKey]int{}}
}

// Message asks the program about the message. Its error is an *Error.
func (s *Session) Message(ctx context.Context) (Decision, error) {
	if s.p.message == nil {
		return Decision{}, nil
	}
	return s.call(ctx, "message", s.p.message, s.object)
}

// Recipient asks about one of the envelope's recipients. Its error is an *Error.
func (s *Session) Recipient(ctx context.Context, r *Recipient) (Decision, error) {
	if s.p.recipient == nil {
		return Decision{}, nil
	}
	return s.call(ctx, "recipient", s.p.recipient, s.object, r.object())
}

func (s *Session) call(ctx context.Context, what string, f starlark.Callable, args ...starlark.Value) (d Decision, err error) {
	state := &callState{c: s.p.c, prog: s.p, env: s.env, id: s.m.ID, calls: s.calls}
	if s.policy != nil {
		state.rates = s.policy.rates
	}
	v, err := bounded(ctx, state, what, s.p.c.Steps, func(t *starlark.Thread) (starlark.Value, error) {
		return starlark.Call(t, f, args, nil)
	})
	if err != nil {
		return Decision{}, err
	}
	if d, err = decide(what, v); err != nil {
		e := &Error{What: what, Text: err.Error()}
		if fn, ok := f.(*starlark.Function); ok {
			e.Where = short(fn.Position().Filename()) + fmt.Sprintf(":%d:%d", fn.Position().Line, fn.Position().Col)
		}
		return Decision{}, e
	}
	return d, nil
}

// bounded runs a piece of the program. Whatever it does, it comes back: with an *Error
// where it failed, asked for too much, or made the interpreter panic.
func bounded(ctx context.Context, state *callState, what string, steps int, do func(*starlark.Thread) (starlark.Value, error)) (v starlark.Value, err error) {
	ctx, cancel := context.WithTimeout(ctx, state.c.Time)
	defer cancel()
	state.ctx = ctx
	t := &starlark.Thread{Name: what, Print: func(*starlark.Thread, string) {}}
	t.SetLocal(callKey, state)
	t.SetMaxExecutionSteps(uint64(steps))
	t.OnMaxSteps = func(t *starlark.Thread) {
		t.Cancel(fmt.Sprintf("more than %d steps (POLICYSTEPS): is there an endless loop?", steps))
	}
	defer watch(t, state.c).end()
	defer func() {
		if p := recover(); p != nil {
			state.c.Log.Error("policy-crash", "id", state.id, "reason", fmt.Sprint(p), "stack", string(debug.Stack()),
				"advice", "report it as a defect with "+File)
			v, err = nil, &Error{What: what, Text: fmt.Sprintf("the interpreter panicked: %v", p)}
		}
	}()
	if v, err = do(t); err != nil {
		return nil, failure(what, err)
	}
	return v, nil
}

// failure makes an *Error of the interpreter's, with its back trace: the calls in the
// postmaster's files.
func failure(what string, err error) error {
	e := &Error{What: what, Text: err.Error()}
	eval := (*starlark.EvalError)(nil)
	if !errors.As(err, &eval) {
		return e
	}
	e.Text = strings.TrimPrefix(eval.Msg, "Starlark computation cancelled: ")
	var calls []string
	for _, f := range eval.CallStack {
		if !isProgram(f.Pos) {
			continue
		}
		e.Where = fmt.Sprintf("%s:%d:%d", short(f.Pos.Filename()), f.Pos.Line, f.Pos.Col)
		name := f.Name
		if name == "<toplevel>" {
			name = "the top level"
		}
		calls = append(calls, e.Where+" in "+name)
	}
	if n := len(calls); n > 20 {
		calls = append(append(calls[:10:10], fmt.Sprintf("%d more", n-20)), calls[n-10:]...)
	}
	e.Trace = strings.Join(calls, ", ")
	return e
}

// short returns a path's last element.
func short(file string) string { return file[strings.LastIndexByte(file, '/')+1:] }
