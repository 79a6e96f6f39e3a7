package submit

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
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
		"blanks alone":            {"a@b c@d", []string{"a@b", "c@d"}},
		"blank and local name":    {"a b@c", []string{"a", "b@c"}},
		"two brackets":            {"<a@b> <c@d>", []string{"a@b", "c@d"}},
		"blanks around the dots":  {"joe . smith @ x . example", []string{"joe.smith@x.example"}},
		"comments around dots":    {"joe(a).(b)smith@x(c).example (d)", []string{"joe.smith@x.example"}},
		"quoted words":            {`"joe q".smith@x, "a".b@c`, []string{`"joe q.smith"@x`, "a.b@c"}},
		"long source route":       {"<@a.example,@b.example:c@d>", []string{"c@d"}},
		"comment without end":     {"joe@x (Joe", []string{"joe@x"}},
		"quoted word of two":      {`"a b"@c d@e`, []string{`"a b"@c`, "d@e"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, bad := Addresses(tt.list)
			if len(bad) > 0 {
				t.Fatalf("bad: %q", bad)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// Loc3: an address that cannot be read is named, and does not hide the others.
func TestLoc3BadAddressDoesNotHideOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		list      string
		good, bad []string
	}{
		"two at signs":      {"a@@b, c@d", []string{"c@d"}, []string{"a@@b"}},
		"open bracket":      {"x@y, Joe <joe@", []string{"x@y"}, []string{"joe@"}},
		"open quote":        {`x@y, "Joe <joe@x>`, []string{"x@y", "joe@x"}, nil},
		"null address":      {"<>, a@b", []string{"a@b"}, []string{"<>, a@b"}},
		"no domain":         {"joe@, a@b", []string{"a@b"}, []string{"joe@"}},
		"no local part":     {"@x, a@b", []string{"a@b"}, []string{"@x"}},
		"control character": {"jo\x01e@x, a@b", []string{"a@b"}, []string{"jo\x01e@x"}},
		"port":              {"joe@[192.0.2.1]:25, a@b", []string{"a@b"}, []string{"joe@[192.0.2.1]:25"}},
		"in a group":        {"g: a@@b, c@d;, e@f", []string{"c@d", "e@f"}, []string{"a@@b"}},
		"one of two words":  {"a@@b c@d", []string{"c@d"}, []string{"a@@b"}},
	} {
		t.Run(name, func(t *testing.T) {
			good, bad := Addresses(tt.list)
			if d := cmp.Diff([][]string{tt.good, tt.bad}, [][]string{good, bad}); d != "" {
				t.Error(d)
			}
		})
	}
}

// FuzzAddresses: what is found can be written on an envelope line, and so can the recipient
// that stands for what is bad.
func FuzzAddresses(f *testing.F) {
	for _, s := range []string{"a@b, c", `"x, y" <a@b>`, "g: a, b;", "(c (d)) e@[1.2.3.4]", "a\\", `"`, "<@a,@b:c@d>", "a@@b c", "\xff@x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		good, bad := Addresses(list)
		for _, b := range bad {
			good = append(good, reportable(b))
		}
		for _, a := range good {
			if m, err := address.Parse(a); err != nil || m.IsNull() || m.String() != a {
				t.Errorf("%q gives %q (%v)", list, a, err)
			}
			if _, err := envelope.Append(nil, &envelope.Envelope{Recipients: []envelope.Recipient{{Address: a}}}); err != nil {
				t.Errorf("%q gives %q: %v", list, a, err)
			}
		}
	})
}
