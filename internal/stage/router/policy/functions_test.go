package policy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// ask runs an expression for a message and a recipient, and passes its value to fail().
func ask(t *testing.T, d *fixture, m *Message, expr string) string {
	t.Helper()
	text := "T = table('t')\nA = table('aliases')\nR = table('routes')\ndef recipient(m, r):\n    return defer(repr((" + expr + ")))\n"
	assert.Must(t, os.WriteFile(filepath.Join(d.dir, File), []byte(text), 0o644))
	d.open(t)
	got, err := d.session(t, m).Recipient(context.Background(), to(t, "Ann+x@Far.Example"))
	if err != nil {
		return err.Error()
	}
	return got.Fate.Text
}

func TestWhatAProgramKnows(t *testing.T) {
	outside := message()
	outside.External, outside.Login, outside.RcvdFrom, outside.Protocol = true, "", "client.example ([IPv6:2001:db8::7]:4711 \"EHLO x\")", "ESMTP"
	report := message()
	report.Sender.Local, report.Sender.Domain, report.Report = "", "", true
	tests := map[string]struct {
		m    *Message
		expr string
		want string
	}{
		"sender":           {message(), "m.sender, m.sender_local, m.sender_domain", `("Bond@MTA.example", "Bond", "mta.example")`},
		"null sender":      {report, "m.sender, m.sender_domain, m.report", `("", "", True)`},
		"login":            {message(), "m.login, m.uid, m.external", `("bond", 1007, False)`},
		"client":           {outside, "m.client, m.client_name, m.login, m.protocol, m.external", `("2001:db8::7", "client.example", None, "ESMTP", True)`},
		"no client":        {message(), "m.client, m.client_name", `("", "")`},
		"size":             {message(), "m.size, m.count, m.recipients", `(1234, 2, ["ann@far.example", "q"])`},
		"time":             {message(), "m.time.year, m.time.month, m.time.day, m.time.hour, m.time.minute, m.time.weekday, m.time.date", `(2026, 11, 22, 13, 14, 6, "2026-11-22")`},
		"header":           {message(), "m.header('from'), m.header('X-Tag'), m.header('nosuch')", `("bond@mta.example", "one", None)`},
		"headers":          {message(), "m.headers('x-tag'), m.headers('nosuch')", `(["one", "two  folded"], [])`},
		"header, no UTF-8": {message(), "m.header('subject')", "\"\uFFFD\""},
		"recipient":        {message(), "r.address, r.local, r.domain, r.is_local", `("Ann+x@Far.Example", "Ann+x", "far.example", False)`},
		"parts":            {message(), "domain('a@B.Example'), local_part('\"a b\"@c'), domain('no address at all'), domain('a')", `("b.example", "a b", "", "")`},
		"IDN":              {message(), "domain('a@b\u00fccher.example')", `"xn--bcher-kva.example"`},
		"local":            {message(), "is_local('a@mta.example'), is_local('MTA.example.'), is_local('far.example'), is_local('')", `(True, True, False, False)`},
		"places":           {message(), "[(p.channel, p.host, p.address) for p in resolve('a@x.example')]", `[("smtp", "h0.example", "a@x.example"), ("smtp", "h1.example", "a@x.example"), ("smtp", "h2.example", "a@x.example")]`},
		"networks":         {outside, "in_network(m.client, '192.0.2.0/24', '2001:db8::/32'), in_network(m.client, '2001:db8::7'), in_network(m.client, '10.0.0.0/8')", `(True, True, False)`},
		"no address":       {message(), "in_network(m.client, '10.0.0.0/8')", `False`},
		"table":            {message(), "T('Key'), T('other'), T('none'), T.get('none', 'x'), 'key' in T, 'none' not in T", `("some value", "", None, "x", True, True)`},
		"aliases":          {message(), "A('Bond'), A('none')", `("james, q@far.example", None)`},
		"routes":           {message(), "R('.example'), R('far.example')", `("smtp!relay.example", None)`},
		"match":            {message(), "match('^(.*)@(?i:MTA)(x)?', m.sender), match('a$', 'b'), match('(?:a|b)+', 'xabay')[0]", `(("Bond@MTA", "Bond", None), None, "aba")`},
		"match, bad":       {message(), "match('(', m.sender)", "missing closing )"},
		"match, large":     {message(), "match('(?:a{1000}){1000}', 'a')", "invalid repeat count"},
		"match, larger":    {message(), "match('a{1000}b{999}c{99}', 'a')", "too large"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t, map[string]string{
				"t": "# a comment\nkey: some value\nother\n", "aliases": "bond: james,\n  q@far.example\n", "routes": ".example smtp!relay.example\n",
			})
			got := ask(t, d, tt.m, tt.expr)
			if got != tt.want && !(strings.Contains(got, "router.star:") && strings.Contains(got, tt.want)) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestLogLinesAreBoundedAndNamed(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m):\n    for i in range(100):\n        log('line %d' % i)\n    print({'a': 1})\n"})
	d.open(t)
	assert.Get(d.session(t, message()).Message(context.Background()))(t)
	assert.Equal(t, strings.Count(d.log.String(), "msg=policy-said id=S1 rule=router.star:3"), maxLogs, "lines in: %s", d.log)
}

// A flood is what comes above the limit in a period; it ends when the period is over.
func TestRateCountsAPeriod(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m):\n    if rate('to:' + m.sender, 3, '1h'):\n        return drop()\n"})
	d.open(t)
	n := 0
	over := func(id string) bool {
		t.Helper()
		m := message()
		if m.ID = id; id == "" {
			n++
			m.ID = fmt.Sprint("S", n)
		}
		got := assert.Get(d.session(t, m).Message(context.Background()))(t)
		return got.Fate.Fate == Drop
	}
	for i := range 3 {
		if over("") {
			t.Fatalf("message %d is too many", i+1)
		}
	}
	if over("S1") || over("S2") {
		t.Error("a message that is routed again counts again")
	}
	for range 2 {
		if !over("") {
			t.Error("the fourth or fifth message is not too many")
		}
	}
	d.now = d.now.Add(30 * time.Minute)
	if !over("") {
		t.Error("half a period later nothing is left of it")
	}
	d.now = d.now.Add(2 * time.Hour)
	if over("") {
		t.Error("the period is over, and it is still too many")
	}
	// The clock goes back: what counted still counts.
	d.now = d.now.Add(-90 * time.Minute)
	for range 2 {
		over("")
	}
	if !over("") {
		t.Error("a clock that is set back forgets")
	}
}

func TestRateInPlayCountsNothing(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m):\n    if rate('k', 1, '1h', n=m.count):\n        return drop()\n"})
	d.open(t)
	prog := d.p.Current()
	defer prog.Release()
	env := d.env()
	env.Play = true
	m := message() // of two recipients
	for range 3 {
		if got, err := d.p.Begin(prog, env, m).Message(context.Background()); err != nil || got.Fate.Fate != Drop {
			t.Fatalf("got %v, %v", got, err)
		}
	}
	m.Recipients = m.Recipients[:1]
	if got, err := d.p.Begin(prog, env, m).Message(context.Background()); err != nil || got.Fate.Fate != None {
		t.Errorf("play was counted: got %v, %v", got, err)
	}
}

func TestRatesForgetWhatIsOldWhenThereAreTooMany(t *testing.T) {
	r, now := newRates(), time.Now()
	r.most = 1000
	for i := range 3 * r.most / 2 {
		if i == r.most-10 {
			now = now.Add(time.Hour)
		}
		r.count(rateKey{fmt.Sprint(i), time.Minute}, 1, fmt.Sprint("S", i), 1, now, false)
	}
	if len(r.keys) > r.most || len(r.done)+len(r.before) > r.most {
		t.Errorf("%d keys and %d messages, want at most %d", len(r.keys), len(r.done)+len(r.before), r.most)
	}
	assert.Equal(t, r.count(rateKey{fmt.Sprint(3*r.most/2 - 1), time.Minute}, 1, "x", 1, now, false), 2, "the latest key counts")
}

func TestProductsKeepTheirMeaning(t *testing.T) {
	got := ask(t, newFixture(t, map[string]string{"t": "", "aliases": "", "routes": ""}), message(), `(2 * 3 * 4, 1.5 * 2, "ab" * 2, 2 * [1], (1,) * 2 * 2, "x" * 0, "x" * -1, [1 * 2] * (1 + 1))`)
	assert.Equal(t, got, `(24, 3.0, "abab", [1, 1], (1, 1, 1, 1), "", "", [2, 2])`)
}
