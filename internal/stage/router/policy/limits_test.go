package policy

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.starlark.net/starlark"

	"zmailer/internal/run/assert"
)

// A program that runs away gets an error: the message is deferred, and the router goes on.
func TestProgramThatRunsAwayIsStopped(t *testing.T) {
	tests := map[string]struct{ body, want string }{
		"endless loop":       {"for i in range(1 << 40): pass", "POLICYSTEPS"},
		"nested loops":       {"[0 for i in range(10000) for j in range(10000)]", "POLICYSTEPS"},
		"string too long":    {"'x' * 10000000000", "too large"},
		"list too long":      {"x = 1000000000 * [0] * 2", "too large"},
		"string that grows":  {"s = 'x'\n    for i in range(1000000): s = s + s", "MB of memory"},
		"element that grows": {"d = {'a': 'x'}\n    for i in range(1000000): d['a'] += d['a']", "MB of memory"},
		"list that grows":    {"l = [0]\n    for i in range(1000000): l += l", "MB of memory"},
		"many strings":       {"l = []\n    for i in range(100000): l.append('x' * 10000 + str(i))", "MB of memory"},
		"many splits":        {"a = 'x ' * 50000\n    l = []\n    for i in range(100000): l.append(a.split(' '))", "MB of memory"},
		"actions":            {"return [add_header('X-A', 'b') for i in range(1000)]", "more than 200 actions"},
		"header":             {"return [add_header('X-A', 'b' * 900) for i in range(100)]", "more than 64 kB of header fields"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t, map[string]string{File: "def message(m):\n    " + tt.body + "\n"})
			d.open(t)
			start := time.Now()
			_, err := d.session(t, message()).Message(context.Background())
			if failed := (*Error)(nil); !errors.As(err, &failed) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %.3000v, want %q", err, tt.want)
			}
			if took := time.Since(start); took > 2*DefaultTime {
				t.Errorf("it took %v", took)
			}
			var m runtime.MemStats
			runtime.GC()
			if runtime.ReadMemStats(&m); m.HeapAlloc > maxGarbage {
				t.Errorf("%d MB are left in use", m.HeapAlloc>>20)
			}
		})
	}
}

// An operation that the interpreter cannot stop ends the process, so that other mail is
// routed again.
func TestOperationThatCannotBeStoppedEndsTheProcess(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m):\n    t = (0,)\n    for i in range(27): t = (t, t)\n    {}.get(t)\n"})
	c := d.config()
	var ended atomic.Bool
	c.Time, c.grace, c.exit = time.Millisecond, time.Millisecond, func(string) { ended.Store(true) }
	p, err := New(c)
	assert.Must(t, err)
	defer p.Close()
	d.p = p
	_, err = d.session(t, message()).Message(context.Background())
	if failed := (*Error)(nil); err != nil && !errors.As(err, &failed) {
		t.Errorf("got %T %v", err, err)
	}
	if !ended.Load() {
		t.Error("the process goes on with it")
	}
}

// Waiting for a lookup does not end the process, however late its answer comes.
func TestSlowLookupDoesNotEndTheProcess(t *testing.T) {
	exits := 0
	thread := &starlark.Thread{}
	w := watch(thread, &Config{Time: time.Minute, grace: time.Second, exit: func(string) { exits++ }})
	defer w.end()
	w.start = w.start.Add(-time.Hour)
	answered := wait(thread)
	if w.look(); exits != 0 {
		t.Error("the process ends while a lookup is waited for")
	}
	answered()
	if w.look(); exits == 0 {
		t.Error("an hour in an operation does not end the process")
	}
}

func TestStepsAndTimeAreSettings(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m):\n    for i in range(1 << 40): pass\n"})
	for setting, change := range map[string]func(*Config){
		"1000 steps (POLICYSTEPS)": func(c *Config) { c.Steps = 1000 },
		"30ms (POLICYTIME)":        func(c *Config) { c.Steps, c.Time = 1<<40, 30*time.Millisecond },
	} {
		c := d.config()
		change(&c)
		p, err := New(c)
		assert.Must(t, err)
		d.p = p
		if _, err := d.session(t, message()).Message(context.Background()); err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("got %v, want the limit of %s", err, setting)
		}
		t.Cleanup(func() { p.Close() })
	}
}
