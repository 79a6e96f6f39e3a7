package submit

import (
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
)

// Loc3: an address that cannot be read is named, and does not hide the others. Words that
// only blanks separate are addresses.
func TestLoc3BadAddressDoesNotHideOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		list      string
		good, bad []string
	}{
		"blanks alone":      {"a@b c@d", []string{"a@b", "c@d"}, nil},
		"a local name":      {"a b@c", []string{"a", "b@c"}, nil},
		"a quoted word":     {`"a b"@c d@e`, []string{`"a b"@c`, "d@e"}, nil},
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
			assert.Same(t, good, tt.good)
			assert.Same(t, bad, tt.bad)
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
