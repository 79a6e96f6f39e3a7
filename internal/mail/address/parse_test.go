package address

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestDomainsAreComparedInOneForm(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"none":                {"postmaster", ""},
		"upper case":          {"a@EXAMPLE.Org", "example.org"},
		"U-label":             {"a@Bücher.example", "xn--bcher-kva.example"},
		"A-label":             {"a@XN--BCHER-KVA.example", "xn--bcher-kva.example"},
		"sharp s stays":       {"a@straße.example", "xn--strae-oqa.example"},
		"wide letters":        {"a@ｅｘａｍｐｌｅ.org", "example.org"},
		"ideographic stop":    {"a@例。org", "xn--fsq.org"},
		"decomposed umlaut":   {"a@bu\u0308cher.example", "xn--bcher-kva.example"},
		"IPv4 literal":        {"a@[192.0.2.1]", "[192.0.2.1]"},
		"IPv6 literal, long":  {"a@[IPv6:2001:DB8:0:0:0:0:0:1]", "[ipv6:2001:db8::1]"},
		"IPv6 literal, short": {"a@[ipv6:2001:db8::1]", "[ipv6:2001:db8::1]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := assert.Get(Parse(c.in))(t)
			if got, err := m.ASCIIDomain(); err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
	if _, err := (Mailbox{"a", "b..c"}).ASCIIDomain(); err == nil {
		t.Error("a domain that Parse would refuse: got no error")
	}
}

func TestSMTPUTF8IsNeededForNonASCIIOnly(t *testing.T) {
	cases := map[string]struct {
		in   Mailbox
		want bool
	}{
		"null sender":      {Mailbox{}, true},
		"ASCII":            {Mailbox{"a", "b.org"}, true},
		"A-label":          {Mailbox{"a", "xn--bcher-kva.example"}, true},
		"U-label":          {Mailbox{"a", "bücher.example"}, false},
		"UTF-8 local part": {Mailbox{"jürgen", "b.org"}, false},
	}
	for name, c := range cases {
		assert.Equal(t, c.in.IsASCII(), c.want, name)
	}
}

// What Parse reads, String prints so that Parse reads it again as the same mailbox.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a@b", "<a@b>", "<>", `"a b"@c.d`, `"a\"\\"@[192.0.2.1]`, "<@a,@b:c@d>", "ü@ü.example",
		"a@[IPv6:::1]", "a..b@c.", `""@x`, `"@"`, "a@例。org", "@[a:b]:c"} {
		f.Add(s)
	}
	for _, c := range readTable(f) {
		f.Add(c.in)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := Parse(s)
		if err != nil {
			return
		}
		printed := m.String()
		for _, form := range []string{printed, "<" + printed + ">"} {
			again, err := Parse(form)
			if err != nil || again != m {
				t.Fatalf("%q gives %+v, printed as %q that gives %+v, %v", s, m, form, again, err)
			}
		}
		if strings.ContainsAny(printed, "\x00\r\n") {
			t.Fatalf("%q prints as %q", s, printed)
		}
		d, err := m.ASCIIDomain()
		if err != nil || !isASCII(d) {
			t.Fatalf("%q: domain in A-label form: %q, %v", s, d, err)
		}
		if (d == "") != (m.Domain == "") {
			t.Fatalf("%q: domain %q became %q", s, m.Domain, d)
		}
		if again, err := (Mailbox{Local: "x", Domain: d}).ASCIIDomain(); err != nil || again != d {
			t.Fatalf("%q: domain %q in A-label form again: %q, %v", s, d, again, err)
		}
		if same, err := Parse(m.Key()); err != nil || same.Key() != m.Key() {
			t.Fatalf("%q: key %q is the address %+v, %v", s, m.Key(), same, err)
		}
	})
}
