package route

import (
	"errors"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

const masqueradeText = `# names of hosts are internal
bond@example.org: James.Bond@mi6.example
moneypenny@example.org: moneypenny@example.org
@example.org:   @mi6.example
@.example.org:  %1@mi6.example
"a b"@example.net: plain@mi6.example
@bücher.example: %1.buch@mi6.example
@[192.0.2.1]: literal@mi6.example
`

func parsedMasquerade(t testing.TB, content string) *masquerade {
	t.Helper()
	entries := assert.Get(parseMasquerade("masquerade", []byte(content)))(t)
	return &masquerade{hostname: "mx.example.org", sources: []masqueradeSource{
		func(_ maskLookup, key string) (address.Mailbox, bool, error) {
			m, ok := entries[key]
			return m, ok, nil
		},
	}}
}

func TestMostSpecialKeyOfMasqueradeCounts(t *testing.T) {
	q := parsedMasquerade(t, masqueradeText)
	for in, want := range map[string]string{
		"bond@example.org":          "James.Bond@mi6.example",
		"BOND@Example.ORG":          "James.Bond@mi6.example",
		"moneypenny@example.org":    "moneypenny@example.org",
		"q@example.org":             "q@mi6.example",
		"Q.R@EXAMPLE.org":           "Q.R@mi6.example",
		"q@host.example.org":        "q@mi6.example",
		"q@deep.host.example.org":   "q@mi6.example",
		"bond@host.example.org":     "bond@mi6.example",
		"root":                      "root@mi6.example",
		"q@notexample.org":          "q@notexample.org",
		"q@org":                     "q@org",
		`"a b"@example.net`:         "plain@mi6.example",
		`"a c"@host.example.org`:    `"a c"@mi6.example`,
		"x@xn--bcher-kva.example":   "x.buch@mi6.example",
		"jürgen@Bücher.example":     "jürgen.buch@mi6.example",
		"x@sub.bücher.example":      "x@sub.bücher.example",
		"x@[192.0.2.1]":             "literal@mi6.example",
		"x@[192.0.2.2]":             "x@[192.0.2.2]",
		"":                          "",
		`"50%1 off"@example.org`:    `"50%1 off"@mi6.example`,
		"owner+tag=x@a.example.org": "owner+tag=x@mi6.example",
	} {
		m, err := address.Parse(in)
		assert.Must(t, err)
		got, ok, err := q.of(maskLookup{ctx: t.Context()}, m)
		if err != nil || got.String() != want || ok != (want != in) {
			t.Errorf("%s: got %s, %v, %v, want %s", in, got, ok, err, want)
		}
	}
}

func TestBadLineOfMasqueradeIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"\nbond a@b.example\n":                          "masquerade:2: no colon",
		"bond: a@b.example\n":                           `"bond" has no domain`,
		"a@b.example: bond\n":                           `bad address: want an address with a domain`,
		"a@b.example:\n":                                `want an address with a domain`,
		"a@b.example: <>\n":                             `want an address with a domain`,
		"a@b.example: a@b..c\n":                         "empty label",
		"@: a@b.example\n":                              "domain is empty",
		"@.: a@b.example\n":                             "domain is empty",
		"@a b.example: a@b.example\n":                   `" " in the domain`,
		"@a.example: b@c.example, d@e.example\n":        `"," in the domain`,
		"A@b.Example: b@c.d\n# x\na@b.example: c@d.e\n": "masquerade:3: warning: a@b.example is in line 1 already",
	} {
		_, err := parseMasquerade("masquerade", []byte(text))
		bad := (*config.Error)(nil)
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Of a field only the addresses change, and only those that the table has.
func TestMasqueradedFieldKeepsEveryOtherByte(t *testing.T) {
	q := parsedMasquerade(t, masqueradeText)
	for in, want := range map[string]string{
		"From: bond@example.org\n":                                            "From: James.Bond@mi6.example\n",
		"From:bond@example.org":                                               "From:James.Bond@mi6.example",
		"FROM : \"J  B\"  <bond@example.org> (007)\r\n":                       "FROM : \"J  B\"  <James.Bond@mi6.example> (007)\r\n",
		"From: =?utf-8?q?Zo=C3=AB?=\n <q@x.example.org>\n":                    "From: =?utf-8?q?Zo=C3=AB?=\n <q@mi6.example>\n",
		"Reply-To: a@b.example, G: bond@example.org,\n\tc@d.example;, bond\n": "Reply-To: a@b.example, G: James.Bond@mi6.example,\n\tc@d.example;, bond@mi6.example\n",
		"From: bond @ example . org (x)\n":                                    "From: James.Bond@mi6.example (x)\n",
		"From: bond@(c)example.org\n":                                         "From: James.Bond@mi6.example\n",
		"From: \"bond@example.org\" <bond@example.org>\n":                     "From: \"bond@example.org\" <James.Bond@mi6.example>\n",
		"From: J\xf6rg <bond@example.org>\n":                                  "From: J\xf6rg <James.Bond@mi6.example>\n",
		"From: <@a,@b:bond@example.org>\n":                                    "From: <James.Bond@mi6.example>\n",
		"From: \"Bond <bond@example.org\n":                                    "",
		"From: (bond@example.org) a@b.example\n":                              "",
		"From: moneypenny@example.org\n":                                      "",
		"From: bond@@example.org\n":                                           "",
		"From: <>\n":                                                          "",
		"From:\n":                                                             "",
	} {
		got, changed, err := q.field(maskLookup{ctx: t.Context()}, []byte(in))
		if err != nil || changed != (want != "") || changed && string(got) != want {
			t.Errorf("%q: got %q, %v, %v, want %q", in, got, changed, err, want)
		}
	}
}

// Whatever a field holds, what is around its addresses stays, and the new addresses are
// found at the same places.
func FuzzMasqueradedField(f *testing.F) {
	for _, s := range []string{"bond@example.org", "A <q@example.org>, g: bond;", "\"x\" <bond @ example.org> (c)\n b", "<<bond@example.org", "\xff<bond@example.org>"} {
		f.Add(s)
	}
	q := parsedMasquerade(f, masqueradeText)
	f.Fuzz(func(t *testing.T, value string) {
		raw := []byte("From:" + value)
		if fields := envelope.Fields(raw); len(fields) != 1 {
			return
		}
		out, changed, err := q.field(maskLookup{ctx: t.Context()}, raw)
		assert.Must(t, err)
		if !changed {
			return
		}
		before, after := address.ParseList(value), address.ParseList(strings.TrimPrefix(string(out), "From:"))
		if len(before) != len(after) {
			t.Fatalf("%q: %d addresses became %d: %q", raw, len(before), len(after), out)
		}
		for i := range before {
			want := before[i].Mailbox
			if before[i].Err == nil && !want.IsNull() {
				if want, _, err = q.of(maskLookup{ctx: t.Context()}, want); err != nil {
					t.Fatal(err)
				}
			}
			if after[i].Mailbox != want {
				t.Fatalf("%q: address %d is %q, want %q: %q", raw, i, after[i].Mailbox, want, out)
			}
		}
		if strings.Count(string(out), "\n") > strings.Count(string(raw), "\n") {
			t.Fatalf("%q: got %q with more lines", raw, out)
		}
	})
}

// A table that turns bad is refused with its line, and what was read before holds on; a
// good one holds from then on. The same for header-rules.
func TestTablesOfHeadersAreReadAgainWhenTheyChange(t *testing.T) {
	now := time.Now()
	log := &logtest.Buffer{}
	r := newRig(t)
	r.config.Now, r.config.Log = func() time.Time { return now }, log.Logger()
	r.table("masquerade", "@example.org: @one.example\n")
	r.table("header-rules", "all add X-N 1\n")
	en := r.engine()
	check := func(step, host, n string) {
		t.Helper()
		now = now.Add(time.Hour)
		m := r.route(en, r.claim(en.self, "from <bond@example.org>\nto <a@example.net>\nenv-end\nFrom: bond@example.org\n\n"))
		if got := m.header(); !strings.Contains(got, "From: bond@"+host+"\n") || !strings.Contains(got, "X-N: "+n+"\n") {
			t.Errorf("%s: got\n%s\nwant %s and %s", step, got, host, n)
		}
	}
	check("at first", "one.example", "1")
	r.table("masquerade", "@example.org: @two.example\n@example.org @three.example\n")
	r.table("header-rules", "all add X-N 2\nall add: X-N\n")
	check("bad", "one.example", "1")
	check("still bad", "one.example", "1")
	log.Expect(t, 1, "msg=table-refused", "masquerade:2: ")
	log.Expect(t, 1, "msg=table-refused", "header-rules:2: ")
	r.table("masquerade", "@example.org: @two.example.\n")
	r.table("header-rules", "all add X-N 22\n")
	check("good again", "two.example", "22")
	log.Expect(t, 2, "msg=table-read")
}

// MASQUERADE names other sources as the tables of recipients do. One that fails defers the
// message: a sender cannot be changed later. Mail from outside is not masqueraded.
func TestSourcesOfMasqueradeAreAsked(t *testing.T) {
	r := newRig(t)
	r.table("masquerade", masqueradeText)
	r.table("first", "q@example.org: First@mi6.example # before the others\n")
	_, err := table.Compile(text.Masquerade, r.conf+"/masquerade", r.conf+"/m.db", func(string, int64, int64) {})
	assert.Must(t, err)
	r.config.Masquerade = []string{"first", "db:m.db"}
	for from, want := range map[string]string{
		"bond@example.org": "James.Bond@mi6.example", "q@example.org": "First@mi6.example", "r@host.example.org": "r@mi6.example", "a@b.example": "a@b.example",
	} {
		m := r.one("from <" + from + ">\nto <a@example.net>\nenv-end\nFrom: " + from + "\n\n")
		assert.Equal(t, m.Sender, want, "sender")
		assert.Equal(t, strings.HasSuffix(m.header(), "From: "+want+"\n"), true, "From: %s in %s", want, m.header())
	}
	r.config.Masquerade = []string{"socket:unix:" + r.conf + "/none"}
	en := r.engine()
	m := r.route(en, r.claim(en.self, "from <bond@example.org>\nto <a@example.net>\nenv-end\n\n"))
	if why, deferred := Defers(m.Err); !deferred || why != "masquerade" {
		t.Errorf("got %v", m.Err)
	}
	r.one("external\nfrom <bond@example.org>\nto <a@example.net>\nenv-end\n\n")
}
