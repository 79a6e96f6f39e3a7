package filters

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

const outcomesFile = "testdata/outcomes.txt"

// outcome is what came out of a case: at Postfix, and with us.
type outcome struct{ postfix, ours string }

// readOutcomes reads the table: "case NAME", then the facts, each behind "both", "Postfix" or
// "ours".
func readOutcomes(t *testing.T) map[string]*outcome {
	t.Helper()
	table := map[string]*outcome{}
	b, err := os.ReadFile(outcomesFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	var o *outcome
	add := func(to *string, fact string) {
		if *to != "" {
			*to += "\n"
		}
		*to += fact
	}
	for line := range strings.Lines(string(b)) {
		who, fact, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch who {
		case "case":
			o = &outcome{}
			table[fact] = o
		case "both":
			add(&o.postfix, fact)
			add(&o.ours, fact)
		case "Postfix":
			add(&o.postfix, fact)
		case "ours":
			add(&o.ours, fact)
		}
	}
	return table
}

func (o *outcome) String() string {
	var b strings.Builder
	lines := func(who, facts string) {
		for fact := range strings.SplitSeq(facts, "\n") {
			fmt.Fprintln(&b, who, fact)
		}
	}
	if o.postfix == o.ours {
		lines("both", o.ours)
	} else {
		lines("Postfix", o.postfix)
		lines("ours", o.ours)
	}
	return b.String()
}

// compare runs the cases for some filters on both sides, and compares with the table and with
// one another.
func compare(t *testing.T, table map[string]*outcome, cases []*Case, use string, ours, postfix *server, f *filter) {
	t.Helper()
	for i, c := range cases {
		if c.Use != use {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			got := &outcome{}
			if want := table[c.Name]; want != nil {
				*got = *want
			}
			got.ours = one(t, ours, f, c, i)
			if postfix != nil {
				got.postfix = one(t, postfix, f, c, i)
			}
			if c.Differs == "" && got.ours != got.postfix {
				t.Errorf("ours\n%s\nPostfix\n%s", got.ours, got.postfix)
			}
			if c.Differs != "" && got.ours == got.postfix {
				t.Errorf("there is no difference: %s", got.ours)
			}
			switch want := table[c.Name]; {
			case *update:
				table[c.Name] = got
			case want == nil:
				t.Error("the case is not in the table; -update writes it")
			default:
				assert.Equal(t, got.String(), want.String())
			}
		})
	}
}

// write writes the table, with -update.
func write(t *testing.T, table map[string]*outcome, cases []*Case) {
	t.Helper()
	if !*update {
		return
	}
	var b strings.Builder
	b.WriteString("# What becomes of each case of cases.txt at Debian's Postfix and with us; go test -update writes it.\n")
	for _, c := range cases {
		if o := table[c.Name]; o != nil {
			b.WriteString("\ncase " + c.Name + "\n" + o.String())
			if c.Differs != "" {
				b.WriteString("because " + c.Differs + "\n")
			}
		}
	}
	assert.Must(t, os.WriteFile(outcomesFile, []byte(b.String()), 0o644))
}

// Peer1, Peer3, Peer4, Peer5, Peer7: what a filter made with libmilter does comes to the same
// as with Postfix, but for the differences that the cases explain.
func TestFiltersComeToTheSameAsWithPostfix(t *testing.T) {
	cases := assert.Get(ReadCases("testdata/cases.txt"))(t)
	if len(cases) < 90 {
		t.Fatalf("%d cases", len(cases))
	}
	table := readOutcomes(t)
	f := startFilter(t)
	compare(t, table, cases, "", startOurs(t, "inet:"+f.addr, nil), startPostfix(t, "inet:"+f.addr), f)
	write(t, table, cases)
}

// What a second filter sees, and what becomes of mail while a filter is in trouble, with the
// options of one filter written in the same way on both sides.
func TestSettingsOfFiltersComeToTheSameAsWithPostfix(t *testing.T) {
	cases := assert.Get(ReadCases("testdata/cases.txt"))(t)
	table := readOutcomes(t)
	f := startFilter(t)
	settings := map[string]string{"twice": "inet:" + f.addr + ", inet:" + f.addr}
	for _, action := range []string{"accept", "reject", "tempfail", "quarantine"} {
		use := "default_action=" + action
		settings[use] = "{ inet:" + f.addr + ", connect_timeout=10s, command_timeout=1s, content_timeout=1s, " + use + " }"
	}
	for use, milters := range settings {
		t.Run(use, func(t *testing.T) {
			compare(t, table, cases, use, startOurs(t, milters, nil), startPostfix(t, milters), f)
		})
	}
	write(t, table, cases)
}
