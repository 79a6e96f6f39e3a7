package glob

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestMatch(t *testing.T) {
	tests := map[string]struct {
		pattern, s string
		want       bool
	}{
		"star":                    {"*", "anything/at:all", true},
		"star and nothing":        {"*", "", true},
		"suffix":                  {"*.example.org", "mx.example.org", true},
		"suffix alone":            {"*.example.org", "example.org", false},
		"two stars":               {"*.a.*", "x.a.a.y", true},
		"question mark":           {"m?", "mx", true},
		"question mark, nothing":  {"m?", "m", false},
		"class":                   {"m[a-c]x", "mbx", true},
		"class with ]":            {"m[]x]", "m]", true},
		"negated class":           {"m[!a-c]", "mb", false},
		"backslash":               {`\*`, "*", true},
		"backslash is no star":    {`\*`, "x", false},
		"longer than the string":  {"abc", "ab", false},
		"shorter than the string": {"ab", "abc", false},
		"character of two bytes":  {"?x", "üx", true},
		"class of two bytes":      {"[ä-ü]", "ö", true},
		"simple pattern":          {Simple(`[1].\?*`), `[1].\zz`, true},
		"many stars, no match":    {"*a*a*a*a*a*a*b", strings.Repeat("a", 250), false},
	}
	for name, tt := range tests {
		assert.Equal(t, Match(tt.pattern, tt.s), tt.want, name)
	}
}

func TestCheckRefusesBrokenPatterns(t *testing.T) {
	for pattern, ok := range map[string]bool{
		"*.example.{org,com}": true, "[]x]": true, `\*`: true,
		"[a": false, "[{]": false, "{a": false, "{*}": false, `a\`: false, `\{`: false,
		strings.Repeat("{a,b}", 10): false,
	} {
		if err := Check(pattern); (err == nil) != ok {
			t.Errorf("%s: got %v", pattern, err)
		}
	}
	assert.Equal(t, strings.Join(Expand("{a,b}.{c,d}"), " "), "a.c a.d b.c b.d")
}
