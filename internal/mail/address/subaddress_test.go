package address

import (
	"testing"

	"zmailer/internal/run/assert"
)

// RFC 5233 §1
func TestTagIsSplitAtTheFirstSeparator(t *testing.T) {
	tests := map[string]struct {
		in, separators, base, tag string
		ok                        bool
	}{
		"usual":                  {"bond+list@example.org", "+", "bond@example.org", "list", true},
		"two separators":         {"bond+a+b@example.org", "+", "bond@example.org", "a+b", true},
		"no domain":              {"bond+list", "+", "bond", "list", true},
		"empty tag":              {"bond+@example.org", "+", "bond@example.org", "", true},
		"none":                   {"bond@example.org", "+", "bond@example.org", "", false},
		"separator first":        {"+bond@example.org", "+", "+bond@example.org", "", false},
		"switched off":           {"bond+list@example.org", "", "bond+list@example.org", "", false},
		"another one":            {"bond-list@example.org", "-", "bond@example.org", "list", true},
		"a set":                  {"bond-a+b@example.org", "+-", "bond@example.org", "a+b", true},
		"VERP":                   {"owner-list+user=example.net@example.org", "+", "owner-list@example.org", "user=example.net", true},
		"quoted":                 {`"a b+c d"@example.org`, "+", `"a b"@example.org`, "c d", true},
		"in the domain, never":   {"bond@a-b.example", "-", "bond@a-b.example", "", false},
		"not ASCII":              {"jürgen+ü@example.org", "+", "jürgen@example.org", "ü", true},
		"a separator, not ASCII": {"jürgen·tag@example.org", "·", "jürgen@example.org", "tag", true},
		"null sender":            {"<>", "+", "", "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := assert.Get(Parse(tt.in))(t)
			base, tag, ok := m.SplitTag(tt.separators)
			if base.String() != tt.base || tag != tt.tag || ok != tt.ok {
				t.Errorf("got %q, %q, %v, want %q, %q, %v", base, tag, ok, tt.base, tt.tag, tt.ok)
			}
		})
	}
}
