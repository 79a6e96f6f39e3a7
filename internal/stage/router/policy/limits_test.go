package policy

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Each program asks for more than it may have: it gets an error, at once and in little
// memory.
func TestGreedyProgramsAreStopped(t *testing.T) {
	tests := map[string]struct{ body, want string }{
		"circle":              {"for i in range(1 << 40): pass", "more than 1000000 steps"},
		"circles in circles":  {"[0 for i in range(10000) for j in range(10000)]", "steps"},
		"string":              {"'x' * (1 << 29)", "too large"},
		"string, other way":   {"(1 << 20) * 'xy'", "too large"},
		"list":                {"[0] * (1 << 27)", "too large"},
		"tuple":               {"(0,) * (1 << 27)", "too large"},
		"doubling":            {"s = 'x'\n    for i in range(40): s = s + s", "too large"},
		"doubling in place":   {"s = 'x'\n    for i in range(40): s += s", "too large"},
		"doubling an element": {"d = {'a': 'x'}\n    for i in range(40): d['a'] += d['a']", "too large"},
		"list in place":       {"l = [0]\n    for i in range(40): l += l", "too large"},
		"extend":              {"l = [0]\n    for i in range(40): l.extend(l)", "too large"},
		"list of a range":     {"list(range(1 << 40))", "too large"},
		"sorted range":        {"sorted(range(1 << 30))", "too large"},
		"set of a range":      {"set(range(1 << 30))", "too large"},
		"spread range":        {"max(*range(1 << 30))", "too large"},
		"sum of ranges":       {"l = []\n    l.extend(range(1 << 30))", "too large"},
		"in place range":      {"l = []\n    l += range(1 << 30)", "too large"},
		"zip":                 {"zip(range(1 << 30), range(1 << 30))", "too large"},
		"enumerate":           {"enumerate(range(1 << 30))", "too large"},
		"in a range of text":  {"'x' in range(1 << 30)", ""},
		"numbers":             {"n = 3\n    for i in range(100): n = n * n", "number too large"},
		"shifts":              {"n = 1\n    for i in range(1000): n = n << 500", "number too large"},
		"digits":              {"int('9' * 100000)", "number too large"},
		"format":              {"('{0}' * 1000).format('x' * 100000)", "too large"},
		"percent":             {"('%s' * 1000) % tuple(['x' * 100000] * 1000)", "too large"},
		"percent, names":      {"('%(a)s' * 1000) % {'a': 'x' * 100000}", "too large"},
		"join":                {"('x' * 1000).join(['y'] * 10000)", "too large"},
		"replace":             {"('x' * 10000).replace('x', 'y' * 1000)", "too large"},
		"replace nothing":     {"('x' * 10000).replace('', 'y' * 1000)", "too large"},
		"written out":         {"l = [0] * 1000\n    for i in range(5): l = [l] * 1000\n    str(l)", "too large"},
		"written, deep":       {"l = []\n    for i in range(50000): l = [l]\n    repr(l)", "nested too deep"},
		"compared":            {"l = [0] * 1000\n    for i in range(5): l = [l] * 1000\n    return l == list(l[:])", "too large"},
		"less":                {"l = [0] * 1000\n    for i in range(5): l = [l] * 1000\n    return l < l[:]", "too large"},
		"in":                  {"l = [0] * 1000\n    for i in range(5): l = [l] * 1000\n    return l in [l[:]]", "too large"},
		"index method":        {"l = [0] * 1000\n    for i in range(5): l = [l] * 1000\n    [l].index(l[:])", "too large"},
		"key":                 {"t = (0,)\n    for i in range(40): t = (t, t)\n    {}[t]", "too large"},
		"key of a literal":    {"t = (0,)\n    for i in range(40): t = (t, t)\n    {t: 1}", "too large"},
		"key of a set":        {"t = (0,)\n    for i in range(40): t = (t, t)\n    set([t])", "too large"},
		"key, comprehension":  {"t = (0,)\n    for i in range(40): t = (t, t)\n    {x: 1 for x in [t]}", "too large"},
		"key, assigned":       {"t = (0,)\n    for i in range(40): t = (t, t)\n    d = {}\n    d[t] = 1", "too large"},
		"key of get":          {"t = (0,)\n    for i in range(40): t = (t, t)\n    {}.get(t)", "too large"},
		"key of setdefault":   {"t = (0,)\n    for i in range(40): t = (t, t)\n    {}.setdefault(t, 1)", "too large"},
		"log":                 {"l = [0] * 1000\n    for i in range(5): l = [l] * 1000\n    log(l)", "too large"},
		"fail":                {"l = [0] * 1000\n    for i in range(5): l = [l] * 1000\n    fail(l)", "too large"},
		"default of getattr":  {"getattr('x', 'y' * 1000)", "has no ."},
		"many strings":        {"l = []\n    for i in range(1000000): l.append('x' * 100000)", "too much memory"},
		"many slices":         {"a = [0] * 60000\n    l = []\n    for i in range(1000000): l.append(a[:])", "too much memory"},
		"many splits":         {"a = 'x ' * 50000\n    l = []\n    for i in range(100000): l.append(a.split(' '))", "too much memory"},
		"many elements":       {"a = 'x' * 60000\n    l = []\n    for i in range(100000): l.append(list(a.elems()))", "too much memory"},
		"code points":         {"list(('x' * 100000).codepoints())", "has no .codepoints"},
		"many keys":           {"d = {i: i for i in range(60000)}\n    l = []\n    for i in range(100000): l.append(d.items())", "too much memory"},
		"many arguments":      {"f = lambda *a: a\n    x = [0] * 60000\n    l = []\n    for i in range(100000): l.append(f(*x))", "too much memory"},
		"actions":             {"return [drop] and [add_header('X-A', 'b') for i in range(1000)]", "more than 200 actions"},
		"header":              {"return [add_header('X-A', 'b' * 900) for i in range(100)]", "more than 64 kB of header fields"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && strings.HasPrefix(name, "many ") {
				t.Skip("it takes all the memory that it may")
			}
			d := newDesk(t, map[string]string{File: "def message(m):\n    " + tt.body + "\n"})
			d.open(t)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := d.session(t, message()).Message(context.Background())
			runtime.ReadMemStats(&after)
			if tt.want == "" && err == nil {
				return
			}
			if failed := (*Error)(nil); !errors.As(err, &failed) || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 3000 {
				t.Errorf("got %.3000v, want %q", err, tt.want)
			}
			// The limits and what the race detector adds.
			if took := time.Since(start); took > 2*DefaultTime {
				t.Errorf("it took %v", took)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 6*maxMemory {
				t.Errorf("it had %d MB", got>>20)
			}
		})
	}
}

func TestStepsAndTimeAreSettings(t *testing.T) {
	c := newDesk(t, map[string]string{File: "def message(m):\n    for i in range(1 << 40): pass\n"})
	conf := c.config()
	conf.Steps = 1000
	p, err := New(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c.p = p
	if _, err := c.session(t, message()).Message(context.Background()); err == nil || !strings.Contains(err.Error(), "more than 1000 steps (POLICYSTEPS)") {
		t.Errorf("got %v, want the limit of steps", err)
	}
	conf.Steps, conf.Time = 1<<40, 30*time.Millisecond
	if c.p, err = New(conf); err != nil {
		t.Fatal(err)
	}
	defer c.p.Close()
	if _, err := c.session(t, message()).Message(context.Background()); err == nil || !strings.Contains(err.Error(), "longer than 30ms (POLICYTIME)") {
		t.Errorf("got %v, want the limit of time", err)
	}
}
