package replies

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// wanted returns the default file with its rules in force.
func wanted(t *testing.T) *Table {
	t.Helper()
	text := regexp.MustCompile(`(?m)^#(smtp/)`).ReplaceAllString(string(config.Default("replies")), "$1")
	table, err := Parse("replies", []byte(text))
	assert.Must(t, err)
	if table.Len() < 15 {
		t.Fatalf("%d rules, want 15", table.Len())
	}
	return table
}

// Z14: replies as they are seen, and what the lines of the default file make of them.
func TestSampleReplies(t *testing.T) {
	table := wanted(t)
	samples, err := os.ReadFile("testdata/samples.tsv")
	assert.Must(t, err)
	n, used := 0, map[int]bool{}
	for line := range strings.Lines(string(samples)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(f) != 3 {
			continue
		}
		n++
		got := "-"
		if r := table.Match("smtp", f[0], f[1]); r != nil {
			got = r.Action.String()
			if r.Action == Slow {
				got += " " + r.Wait.String()
			}
			used[r.Line] = true
		}
		assert.Equal(t, got, f[2], f[1])
	}
	if n < 15 {
		t.Errorf("%d samples, want 15", n)
	}
	for i := range table.rules {
		if r := &table.rules[i]; !used[r.Line] {
			t.Errorf("no sample for line %d: %s", r.Line, r)
		}
	}
}

func TestTheDefaultFileHasNoRuleInForce(t *testing.T) {
	table, err := Parse("replies", config.Default("replies"))
	if err != nil || table.Len() != 0 {
		t.Errorf("got %d rules, %v", table.Len(), err)
	}
}

func TestFirstMatchCounts(t *testing.T) {
	table, err := Parse("replies", []byte("smtp/*.example.com slow 10m /busy/\nsmtp/?x.example.com fail /./\n*/* defer /BUSY/i\nlmtp/unix:/run/* host /^4/\n"))
	assert.Must(t, err)
	cases := map[string]struct {
		channel, host, reply string
		want                 int
	}{
		"first":              {"smtp", "mx.example.com", "450 busy", 1},
		"host in any case":   {"smtp", "MX.Example.COM", "450 busy", 1},
		"second":             {"smtp", "mx.example.com", "450 no", 2},
		"third, any case":    {"smtp", "example.com", "450 Busy", 3},
		"path as a host":     {"lmtp", "unix:/run/lmtp.sock", "452 full", 4},
		"none":               {"smtp", "example.org", "450 no", 0},
		"pattern to its end": {"smtp", "mx.example.com.au", "450 busy", 3},
	}
	for name, c := range cases {
		got := 0
		if r := table.Match(c.channel, c.host, c.reply); r != nil {
			got = r.Line
		}
		assert.Equal(t, got, c.want, "%s: line", name)
	}
}

func TestErrorsHaveLineAndColumn(t *testing.T) {
	cases := map[string]struct {
		line   string
		column int
		text   string
	}{
		"no host":          {"smtp defer /x/", 1, "begins with channel/host"},
		"no action":        {"smtp/*", 7, "is no action"},
		"unknown action":   {"  smtp/* bounce /x/", 10, `"bounce" is no action`},
		"slow without":     {"smtp/* slow /x/", 13, "how long"},
		"slow for ever":    {"smtp/* slow 1y /x/", 13, "how long"},
		"no expression":    {"smtp/* defer", 13, "between slashes"},
		"open expression":  {"smtp/* defer /x", 14, "between slashes"},
		"bad expression":   {"smtp/* defer /(x/", 14, "missing closing )"},
		"no backreference": {`smtp/* defer /(a)\1/`, 14, "invalid escape"},
		"long expression":  {"smtp/* defer /" + strings.Repeat("x", 2000) + "/", 14, "longer than"},
		"grüße before it":  {"smtp/grüße defer no", 18, "between slashes"},
	}
	for name, c := range cases {
		_, err := Parse("replies", []byte("# one\n"+c.line+"\nsmtp/* fail\n"))
		bad := (*config.Error)(nil)
		if !errors.As(err, &bad) || bad.Line != 2 || bad.Column != c.column || !strings.Contains(bad.Reason, c.text) {
			t.Errorf("%s: got %v; want column %d, %s", name, err, c.column, c.text)
		}
		if !strings.Contains(err.Error(), "replies:3:12: ") {
			t.Errorf("%s: the error of line 3 is not told: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("smtp/* slow 10m /^4/i\n"), "450 x")
	f.Fuzz(func(t *testing.T, text []byte, reply string) {
		table, err := Parse("replies", text)
		if err == nil {
			table.Match("smtp", "h", reply)
		}
	})
}
