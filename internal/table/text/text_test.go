package text

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/config"
)

func scan(kind Kind, text string) ([]Entry, error) {
	var list []Entry
	err := Scan(kind, "FILE", strings.NewReader(text), func(e Entry) error {
		list = append(list, Entry{Key: e.Key, Text: e.Text, Line: e.Line})
		return nil
	})
	return list, err
}

func TestEntriesHaveTheirKeyTextAndLine(t *testing.T) {
	tests := map[string]struct {
		kind Kind
		text string
		want []Entry
	}{
		"alias over lines": {Aliases, "# x\nBond: joe,\n  # not him\n  jane\n\nQ: r\n", []Entry{{Key: "bond", Text: "joe,\n\n  jane", Line: 2}, {Key: "q", Text: "r", Line: 6}}},
		"quoted name":      {Aliases, `"a b": joe`, []Entry{{Key: "a b", Text: "joe", Line: 1}}},
		"whole addresses":  {FQDNAliases, "A@B.Example: c\n@ä.example: %1@x.example\n", []Entry{{Key: "a@b.example", Text: "c", Line: 1}, {Key: "@xn--4ca.example", Text: "%1@x.example", Line: 2}}},
		"routes":           {Routes, "A.Example. smtp! # x\n.b.example smtp![10.0.0.1]\n. smtp!relay\n.:ERROR hold!\n", []Entry{{Key: "a.example", Text: "smtp!", Line: 1}, {Key: ".b.example", Text: "smtp![10.0.0.1]", Line: 2}, {Key: ".", Text: "smtp!relay", Line: 3}, {Key: ".:error", Text: "hold!", Line: 4}}},
		"local names":      {LocalNames, "\nA.example\n[10.0.0.1] # literal\n", []Entry{{Key: "a.example", Text: "", Line: 2}, {Key: "[10.0.0.1]", Text: "", Line: 3}}},
		"nothing":          {Aliases, "", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := scan(tt.kind, tt.text)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func TestBadLineIsNamed(t *testing.T) {
	tests := map[string]struct {
		kind Kind
		text string
		line int
		want string
	}{
		"value on the third line": {Aliases, "a: b,\n# x\n  c d,\n  e\n", 3, "bad alias"},
		"relative include":        {Aliases, "a: b\nc: :include:lists/x\n", 2, "path from the root"},
		"address of no domain":    {Aliases, "a@b..example: c\n", 1, "bad alias"},
		"name among addresses":    {FQDNAliases, "\na: c\n", 2, "belongs in aliases"},
		"three words":             {Routes, "a.example smtp!a b\n", 1, "want two words"},
		"shouted channel":         {Routes, "a.example SMTP!a\n", 1, "is no channel"},
		"two domains":             {LocalNames, "a.example\na b\n", 2, "one domain a line"},
		"line without end":        {Aliases, "a: b\nc: " + strings.Repeat("x", MaxLine), 2, "longer than"},
		"continuation of nothing": {Aliases, " a: b\n", 1, "begins with a blank"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := scan(tt.kind, tt.text)
			bad := (*config.Error)(nil)
			if !errors.As(err, &bad) || bad.File != "FILE" || bad.Line != tt.line || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want FILE:%d and %q", err, tt.line, tt.want)
			}
		})
	}
}

func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		"a: b, \"|c\", :include:/d, /e,\n  \\f\n", "\"a b\": c\n", "@a.example: %1@b.example\n",
		".a.example smtp!b # c\n. smtp!\n", "a.example\n", "a: \"\\", "a: [,]\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, kind := range Kinds() {
			list, err := scan(kind, s)
			if bad := (*config.Error)(nil); err != nil && (!errors.As(err, &bad) || bad.Line < 1) {
				t.Fatalf("%s: got %v, want a *config.Error with a line", kind, err)
			}
			// What was taken is taken again from a table of that entry alone.
			for _, e := range list {
				if kind != Aliases && kind != FQDNAliases {
					continue
				}
				if _, _, err := ParseValues(e.Text); err != nil {
					t.Fatalf("%s: values %q of %q: %v", kind, e.Text, e.Key, err)
				}
			}
		}
	})
}

func ExampleScan() {
	err := Scan(Aliases, "aliases", strings.NewReader("Bond: jane,\n  joe\n"), func(e Entry) error {
		fmt.Printf("%d %s: %q\n", e.Line, e.Key, e.Text)
		return nil
	})
	fmt.Println(err)
	// Output:
	// 1 bond: "jane,\n  joe"
	// <nil>
}
