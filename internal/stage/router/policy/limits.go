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
)

// Limits of one call of message or recipient.
const (
	DefaultSteps = 1_000_000
	DefaultTime  = 10 * time.Second
	// maxMemory is how much the memory of the process may grow during a call. Bytes.
	maxMemory = 64 << 20
	// maxUnstopped is how much it may grow while an operation goes on all the same.
	maxUnstopped = 1 << 30
	// maxGarbage is how much it may grow before garbage is told from values.
	maxGarbage = 512 << 20
	// grace is how long an operation may go on when the call is to end.
	grace = 5 * time.Second
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
	heap  uint64    // at the first look
	large time.Time // when it was stopped for its memory; zero: it was not
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
	if now < w.heap+maxMemory {
		return 0
	}
	start := time.Now()
	if !w.large.IsZero() {
		if now > w.heap+maxUnstopped && start.Sub(w.large) > w.c.grace {
			w.c.exit(fmt.Sprintf("%s does not end: an operation has taken %d MB", w.t.Name, (now-w.heap)>>20))
		}
		return 0
	}
	if now < w.heap+maxGarbage {
		runtime.GC()
		now = heap()
	}
	if now > w.heap+maxMemory {
		w.t.Cancel(fmt.Sprintf("more than %d MB of memory", maxMemory>>20))
		w.large = time.Now()
	}
	return time.Since(start)
}

// heap is the memory that values of this process take. Bytes.
func heap() uint64 {
	s := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}

// exitProcess ends the process.
func (c *Config) exitProcess(reason string) {
	c.Log.Error("policy-crash", "reason", reason, "advice", "correct "+File+"; messages that it ends routers with go to postman/")
	os.Exit(exitSoftware)
}

const exitSoftware = 70
