package submit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/address"
)

func TestAddressListsGiveTheirAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		list string
		want []string
	}{
		"one":                     {"a@b", []string{"a@b"}},
		"local name":              {"joe", []string{"joe"}},
		"two":                     {"a@b, c@d", []string{"a@b", "c@d"}},
		"name and brackets":       {`Joe Bloggs <joe@x>`, []string{"joe@x"}},
		"quoted name with comma":  {`"Bloggs, Joe" <joe@x>, y`, []string{"joe@x", "y"}},
		"comment":                 {"joe@x (Joe (the first), really)", []string{"joe@x"}},
		"folded":                  {"a@b,\n\tc@d,\r\n e@f", []string{"a@b", "c@d", "e@f"}},
		"group":                   {"friends: a@b, C <c@d>; e@f", []string{"a@b", "c@d", "e@f"}},
		"empty group":             {"undisclosed-recipients:;", nil},
		"empty members":           {", a@b,, ", []string{"a@b"}},
		"quoted local part":       {`"a, b"@c`, []string{`"a, b"@c`}},
		"brackets in quotes":      {`<"<a>"@c>`, []string{`"<a>"@c`}},
		"literal":                 {"a@[IPv6:2001:db8::1], b@[192.0.2.1]", []string{"a@[IPv6:2001:db8::1]", "b@[192.0.2.1]"}},
		"encoded name":            {"=?utf-8?q?J=C3=B6?= <j@x>", []string{"j@x"}},
		"not ASCII":               {"Jö <jö@bücher.example>", []string{"jö@bücher.example"}},
		"source route":            {"<@relay.example:a@b>", []string{"a@b"}},
		"nothing":                 {"  ", nil},
		"escapes in a name":       {`"a \" , b" <j@x>`, []string{"j@x"}},
		"blanks inside brackets":  {"< a@b >", []string{"a@b"}},
		"semicolons part as well": {"a@b; c@d", []string{"a@b", "c@d"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseList(tt.list)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestBrokenAddressListsAreRefused(t *testing.T) {
	for name, list := range map[string]string{
		"blank in an address": "a b@c",
		"open bracket":        "Joe <joe@x",
		"open quote":          `"Joe <joe@x>`,
		"open comment":        "joe@x (Joe",
		"open literal":        "joe@[192.0.2.1",
		"stray bracket":       "joe@x>",
		"two brackets":        "<a@b> <c@d>",
		"null address":        "<>",
		"no domain":           "joe@",
		"no local part":       "@x",
		"control character":   "jo\x01e@x",
		"line end in it":      "<joe\n@x>",
		"colon after it":      "joe@[192.0.2.1]:25",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := parseList(list); err == nil {
				t.Errorf("%q gives %q", list, got)
			}
		})
	}
}

// FuzzParseList: what is found is an address that can stand on an envelope line.
func FuzzParseList(f *testing.F) {
	for _, s := range []string{"a@b, c", `"x, y" <a@b>`, "g: a, b;", "(c (d)) e@[1.2.3.4]", "a\\", `"`, "<@a,@b:c@d>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		found, err := parseList(list)
		if err != nil {
			return
		}
		for _, a := range found {
			if m, err := address.Parse(a); err != nil || m.IsNull() || m.String() != a || strings.ContainsAny(a, "\r\n") {
				t.Errorf("%q gives %q (%v)", list, a, err)
			}
		}
	})
}
