package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
)

// fixture is a configuration directory with a program.
type fixture struct {
	*testing.T
	dir string
	log *logtest.Buffer
	now time.Time
	p   *Policy
}

func newFixture(t testing.TB, files map[string]string) *fixture {
	d := &fixture{dir: t.TempDir(), log: &logtest.Buffer{}, now: time.Now()}
	if tt, ok := t.(*testing.T); ok {
		d.T = tt
	}
	for name, text := range files {
		assert.Must(t, os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o644))
	}
	return d
}

func (d *fixture) config() Config {
	return Config{Dir: d.dir, Hostname: "mta.example", Now: func() time.Time { return d.now }, Log: slog.New(slog.NewTextHandler(d.log, nil))}
}

func (d *fixture) open(t testing.TB) {
	t.Helper()
	p := assert.Get(New(d.config()))(t)
	t.Cleanup(func() {
		assert.NoError(t, p.Close())
	})
	d.p = p
}

// session begins with a message.
func (d *fixture) session(t testing.TB, m *Message) *Session {
	t.Helper()
	prog := d.p.Current()
	if prog == nil {
		t.Fatal("there is no program")
	}
	t.Cleanup(func() {
		assert.NoError(t, prog.Release())
	})
	return d.p.Begin(prog, d.env(), m)
}

func (d *fixture) env() *Env {
	return &Env{
		IsLocal: func(_ context.Context, domain string) (bool, error) {
			if domain == "unknown.example" {
				return false, errors.New("localnames cannot be read")
			}
			return domain == "mta.example", nil
		},
		Resolve: func(_ context.Context, a string, give func(channel, host, user string) error) error {
			for i := range strings.Count(a, "x") + 1 {
				if err := give("smtp", fmt.Sprintf("h%d.example", i), a); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func message() *Message {
	return &Message{
		ID: "S1", Sender: address.Mailbox{Local: "Bond", Domain: "MTA.example"}, Size: 1234,
		Accepted: time.Date(2026, 11, 22, 13, 14, 15, 0, time.Local), UID: 1007, Login: "bond",
		Header:     envelope.Fields([]byte("From: bond@mta.example\nX-Tag: one\nX-Tag: two\n  folded\nSubject: \xff\n")),
		Recipients: []string{"ann@far.example", "q"},
	}
}

func to(t testing.TB, s string) *Recipient {
	t.Helper()
	m := assert.Get(address.Parse(s))(t)
	d := domainOf(m, "mta.example")
	return &Recipient{Address: m, Domain: d, Local: d == "mta.example"}
}

// one runs a program with one function on a message and gives its decision.
func one(t *testing.T, text string) (Decision, error) {
	t.Helper()
	d := newFixture(t, map[string]string{File: text})
	d.open(t)
	s := d.session(t, message())
	if s.p.recipient != nil {
		return s.Recipient(context.Background(), to(t, "ann@far.example"))
	}
	return s.Message(context.Background())
}

func TestNoProgramDecidesNothing(t *testing.T) {
	d := newFixture(t, nil)
	d.open(t)
	if p := d.p.Current(); p != nil {
		t.Errorf("got %v, want none", p)
	}
	if err := (*Policy)(nil).Close(); err != nil || (*Policy)(nil).Current() != nil {
		t.Error("no policy is no empty one")
	}
}

// The cases of package route have all actions; these are other ways to write them.
func TestWhatActionsMean(t *testing.T) {
	for program, want := range map[string][]Fate{
		"def message(m): pass":                                            nil,
		"def message(m): return None":                                     nil,
		"def message(m): return route('smtp', '[192.0.2.1]:2525')":        {Route},
		"def message(m): return freeze('flood')":                          {Freeze},
		"def message(m): return redirect(['a@b.example'] * 7)":            {Redirect},
		"def message(m): return drop(), None, copy('x@y.example')":        {Drop, Copy},
		"def message(m, x=1): return [set_sender('a@b.example'), drop()]": {SetSender, Drop},
	} {
		var got []Fate
		for _, a := range assert.Get(one(t, program))(t).Actions {
			got = append(got, a.Fate)
			assert.Equal(t, a.Rule(), "router.star:1", "rule")
		}
		assert.Same(t, got, want, program)
	}
}

func TestDecisionHasOneFateAndItsEdits(t *testing.T) {
	d := assert.Get(one(t, "def recipient(m, r):\n    return [add_header('X-A', 'b'), copy('x@y.example', 'z@y.example'),\n        route('smtp!h')]"))(t)
	if d.Fate.Fate != Route || d.Fate.Host != "h" || d.Fate.Rule() != "router.star:3" || len(d.Edits) != 1 || d.Edits[0].Value != "b" || len(d.Copies) != 2 {
		t.Errorf("got %+v", d)
	}
}

// Each program fails on the message, with the place where it does.
func TestFailuresNameTheirPlace(t *testing.T) {
	tests := map[string][2]string{
		"division":            {"def message(m):\n    x = 0\n    return 1 // x", "router.star:3:14: floored division by zero (router.star:3:14 in message)"},
		"in a function":       {"def f(x):\n    return x['a']\n\ndef message(m):\n    return f({})", "router.star:2:13: key \"a\" not in dict (router.star:5:13 in message, router.star:2:13 in f)"},
		"fail":                {"def message(m):\n    fail('no way')", "router.star:2:9: fail: no way"},
		"string":              {"def message(m):\n    return str(m.size)", "router.star:1:1: message returned a value of type string where None, an action or a list of actions is wanted"},
		"list in a list":      {"def message(m):\n    return [[drop()]]", "message returned a value of type list"},
		"two fates":           {"def message(m):\n    return [drop(),\n        accept()]", "two decisions: drop in line 2 and accept in line 3"},
		"bad code":            {"def message(m):\n    return reject('550', 'x')", `router.star:2:18: reject: "550" is no status code of a failure`},
		"temporary":           {"def message(m):\n    return reject('4.7.1', 'x')", "no status code of a failure"},
		"no reason":           {"def message(m):\n    return reject('5.7.1', ' ')", "the sender is to learn why"},
		"newline":             {"def message(m):\n    return reject('5.7.1', 'a\\nb')", "control character 0x0a"},
		"bad route":           {"def message(m):\n    return route('relay.example')", "want channel!host"},
		"blank in a host":     {"def message(m):\n    return route('smtp!a b')", "blank or control character"},
		"route to a pipe":     {"def message(m):\n    return route('pipe!x')", "channel pipe is not for programs"},
		"route to error":      {"def message(m):\n    return route('error!x')", "use reject"},
		"bad cause":           {"def message(m):\n    return freeze('../x')", "want lower-case letters"},
		"bad address":         {"def message(m):\n    return redirect('a b@c')", "router.star:2:20: redirect: "},
		"null address":        {"def message(m):\n    return redirect('<>')", "redirect: "},
		"no address":          {"def message(m):\n    return redirect([])", "0 addresses"},
		"number as address":   {"def message(m):\n    return copy(1)", "copy: want addresses, got a value of type int"},
		"bad field":           {"def message(m):\n    return add_header('X A', 'b')", `"X A" is no field name`},
		"colon in a field":    {"def message(m):\n    return add_header('X:', 'b')", "is no field name"},
		"header injection":    {"def message(m):\n    return add_header('X-A', 'b\\nBcc: c')", "control character"},
		"trace field":         {"def message(m):\n    return remove_header('received')", "messages in a circle are known by it"},
		"bad glob":            {"def message(m):\n    return remove_header('x-[')", "syntax error in pattern"},
		"sender alone":        {"def message(m):\n    return set_sender('bond')", "want an address with its domain"},
		"two senders":         {"def message(m):\n    return [set_sender('a@b.example'), set_sender('c@b.example')]", "set_sender twice: in line 2 and in line 2"},
		"unknown attribute":   {"def f(m):\n    return m.sendr\ndef message(m):\n    return f(m)", "router.star:2:13: message has no .sendr field or method"},
		"unknown argument":    {"def message(m):\n    return route(too='smtp!h')", "unexpected keyword argument"},
		"lookup of a number":  {"T = table('t')\ndef message(m):\n    return T(1)", "the key is a value of type int"},
		"table in a function": {"def message(m):\n    return table('t')", "declare it at the top level"},
		"lookup that fails":   {"def message(m):\n    is_local('a@unknown.example')", "router.star:2:13: localnames cannot be read"},
		"very many places":    {"def message(m):\n    resolve('x' * 60 + '@' + 'x.' * 500 + 'example')", "is no address"},
		"bad network":         {"def message(m):\n    in_network(m.client, '192.0.2.0/99')", "is no network"},
		"bad period":          {"def message(m):\n    rate('k', 1, 'soon')", "it must be like"},
		"recursion":           {"def f(x): return f(x)\ndef message(m): return f(1)", "function f called recursively"},
		"change of a global":  {"L = []\ndef message(m): L.append(1)", "cannot append to frozen list"},
		"change of the mail":  {"def message(m): m.recipients.append('x')", "cannot append to frozen list"},
		"loaded file":         {"load('lib.star', 'f')\ndef message(m):\n    f(m)", "lib.star:2:6: "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t, map[string]string{File: tt[0], "t": "a b\n", "lib.star": "def f(m):\n    m()\n"})
			d.open(t)
			_, err := d.session(t, message()).Message(context.Background())
			failed := (*Error)(nil)
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), tt[1]) {
				t.Errorf("got %v, want %q", err, tt[1])
			}
			if failed != nil && !strings.HasPrefix(failed.Where, "router.star:") && name != "loaded file" {
				t.Errorf("place: got %q", failed.Where)
			}
		})
	}
}

// An error in a program is reported before it decides about mail.
func TestBadProgramIsAConfigErrorWithItsPlace(t *testing.T) {
	tests := map[string]struct {
		program string
		want    string
		place   string // LINE:COL
	}{
		"syntax":                {"def message(m):\n    return )", "", "2:12"},
		"undefined":             {"def message(m):\n    return rout('x')", "undefined: rout", "2:12"},
		"tab and blanks":        {"def message(m):\n    if m:\n\treturn\n      x", "", ""},
		"neither":               {"x = 1", "defines neither message(m) nor recipient(m, r)", ""},
		"no function":           {"message = 1", "message is a value of type int", ""},
		"parameters":            {"x = 1\ndef recipient(m):\n    pass", "want recipient(m, r)", "2:1"},
		"keyword parameters":    {"def message(m, **k):\n    pass", "want message(m)", "1:1"},
		"almost":                {"def message(m): pass\ndef recipients(m, r): pass", "never called", "2:5"},
		"attribute":             {"def message(m):\n    if m.sendr == '': return drop()", "there is no .sendr; there are [client ", "2:10"},
		"attribute of r":        {"def recipient(m, r):\n    if r.size > 1: return drop()", "there is no .size; there are [address ", "2:10"},
		"fails at the top":      {"def f():\n    return 1 // 0\nx = f()\ndef message(m): pass", "division by zero", "2:14"},
		"asks at the top":       {"x = is_local('a')\ndef message(m): pass", "may be called for a message only", "1:13"},
		"no such table":         {"T = table('nosuch')\ndef message(m): pass", "no such file", ""},
		"no such source":        {"T = table('foo:bar')\ndef message(m): pass", "no kind of source", ""},
		"bad table":             {"T = table('bad')\ndef message(m): pass", "no key before the colon", ""},
		"load, a path":          {"load('../x.star', 'f')\ndef message(m): pass", "want the name of a file beside router.star", "1:1"},
		"load, none":            {"load('none.star', 'f')\ndef message(m): pass", "none.star", ""},
		"load, bad":             {"load('bad.star', 'f')\ndef message(m): pass", "bad.star:1:5: ", "1:1"},
		"load, a circle":        {"load('self.star', 'f')\ndef message(m): pass", "in a circle", ""},
		"load, no such name":    {"load('lib.star', 'g')\ndef message(m): pass", "g not found", "1:1"},
		"circle of steps":       {"def f():\n    for i in range(100000000): pass\nf()\ndef message(m): pass", "steps", "2:5"},
		"more than one":         {"def message(m):\n    a()\n    b()", "undefined: b", ""},
		"very large":            {"# " + strings.Repeat("x", maxSource) + "\ndef message(m): pass", "has more than 128 kB", ""},
		"brackets":              {strings.Repeat("(", maxSource-10), "", ""},
		"minus":                 {"x = " + strings.Repeat("-", maxSource-10), "", ""},
		"not":                   {"x = " + strings.Repeat("not ", maxSource/4-10) + "1\ndef message(m): pass", "", ""},
		"lambda":                {"x = " + strings.Repeat("lambda:", maxSource/7-10) + "1\ndef message(m): pass", "", ""},
		"either, or, or, or":    {"x = " + strings.Repeat("1 if 1 else ", maxSource/12-10) + "1\ndef message(m): pass", "", ""},
		"blocks in one another": {deepBlocks(450), "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && len(tt.program) > 10000 {
				t.Skip("a very large file")
			}
			d := newFixture(t, map[string]string{File: tt.program, "bad": "a b\n: c\n", "bad.star": "x = )", "self.star": "load('self.star', 'f')\n", "lib.star": "f = 1\n"})
			p, err := New(d.config())
			bad := (*config.Error)(nil)
			if !errors.As(err, &bad) {
				if err == nil {
					p.Close()
				}
				if name == "blocks in one another" || name == "not" || name == "lambda" || name == "either, or, or, or" {
					return // it may be taken; it must not crash
				}
				t.Fatalf("got %v, want a *config.Error", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if tt.place != "" && fmt.Sprintf("%d:%d", bad.Line, bad.Column) != tt.place {
				t.Errorf("place: got %d:%d, want %s (%v)", bad.Line, bad.Column, tt.place, err)
			}
			if !strings.HasPrefix(bad.File, d.dir) && !strings.Contains(err.Error(), "source") {
				t.Errorf("file: got %q (%v)", bad.File, err)
			}
		})
	}
}

func deepBlocks(n int) string {
	var b strings.Builder
	b.WriteString("def message(m):\n")
	for i := range n {
		b.WriteString(strings.Repeat(" ", i+1) + "if m:\n")
	}
	b.WriteString(strings.Repeat(" ", n+1) + "pass\n")
	return b.String()
}
