package policy

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// Limits of one call of message or recipient.
const (
	DefaultSteps = 1_000_000
	DefaultTime  = 10 * time.Second
	// maxMemory is how much the memory of the process may grow during a call. Bytes.
	maxMemory = 64 << 20
	// maxGarbage is how much it may grow before garbage is counted too.
	maxGarbage = 512 << 20
	// grace is how long an operation may go on when the call is to end.
	grace = 30 * time.Second
	// firstLook is how long a call takes before it is watched: most take less.
	firstLook = 5 * time.Millisecond
)

// watchdog stops a call that takes too much time or memory. The interpreter stops between
// two of its steps. A single operation that goes on all the same ends the
// process: the message is then tried ROUTERTRIES times and set aside, and other mail is
// routed (docs/router.star.md).
type watchdog struct {
	t       *starlark.Thread
	c       *Config
	start   time.Time
	waiting atomic.Int32 // lookups that the call waits for: others use the memory meanwhile

	mu    sync.Mutex
	timer *time.Timer
	heap  uint64 // at the first look
	large bool   // it was stopped for its memory
	ended bool
}

const watchdogKey = "watchdog"

func watch(t *starlark.Thread, c *Config) *watchdog {
	w := &watchdog{t: t, c: c, start: time.Now()}
	t.SetLocal(watchdogKey, w)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(min(firstLook, c.Time), w.look)
	return w
}

func (w *watchdog) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.timer.Stop()
}

// wait is called before a lookup; the function that it returns, after it.
func wait(t *starlark.Thread) func() {
	w, ok := t.Local(watchdogKey).(*watchdog)
	if !ok {
		return func() {}
	}
	w.waiting.Add(1)
	return func() { w.waiting.Add(-1) }
}

func (w *watchdog) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	took := time.Since(w.start)
	if took >= w.c.Time {
		w.t.Cancel(fmt.Sprintf("longer than %v (POLICYTIME)", w.c.Time))
	}
	next := firstLook
	if w.waiting.Load() > 0 {
		w.heap = 0
	} else {
		if took > w.c.Time+w.c.grace {
			w.c.exit(fmt.Sprintf("%s does not end: an operation has taken %v", w.t.Name, took.Round(time.Millisecond)))
		}
		next += w.memory()
	}
	w.timer.Reset(next)
}

// memory compares the memory in use with that of the first look, garbage not counted, and
// returns how long that took.
func (w *watchdog) memory() (took time.Duration) {
	now := heap()
	if w.heap == 0 {
		w.heap = now
	}
	if w.large || now < w.heap+maxMemory {
		return 0
	}
	start := time.Now()
	if now < w.heap+maxGarbage {
		runtime.GC()
		now = heap()
	}
	if now > w.heap+maxMemory {
		w.t.Cancel(fmt.Sprintf("more than %d MB of memory", maxMemory>>20))
		w.large = true
	}
	return time.Since(start)
}

// repeatName is that of a builtin that no program can write: a NUL is in no name.
const repeatName = "\x00repeat"

// boundRepeats makes "x * y" of a program "repeat(x, y) * 1": one operation of the
// interpreter may make a list of 16 GB, and cannot be stopped.
func boundRepeats(f *syntax.File) {
	syntax.Walk(f, func(n syntax.Node) bool {
		e, ok := n.(*syntax.BinaryExpr)
		if one, done := unit(e); ok && e.Op == syntax.STAR && !done {
			e.X = &syntax.CallExpr{Fn: &syntax.Ident{NamePos: e.OpPos, Name: repeatName}, Lparen: e.OpPos, Args: []syntax.Expr{e.X, e.Y}, Rparen: e.OpPos}
			e.Y = one
		}
		return true
	})
}

// unit returns a literal 1, and reports whether an expression has been bounded.
func unit(e *syntax.BinaryExpr) (one *syntax.Literal, done bool) {
	if e == nil {
		return nil, true
	}
	if call, ok := e.X.(*syntax.CallExpr); ok {
		id, ok := call.Fn.(*syntax.Ident)
		done = ok && id.Name == repeatName
	}
	return &syntax.Literal{Token: syntax.INT, TokenPos: e.OpPos, Raw: "1", Value: int64(1)}, done
}

// repeat is x * y, unless that is too large.
func repeat(_ *starlark.Thread, _ *starlark.Builtin, a starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	for i := range a {
		n, err := starlark.AsInt32(a[1-i])
		if size := starlark.Len(a[i]); size > 0 && (err != nil || n > maxMemory/16/size) {
			if _, number := a[1-i].(starlark.Int); number && (err == nil || a[1-i].(starlark.Int).Sign() > 0) {
				return nil, fmt.Errorf("too large: more than %d MB of memory", maxMemory>>20)
			}
		}
	}
	return starlark.Binary(syntax.STAR, a[0], a[1])
}

// heap returns the memory that values of this process take. Bytes.
func heap() uint64 {
	s := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}

func (c *Config) exitProcess(reason string) {
	c.Log.Error("policy-crash", "reason", reason, "advice", "correct "+File+"; messages that it ends routers with go to postman/")
	os.Exit(exitSoftware)
}

const exitSoftware = 70
