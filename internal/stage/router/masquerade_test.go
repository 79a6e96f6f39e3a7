package router

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

const masqueradeText = `# hosts are nobody's business
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
	entries, err := parseMasquerade("masquerade", []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return &masquerade{hostname: "mx.example.org", sources: []masqueradeSource{
		func(_ asking, key string) (address.Mailbox, bool, error) {
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
		if err != nil {
			t.Fatal(err)
		}
		got, ok, err := q.of(asking{ctx: t.Context()}, m)
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
		"A@b.Example: b@c.d\n# x\na@b.example: c@d.e\n": "masquerade:3: a@b.example stands in line 1 already",
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
		got, changed, err := q.field(asking{ctx: t.Context()}, []byte(in))
		if err != nil || changed != (want != "") || changed && string(got) != want {
			t.Errorf("%q: got %q, %v, %v, want %q", in, got, changed, err, want)
		}
	}
}

func TestOnlyLocalSendersAreMasqueraded(t *testing.T) {
	t.Parallel()
	const header = "From: Bond <bond@example.org>\nSender: q@example.org\nReply-To: q@example.org\nTo: bond@example.org\nDate: d\nMessage-ID: i\n"
	const masked = "From: Bond <James.Bond@mi6.example>\nSender: q@mi6.example\nReply-To: q@mi6.example\nTo: bond@example.org\nDate: d\nMessage-ID: i\n"
	const to = "to <a@example.net>\nenv-end\n"
	tests := map[string]struct{ file, sender, want string }{
		"local":                      {"from <bond@example.org>\n" + to + header, "James.Bond@mi6.example", masked},
		"external":                   {"external\nfrom <bond@example.org>\n" + to + header, "bond@example.org", header},
		"a report of ours":           {"errormsg\nchannel error\n" + to + header, "<>", header},
		"null sender":                {"channel error\n" + to + header, "<>", masked},
		"sent on: Received":          {"from <bond@example.org>\n" + to + "Received: x\n" + header, "James.Bond@mi6.example", "Received: x\n" + header},
		"resent":                     {"from <bond@example.org>\n" + to + "Resent-From: bond@example.org\nResent-Date: d\nResent-Message-ID: i\nReceived: x\n" + header, "James.Bond@mi6.example", "Resent-From: James.Bond@mi6.example\nResent-Date: d\nResent-Message-ID: i\nReceived: x\n" + header},
		"From that was missing":      {"from <bond@example.org>\n" + to + "Date: d\nMessage-ID: i\n", "James.Bond@mi6.example", "From: James.Bond@mi6.example\nDate: d\nMessage-ID: i\n"},
		"recipients stay themselves": {"from <q@example.com>\n" + to + "Date: d\nMessage-ID: i\nFrom: q@example.com\nCc: bond@example.org\n", "q@example.com", "Date: d\nMessage-ID: i\nFrom: q@example.com\nCc: bond@example.org\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"masquerade": masqueradeText})
			m := o.one(tt.file + "\nbody\n")
			if got := m.spec.Groups[0].Sender.Address; got != tt.sender {
				t.Errorf("sender: got %s, want %s", got, tt.sender)
			}
			if tt.sender != "<>" && m.spec.ErrorTo[0] != tt.sender {
				t.Errorf("reports go to %q, want %s", m.spec.ErrorTo, tt.sender)
			}
			if got := below(t, m); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// A table that turns bad is refused with its line, and what was read before holds on; a
// good one holds from then on. The same for header-rules.
func TestTablesOfHeadersAreReadAgainWhenTheyChange(t *testing.T) {
	t.Parallel()
	now := time.Now()
	o := newOffice(t, map[string]string{"masquerade": "@example.org: @one.example\n", "header-rules": "all add X-N 1\n"}, func(c *Config) { c.Now = func() time.Time { return now } })
	look := func(step, host, n string) {
		t.Helper()
		o.submit("from <bond@example.org>\nto <a@example.net>\nenv-end\nFrom: bond@example.org\n\n")
		now = now.Add(time.Hour)
		list := o.route()
		got := list[len(list)-1].header()
		for _, m := range list {
			got += m.header()
		}
		if !strings.Contains(got, "From: bond@"+host+"\n") || !strings.Contains(got, "X-N: "+n+"\n") {
			t.Errorf("%s: got\n%s\nwant %s and %s", step, got, host, n)
		}
		for _, d := range []string{"queue", "transport"} {
			for _, name := range o.names(d) {
				if err := os.Remove(filepath.Join(o.dir, d, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	look("at first", "one.example", "1")
	o.table("masquerade", "@example.org: @two.example\n@example.org @three.example\n")
	o.table("header-rules", "all add X-N 2\nall add: X-N\n")
	look("bad", "one.example", "1")
	look("still bad", "one.example", "1")
	o.logged(1, "msg=table-refused", "masquerade:2: no colon")
	o.logged(1, "msg=table-refused", "header-rules:2: ")
	o.table("masquerade", "@example.org: @two.example.\n")
	o.table("header-rules", "all add X-N 22\n")
	look("good again", "two.example", "22")
	o.logged(2, "msg=table-read")
}

func TestUnusableMasqueradeEndsTheRouterWith78(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sources []string
		tables  map[string]string
		want    string
	}{
		"bad line":      {nil, map[string]string{"masquerade": "x\n"}, "masquerade:1: no colon"},
		"bad rule":      {nil, map[string]string{"header-rules": "all keep X\n"}, `header-rules:1: "keep" where add, remove or replace is wanted`},
		"missing file":  {[]string{"nosuch"}, nil, "nosuch"},
		"unknown kind":  {[]string{"nosuch:x"}, nil, "no kind of source"},
		"second of two": {[]string{"masquerade", "gone"}, map[string]string{"masquerade": ""}, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			for file, text := range tt.tables {
				o.table(file, text)
			}
			c := o.config()
			c.Once, c.Masquerade = true, tt.sources
			if err := Run(t.Context(), c); config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// MASQUERADE names other sources as the tables of recipients do.
func TestMasqueradeIsAskedOfACompiledTable(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"masquerade": masqueradeText, "first": "q@example.org: First@mi6.example # before the others\n"})
	if _, err := table.Compile(text.Masquerade, filepath.Join(o.conf, "masquerade"), filepath.Join(o.conf, "m.db"), func(string, int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	o.table("masquerade", "")
	o.r = o.router(func(c *Config) { c.Masquerade = []string{"first", "db:m.db"} })
	for from, want := range map[string]string{
		"bond@example.org": "James.Bond@mi6.example", "q@example.org": "First@mi6.example", "r@host.example.org": "r@mi6.example", "a@b.example": "a@b.example",
	} {
		a := o.submit("from <" + from + ">\nto <a@example.net>\nenv-end\nFrom: " + from + "\n\n")
		found := false
		for _, m := range o.route() {
			if strings.HasPrefix(m.name, fmt.Sprint(a.ID.Ino)+"-") {
				found = true
				if got := m.spec.Groups[0].Sender.Address; got != want || !strings.HasSuffix(m.header(), "From: "+want+"\n") {
					t.Errorf("%s: got %s and\n%s\nwant %s", from, got, m.header(), want)
				}
			}
		}
		if !found {
			t.Errorf("%s was not routed", from)
		}
	}
}

// Nobody knows now: the message waits, as a sender that is not masqueraded cannot be
// taken back.
func TestMasqueradeThatCannotBeAskedDefers(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	down := errors.New("the directory is down")
	o.r.masquerade.sources = append(o.r.masquerade.sources, func(asking, string) (address.Mailbox, bool, error) {
		return address.Mailbox{}, false, down
	})
	a := o.submit(plain("a@example.net"))
	o.route()
	o.expect("down", map[string]int{"deferred": 1})
	o.logged(1, "msg=deferred", "id="+a.ID.String(), ".masquerade", "the directory is down")
	names, err := o.po.Aside.ListDeferred()
	if err != nil || len(names) != 1 {
		t.Fatalf("got %q, %v", names, err)
	}
	if _, err := o.po.Aside.Resubmit(names[0]); err != nil {
		t.Fatal(err)
	}
	o.r.masquerade.sources = nil
	o.route()
	o.expect("up", map[string]int{"queue": 1, "transport": 1})
	// Mail from outside does not ask.
	o = newOffice(t, nil)
	o.r.masquerade.sources = append(o.r.masquerade.sources, func(asking, string) (address.Mailbox, bool, error) {
		return address.Mailbox{}, false, down
	})
	o.one("external\n" + plain("a@example.net"))
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
		out, changed, err := q.field(asking{ctx: t.Context()}, raw)
		if err != nil {
			t.Fatal(err)
		}
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
				if want, _, err = q.of(asking{ctx: t.Context()}, want); err != nil {
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
