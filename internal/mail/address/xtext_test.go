package address

import (
	"testing"

	"zmailer/internal/run/assert"
)

func TestXTextIsWrittenAsRFC3461Says(t *testing.T) {
	cases := map[string]struct{ raw, want string }{
		"nothing to do":   {"rfc822;user@example.org", "rfc822;user@example.org"},
		"plus and equals": {"a+b=c", "a+2Bb+3Dc"},
		"blank":           {"a b", "a+20b"},
		"line end":        {"a\r\nb", "a+0D+0Ab"},
		"8-bit":           {"ü", "+C3+BC"},
		"NUL and DEL":     {"\x00\x7f", "+00+7F"},
		"empty":           {"", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, EncodeXText(c.raw), c.want, "written")
			if got, err := DecodeXText(c.want); err != nil || got != c.raw {
				t.Errorf("read: got %q, %v, want %q", got, err, c.raw)
			}
		})
	}
}

func TestBadXTextIsRefused(t *testing.T) {
	cases := map[string]struct {
		in   string
		want string
		ok   bool
	}{
		"recorded by ZMailer":  {"Orig+2BUser@a.example.com", "Orig+User@a.example.com", true},
		"lower-case digits":    {"a+2bb", "a+b", true},
		"raw equals":           {"a=b", "a=b", true},
		"raw UTF-8":            {"utf-8;ü", "utf-8;ü", true},
		"plus at the end":      {"a+", "", false},
		"one digit":            {"a+2", "", false},
		"no digits":            {"a+zz", "", false},
		"one good, one bad":    {"+2B+2", "", false},
		"raw blank":            {"a b", "", false},
		"raw newline":          {"a\nb", "", false},
		"raw control with +HH": {"+2B\x00", "", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeXText(c.in)
			if (err == nil) != c.ok || got != c.want {
				t.Errorf("got %q, %v, want %q and success %v", got, err, c.want, c.ok)
			}
		})
	}
}

func FuzzXText(f *testing.F) {
	f.Add("a+b =\x00ü")
	f.Fuzz(func(t *testing.T, s string) {
		x := EncodeXText(s)
		for i := 0; i < len(x); i++ {
			if x[i] < '!' || x[i] > '~' || x[i] == '=' {
				t.Fatalf("%q is written as %q", s, x)
			}
		}
		if got, err := DecodeXText(x); err != nil || got != s {
			t.Fatalf("%q is written as %q and read as %q, %v", s, x, got, err)
		}
		DecodeXText(s)
	})
}
