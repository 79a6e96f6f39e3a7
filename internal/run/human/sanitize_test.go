package human

import (
	"testing"

	"zmailer/internal/run/assert"
)

func TestUnsafeCharactersAreReplaced(t *testing.T) {
	for name, tt := range map[string]struct {
		f        func(string) string
		in, want string
	}{
		"nothing":                  {Clean, "", ""},
		"letters of all kinds":     {Clean, "Grüße, 今日は", "Grüße, 今日は"},
		"a tab":                    {Clean, "a\tb", "a b"},
		"ends of lines":            {Clean, "a\nb\r", `a\x0ab\x0d`},
		"an escape sequence":       {Clean, "\x1b[2J\a", `\x1b[2J\x07`},
		"no UTF-8":                 {Clean, "a\xffb", `a\xffb`},
		"a replacement character":  {Clean, "a\uFFFDb", "a\uFFFDb"},
		"reversed order":           {Clean, "moc.elpmaxe\u202ebob", `moc.elpmaxe\x202ebob`},
		"a soft hyphen":            {Clean, "soft\u00adhyphen", `soft\xadhyphen`},
		"ends of lines of Unicode": {Clean, "a\u2028b\u2029c", `a\x2028b\x2029c`}, // Atk9
		"blanks":                   {Blank, "a\r\n\x7fü\xff", "a   ü\xff"},
		"marks":                    {Mask, "a\t\x7fü\xff", "a??ü?"},
		"words of several lines":   {OneLine, " one\n two\tthree ", "one two three"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.f(tt.in), tt.want, tt.in)
		})
	}
}
