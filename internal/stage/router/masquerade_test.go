package router

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
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
				assert.Must(t, os.Remove(filepath.Join(o.dir, d, name)))
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

// A masquerade source that fails defers the message: a sender cannot be changed later. Mail
// from outside is not masqueraded.
func TestMasqueradeThatFailsDefers(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) {
		c.Masquerade = []string{"socket:unix:" + filepath.Join(t.TempDir(), "none")}
	})
	a := o.submit(plain("a@example.net"))
	o.route()
	o.expect("down", map[string]int{"deferred": 1})
	o.logged(1, "msg=deferred", "id="+a.ID.String(), ".masquerade")
	o.one("external\n" + plain("a@example.net"))
}
