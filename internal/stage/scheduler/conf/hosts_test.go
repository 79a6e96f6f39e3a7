package conf

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Op12: a thread's name, as zmctl prints it, is the pattern of its clause.
func TestOp12NameOfAThreadIsItsPattern(t *testing.T) {
	for _, host := range []string{"[127.0.0.1]:3192", "[192.0.2.1]", "[IPv6:2001:db8::1]", "[2001:db8::1]:25", "a.example"} {
		f, err := Parse("scheduler.conf", []byte("smtp/"+host+"\n\tmaxthr=7\n*/*\n\tcommand=\"/bin/true\"\n"), func(string) (string, bool) { return "", false })
		assert.Must(t, err)
		assert.Equal(t, f.Match("smtp", host).MaxThread, 7, host)
		if other := f.Match("smtp", "1"); other.MaxThread == 7 {
			t.Errorf("%s matches the host 1", host)
		}
	}
}

// Op12: a pattern that no host can match is warned of with its line.
func TestOp12PatternsThatMatchNoHost(t *testing.T) {
	for pattern, want := range map[string]bool{
		"smtp/.example.com": true, "smtp/example.com.": true, "smtp/192.0.2.0/24": true, "smtp/joe@example.com": true, "smtp/a..example": true,
		"smtp/*.example.com": false, "smtp/[192.0.2.1]": false, "smtp/[ab].example.com": false, "smtp/*": false, "local/.x": false, "smtp/mx?.example": false,
	} {
		f, err := Parse("scheduler.conf", []byte("*/x\n\tmaxthr=1\n"+pattern+"\n\tmaxthr=1\n*/*\n\tcommand=\"/bin/true\"\n"), func(string) (string, bool) { return "", false })
		assert.Must(t, err)
		got := f.warnHosts()
		assert.Equal(t, len(got) == 1 && strings.HasPrefix(got[0].Error(), "scheduler.conf:3:1: warning: "), want, pattern)
	}
}
