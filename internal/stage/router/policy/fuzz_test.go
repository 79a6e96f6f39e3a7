package policy

import (
	"context"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// seeds are programs of which pieces make others.
func seeds() []string {
	return []string{
		"def message(m):\n    return route('smtp!relay.example')\n",
		"T = table('t')\ndef recipient(m, r):\n    v = T(r.domain) or T.get(r.address, 'x')\n    if v and v in ['a', 'b']:\n        return [add_header('X-A', v), redirect(v + '@' + r.domain)]\n    return None\n",
		"def f(x, *a, **k):\n    return [y * 2 for y in x if y] + list(a) + sorted(k.items())\ndef message(m):\n    l = f([1, 2], 3, b=4)\n    d = {x: str(x) for x in l}\n    d['a'] = d.get('b', 1)\n    d['a'] += 1\n    l += [1]\n    return freeze('flood', '%s %r' % (d, l))\n",
		"def message(m):\n    for i in range(100000):\n        s = 'x' * i\n        t = (s, [s] * 100, {s: s})\n        if t == (s,): break\n    log(s)\n",
		"def recipient(m, r):\n    return drop() if in_network(m.client, '10.0.0.0/8') else accept()\n",
		"def message(m):\n    x = lambda *a: a\n    t = ()\n    for i in range(60): t = x(t, t, *m.recipients)\n    return reject('5.7.1', str(hash(m.sender)) + m.header('subject')[0:3:1])\n",
		"G = set([1, 2])\nif len(G) > 1:\n    G = [0] * 10\ndef message(m):\n    n = 1\n    for i in G: n = (n << 3) * n | i & ~n ^ 5 // (i + 1) % 7\n    return defer('{} {0!r}'.format(n).replace('1', '22').join(['a', 'b']))\n",
	}
}

// run compiles a program and asks it about mail; it fails the test where a rule is broken.
func run(t testing.TB, d *fixture, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(filepath.Join(d.dir, File), []byte(text), 0o644))
	c := d.config()
	c.Steps, c.Time = 20000, 5*time.Second
	start := time.Now()
	p, err := New(c)
	if bad := (*config.Error)(nil); err != nil && !errors.As(err, &bad) {
		t.Fatalf("%T %v, want a *config.Error\n%s", err, err, text)
	}
	if err == nil {
		prog := p.Current()
		s := p.Begin(prog, d.env(), message())
		ask := func(d Decision, err error) {
			if failed := (*Error)(nil); err != nil && !errors.As(err, &failed) {
				t.Fatalf("%T %v, want an *Error\n%s", err, err, text)
			}
			if err != nil && d.Fate.Fate != None {
				t.Fatalf("%s and %v\n%s", d.Fate.Fate, err, text)
			}
		}
		ask(s.Message(context.Background()))
		ask(s.Recipient(context.Background(), to(t, "ann@far.example")))
		assert.Must(t, errors.Join(prog.Release(), p.Close()))
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %v\n%s", took, text)
	}
	if strings.Contains(d.log.String(), "policy-crash") {
		t.Errorf("the interpreter panicked:\n%s\n%s", d.log, text)
	}
}

// Whatever stands in router.star, it is refused, or answers within its limits: nothing
// that it does comes through to the router.
func FuzzProgram(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "load") || strings.Contains(text, "table(") && !strings.Contains(text, "table('t')") {
			return // other files are not its business
		}
		run(t, newFixture(t, map[string]string{"t": "far.example b\n"}), text)
	})
}

// The same for programs that are put together from lines and words of others: most of
// them are programs.
func TestMixedProgramsStayWithinTheirLimits(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 60
	}
	d := newFixture(t, map[string]string{"t": "far.example b\n"})
	random := rand.New(rand.NewSource(1))
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ", "[", " [ ", "]", " ] ", ",", " , ", ".", " . ", ":", " : ").Replace(strings.Join(seeds(), " ")))
	for range rounds {
		all := seeds()
		lines := strings.SplitAfter(all[random.Intn(len(all))], "\n")
		for range 1 + random.Intn(4) {
			i := random.Intn(len(lines))
			switch random.Intn(3) {
			case 0: // a line of another
				other := strings.SplitAfter(all[random.Intn(len(all))], "\n")
				lines[i] = other[random.Intn(len(other))]
			case 1: // another word
				w := strings.Fields(lines[i])
				if len(w) > 0 {
					lines[i] = strings.Replace(lines[i], w[random.Intn(len(w))], words[random.Intn(len(words))], 1)
				}
			case 2: // a line twice
				lines = append(lines[:i+1], lines[i:]...)
			}
		}
		run(t, d, strings.Join(lines, ""))
		if t.Failed() {
			return
		}
	}
}
