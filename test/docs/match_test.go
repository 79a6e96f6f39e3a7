package docs

import (
	"strings"
	"testing"
)

func TestOutputMatchesWhatDiffersFromRunToRun(t *testing.T) {
	tests := map[string]struct {
		want, got string
		ok        bool
	}{
		"the same":                   {"done", "done\n", true},
		"another":                    {"done", "not done\n", false},
		"more lines":                 {"done", "done\nand more\n", false},
		"lines left out":             {"a\n...\nz", "a\nb\nc\nz\n", true},
		"none of them":               {"a\n...\nz", "a\nz\n", true},
		"text left out":              {"took ... in all", "took 3 steps in all\n", true},
		"columns":                    {"a   b", "a b\n", true},
		"spool ID":                   {"S9977866A28CeBtuR9AK gone", "S123A28Cabcdefgh gone\n", true},
		"no spool ID":                {"S9977866A28CeBtuR9AK gone", "it is gone\n", false},
		"one ID twice":               {"S9977866A28CeBtuR9AK\nS9977866A28CeBtuR9AK", "S1A28Cabcdefgh\nS1A28Cabcdefgh\n", true},
		"inode and owner":            {"queue/9977866-28407", "queue/12-345\n", true},
		"inode before an underscore": {"postman/9977866_header", "postman/123_header\n", true},
		"time and span":              {"2026-11-21 06:49:40, 2s ago", "2027-01-01 00:00:00, 1m30s ago\n", true},
		"no time":                    {"at 2026-11-21 06:49:40", "at noon\n", false},
		"bytes":                      {"117 bytes", "119 bytes\n", true},
		"other small number":         {"3 messages", "4 messages\n", false},
		"special characters stand":   {"a.b (c)*", "axb (c)*\n", false},
	}
	for name, tt := range tests {
		ok, err := newMatcher().match(tt.want, tt.got)
		if err != nil || ok != tt.ok {
			t.Errorf("%s: got %v, %v, want %v", name, ok, err, tt.ok)
		}
	}
}

func TestValuesOfTheRunStandInLaterCommands(t *testing.T) {
	m := newMatcher()
	if ok, err := m.match("S9977866A28CeBtuR9AK in queue/9977866-28407", "S1A28Cabcdefgh in queue/1-77\n"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got, want := m.real("zmctl show S9977866A28CeBtuR9AK; cat queue/9977866-28407"), "zmctl show S1A28Cabcdefgh; cat queue/1-77"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if ok, _ := m.match("S9977866A28CeBtuR9AK", "S2A28Cabcdefgh\n"); ok {
		t.Error("another ID is taken for the one that is known")
	}
}

func TestPageIsTakenApart(t *testing.T) {
	text := "# Title\n<!-- run: mkdir x -->\n```console\n$ echo a \\\n> b\na b\n$ true\n```\n<!-- file: ~/f -->\n```\ntext\n```\n" +
		"<!-- not run: it is large -->\n```console\n$ rm -r /\n```\n```\n$ not this\n```\n<!-- root -->\n"
	p, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.steps {
		got = append(got, strings.Join([]string{s.text, s.want}, " => "))
	}
	want := []string{"mkdir x => ", "echo a \\\nb => a b", "true => ", "text\n => ~/f", " => "}
	if strings.Join(got, "; ") != strings.Join(want, "; ") || len(p.notRun) != 1 || len(p.loose) != 1 {
		t.Errorf("got %q, %q, %v", got, p.notRun, p.loose)
	}
	for name, bad := range map[string]string{
		"output alone": "```console\na\n```\n", "no end": "```console\n$ a\n", "comment": "<!-- rum: x -->\n", "open comment": "<!-- run: x\n",
		"no block": "<!-- file: x -->\ntext\n", "no block at the end": "<!-- file: x -->\n", "no reason": "<!-- not run: -->\n```\n$ a\n```\n",
	} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCommandsThatNothingRunsAreFound(t *testing.T) {
	tests := map[string]struct {
		text string
		want string
	}{
		"in a console":            {"```console\n$ zmctl queue\n```\n", ""},
		"behind a prompt":         {"```\n$ frob\noutput\n```\n", "$ frob"},
		"in a text":               {"$ frob\n", "$ frob"},
		"of ours":                 {"```sh\nzmctl queue --ages   # by age\n```\n", "zmctl queue --ages   # by age"},
		"by root":                 {"```\n# zmctl check\n```\n", "# zmctl check"},
		"with settings":           {"```\nZCONFIG=/x bin/zmctl check\n```\n", "ZCONFIG=/x bin/zmctl check"},
		"indented":                {"\n    make demo\n", "make demo"},
		"for another program":     {"```\njournalctl -u 'zmailer-*'\n```\n", "journalctl -u 'zmailer-*'"},
		"output of a command":     {"```\n$ a\nrouter runs, and so on\n```\n", "$ a"},
		"a table":                 {"```\nrouter     routed\nzmctl:  that\n```\n", ""},
		"a configuration":         {"```\nMAILBOX=/srv/%u\nlocal/*\n\tcommand=\"ta-mailbox\"\n# zmailer.conf\n```\n", ""},
		"the page says why":       {"<!-- not run: it takes an hour -->\n\n```\nmake soak\n```\n", ""},
		"why it is, and indented": {"<!-- not run: it takes an hour -->\n    make soak\n\n    make soak MINUTES=1\n\ntext\n", ""},
	}
	for name, tt := range tests {
		p, err := parse(tt.text)
		var got []string
		for _, s := range p.loose {
			got = append(got, s.text)
		}
		if err != nil || strings.Join(got, "; ") != tt.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, tt.want)
		}
	}
}
