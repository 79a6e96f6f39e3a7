package contentrules

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

func TestHeaderRulesAddRemoveAndReplace(t *testing.T) {
	const (
		subject  = "Subject: [SPAM]  buy\n now\n"
		rest     = "X-Spam-Flag: YES\nX-Spam-Score: 7\nx-internal: secret\nno field\nSUBJECT: other\n"
		received = "Received: y\nReturn-Path: z\n"
	)
	replaced := func(old, new string) string { return subject + strings.Replace(rest, old, new, 1) + received }
	for rules, want := range map[string]string{
		"# nothing\n\n":                                                 subject + rest + received,
		"all add X-Origin: inside, here\n":                              "X-Origin: inside, here\n" + subject + rest + received,
		"all add X-Origin inside\n":                                     "X-Origin: inside\n" + subject + rest + received,
		"all add A 1\nall add B 2\n":                                    "A: 1\nB: 2\n" + subject + rest + received,
		"all add A 1\nall add B 2\nall remove A\nall add C 3\n":         "B: 2\nC: 3\n" + subject + rest + received,
		"all add X-A 1\nall add X-B 2\nall remove X-*\nall add Y 3\n":   "Y: 3\n" + subject + "no field\nSUBJECT: other\n" + received,
		"all remove x-INTERNAL\n":                                       replaced("x-internal: secret\n", ""),
		"all remove X-Spam-*\n":                                         replaced("X-Spam-Flag: YES\nX-Spam-Score: 7\n", ""),
		"all remove X-Spam-* /^[0-9]/\n":                                replaced("X-Spam-Score: 7\n", ""),
		"all remove X-Spam-Flag /yes/\n":                                subject + rest + received,
		"all remove X-Spam-Flag /yes/i\n":                               replaced("X-Spam-Flag: YES\n", ""),
		"all replace X-Spam-Score /(.)/ $$${1}0\n":                      replaced("Score: 7", "Score: $70"),
		"all replace X-Spam-Score /7/ 8\nall remove X-Spam-Score /8/\n": replaced("X-Spam-Score: 7\n", ""),
		`all replace Subject /^\[SPAM\]\s+(.*)$/ Junk: $1` + "\n":       "Subject: Junk: buy now\n" + rest + received,
		`all replace Subject /\[SPAM\] */` + "\n":                       "Subject: buy now\n" + rest + received,
		`all replace Subject /b\/?uy/ s\/ell` + "\n":                    "Subject: [SPAM]  s\\/ell now\n" + rest + received,
		"external add X 1\nexternal remove *\n":                         subject + rest + received,
		// Loops are found by Received: a glob does not take it.
		"local remove *\n": "no field\n" + received,
	} {
		assert.Equal(t, edit(read(t, HeaderFile, rules), subject+rest+received, Local), want, "%q", rules)
	}
}

func TestHeaderRulesApplyByOrigin(t *testing.T) {
	rules := read(t, HeaderFile, "local add X-Local 1\nexternal add X-External 1\nsubmitted add X-User 1\nall add X-All 1\n")
	for from, want := range map[Origin]string{
		Local:     "X-Local: 1\nX-All: 1\n",
		External:  "X-External: 1\nX-All: 1\n",
		Submitted: "X-External: 1\nX-User: 1\nX-All: 1\n",
		Report:    "",
	} {
		assert.Equal(t, edit(rules, "", from), want)
		assert.Equal(t, rules.Concern(from), want != "")
	}
}

func TestBadHeaderRuleIsNamed(t *testing.T) {
	for rule, want := range map[string]string{
		"some add X 1":                `"some" where local`,
		"all":                         `"" where add`,
		"all keep X":                  `"keep" where add`,
		"all add":                     `"" is no field name`,
		"all add X":                   "no text behind X",
		"all add X Y: 1\x01":          "control character 0x01",
		"all add J\xf6 x":             "no field name",
		"all add X J\xf6rg":           "not UTF-8",
		"all add Received: by me":     "Received is for mail systems to add",
		"all remove":                  `"" is no field name`,
		"all remove a[":               "syntax error in pattern",
		"all remove Received":         "received cannot be changed",
		"all replace Return-Path /x/": "return-path cannot be changed",
		"all remove X YES":            `"YES" where a pattern must begin with /`,
		"all remove X /YES":           "pattern without / at its end",
		`all remove X /YES\/`:         "pattern without / at its end",
		"all remove X /(/":            "error parsing regexp",
		"all remove X /a/x":           `"x" behind the pattern`,
		"all remove X /a/ b":          "remove takes no text",
		"all replace X":               "replace wants a pattern",
		"all replace X /(a)/ $2":      "$2: the pattern has no such group",
		"all replace X /(a)/ $1st":    "$1st: the pattern has no such group",
		"all replace X /a/ ${name}":   "${name}: the pattern has no such group",
	} {
		_, err := parseFile(inHeader, HeaderFile, []byte("# one\n"+rule+"\n"))
		bad := (*config.Error)(nil)
		if !errors.As(err, &bad) || bad.Line != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want line 2 and %q", rule, err, want)
		}
	}
}

// RFC 5322 §2.1.1, §2.2.3: folding adds line ends and nothing else.
func TestChangedFieldIsFoldedBeforeBlanks(t *testing.T) {
	for _, value := range []string{
		"short", "", "  two  blanks ", strings.Repeat("word ", 60) + "end", strings.Repeat("x", 300), strings.Repeat("x", 300) + " y",
		strings.Repeat(" ", 200) + "x", strings.Repeat("a ", 40) + strings.Repeat(" ", 100),
	} {
		raw := appendField(nil, "Name", []byte(value))
		f := envelope.Fields(raw)
		if len(f) != 1 || f[0].Name != "Name" || f[0].Value() != strings.Trim(value, " ") {
			t.Errorf("%q: got %q", value, raw)
		}
		for line := range strings.Lines(string(raw)) {
			if strings.TrimSpace(line) == "" || len(line) > FoldAt+1 && strings.Contains(strings.TrimSpace(line[strings.Index(line, ":")+1:]), " ") && !strings.Contains(value, "  ") {
				t.Errorf("%q: line %q", value, line)
			}
		}
	}
}

// Whatever rules and header hold: what no rule names stays, and the result is one header
// block with as many lines that are no field as before.
func FuzzHeaderRules(f *testing.F) {
	f.Add("all add X 1\nall remove Y\n", "Y: 1\nZ: 2\n z\n")
	f.Add("local replace S* /(a)(b)?/ $2$1\n", "S: ab\nno field\nT: ab\n")
	f.Add("all replace * /./ ${0}\xc3\xa9\n", "A: \xff\x00\nB:\n \n x")
	f.Add("/^(s): (.*)$/ REPLACE X-$1: $2\n", "S: a\n b\nno field\n")
	f.Add("/^s/ PREPEND A: $0\nif /x/\n!/y/ IGNORE\nendif\n", "S: a\n b\nx: field\n")
	f.Fuzz(func(t *testing.T, text, block string) {
		l, err := parseFile(inHeader, "f", []byte(text))
		if err != nil || strings.HasPrefix(block, "\n") || strings.HasPrefix(block, " ") || strings.HasPrefix(block, "\t") || strings.Contains(block, "\n\n") {
			return
		}
		got := edit(&Rules{steps: [places][]step{inHeader: l.steps}}, block, Local)
		if len(l.steps) == 0 && got != block {
			t.Fatalf("no rule: got %q, want %q", got, block)
		}
		nameless := func(b string) (n int) {
			for _, f := range envelope.Fields([]byte(b)) {
				if f.Name == "" {
					n++
				}
			}
			return n
		}
		if strings.Contains(got, "\n\n") || strings.HasPrefix(got, "\n") {
			t.Fatalf("%q on %q: got %q with an empty line", text, block, got)
		}
		if a, b := nameless(block), nameless(got); a != b {
			t.Fatalf("%q on %q: got %q, %d lines that are no field, want %d", text, block, got, b, a)
		}
	})
}

// read reads the text of one file.
func read(t testing.TB, file, text string) *Rules {
	t.Helper()
	return readAll(t, map[string]string{file: text})
}

func readAll(t testing.TB, texts map[string]string) *Rules {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	r := assert.Get(Open(dir, Options{}))(t).Current()
	return &r
}

// edit returns a header as the rules want it.
func edit(r *Rules, block string, from Origin) (text string) {
	for _, f := range r.Edit(envelope.Fields([]byte(block)), from) {
		text += string(f.Raw)
	}
	return text
}
