package selector

import (
	"errors"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

const day = 24 * time.Hour

func sample() *Facts {
	return &Facts{ID: "S17A2CnLkQ0vB8C", From: "news@shop.example", Size: 5000, Age: 3*day + time.Hour,
		To: "Bob@Example.com", Channel: "smtp", Host: "mx.example.com", States: []string{"open", "waiting", "queued"},
		Reply: "451 4.7.1 Greylisted, try (again) \"later\""}
}

// A20: each column, each joining word, as expression.
func TestExpressionMatches(t *testing.T) {
	cases := []struct {
		text, canonical string // canonical "" : as text
		want            bool
	}{
		{"from news@shop.example", "", true}, {"from NEWS@SHOP.EXAMPLE", "", true}, {"from <news@shop.example>", "from news@shop.example", true},
		{"from *@shop.example", "", true}, {"from @shop.example", "from *@shop.example", true}, {"from news@*", "", true},
		{"from n?ws@*", "", true}, {"from n?s@*", "", false}, {"from shop.example", "", false}, {"from <>", "", false},
		{`from ""`, "from <>", false}, {"from=*@shop.example", "from *@shop.example", true}, {"FROM *", "from *", true},
		{"from a@b,news@*", "", true}, {"from a@b , c@d", "from a@b,c@d", false}, {"from <@shop.example>", "from *@shop.example", true},
		{"from [a]*", "", false}, {"from .*", "", false},
		{"to bob@example.com", "", true}, {"to @example.com", "to *@example.com", true}, {"to bob", "", false}, {"to bob@*", "", true}, {"to <>", "", false},
		{"host mx.example.com", "", true}, {"host *.example.com", "", true}, {"host example.com", "", false}, {"host a,b,mx.*", "", true}, {`host ""`, "", false},
		{"channel smtp", "", true}, {"channel local", "", false}, {"channel smtp,local", "", true}, {"channel SMTP", "", true}, {"channel s*", "", true},
		{"state waiting", "", true}, {"state held", "", false}, {"state open", "", true}, {"state queued", "", true}, {"state held,waiting", "", true},
		{"state HELD", "state held", false}, {`state "set aside"`, "state set-aside", false}, {"state to-route", "", false}, {"state frozen or state waiting", "", true},
		{"older 3d", "", true}, {"older 3d1h", "", true}, {"older 4d", "", false}, {"older 73h", "older 3d1h", true}, {"older 1w", "", false},
		{"older 8d", "", false}, {"older 0s", "", true}, {"older 90m", "older 1h30m", true}, {"older 120s", "older 2m", true},
		{"younger 4d", "", true}, {"younger 3d1h", "", false}, {"younger 1w", "", true}, {"younger 0s", "", false},
		{"larger 5000", "", true}, {"larger 5001", "", false}, {"larger 4k", "", true}, {"larger 5k", "", false}, {"larger 1048576", "larger 1M", false}, {"larger 1024", "larger 1k", true},
		{"smaller 5000", "", false}, {"smaller 5001", "", true}, {"smaller 1M", "", true}, {"smaller 1G", "", true}, {"smaller 0", "", false},
		{"reply greylist", "", true}, {`reply ^451`, "", true}, {`reply 4\.7\.1`, "", true}, {`reply "try \(again"`, `reply "try \(again"`, true},
		{`reply "\"later\""`, "", true}, {"reply ^550", "", false}, {`reply "4\d1 .*later"`, "", true},
		{"id S17A2CnLkQ0vB8C", "", true}, {"id S17A2cnLkQ0vB8C", "", false}, {"id S17A2CnLkQ0vB8C,S18A1", "", true}, {"id S18A1", "", false}, {"id S18A-1", "", false},
		{"all", "", true}, {"not all", "", false},
		{"from *@shop.example and host a", "", false}, {"from *@shop.example and host mx.*", "", true}, {"from * host mx.*", "from * and host mx.*", true},
		{"host a or host mx.*", "", true}, {"host a or host b", "", false}, {"not host a", "", true}, {"!host a", "not host a", true}, {"not not host a", "", false},
		{"host a and host b or host mx.*", "", true}, {"host mx.* or host a and host b", "", true}, {"(host mx.* or host a) and host b", "", false},
		{"host mx.* and (host a or host b)", "", false}, {"not (host a or host b)", "", true}, {"not (host mx.* and older 1d)", "", false},
		{"not host a and not host b", "", true}, {"((host mx.*))", "host mx.*", true}, {"(host a and host b) and host c", "host a and host b and host c", false},
		{"host a or (host b or host c)", "host a or host b or host c", false}, {"HOST mx.* AND NOT Older 4d", "host mx.* and not older 4d", true},
		{"from *@shop.example and (host a or host mx.*) and not older 4d", "", true}, {"  host\tmx.*\n ", "host mx.*", true},
		{`from "and"`, "", false}, {`host "a b"`, "", false}, {`host "a,b"`, "", false}, {`host "mx.*"`, "host mx.*", true},
	}
	if len(cases) < 80 {
		t.Errorf("got %d cases, want 80", len(cases))
	}
	for _, c := range cases {
		s, err := Parse(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		assert.Equal(t, s.Match(sample()), c.want, "%s", c.text)
		want := c.canonical
		if want == "" {
			want = c.text
		}
		assert.Equal(t, s.String(), want, "%s", c.text)
	}
}

// A20: what cannot be read names its column.
func TestErrorsNameTheColumn(t *testing.T) {
	cases := map[string]struct {
		text   string
		column int
		part   string
	}{
		"nothing":                 {"", 1, "nothing is selected"},
		"unknown column":          {"from a sender b", 8, `"sender" is no column; they are from to orig-to`},
		"value missing":           {"from", 5, "from: its value is missing"},
		"word for a value":        {"host and from a", 6, "host: its value is missing"},
		"term missing":            {"host a and", 11, "something is missing at the end"},
		"or without left":         {"or host a", 1, `"or" is no column`},
		"bad time":                {"host a and older 3x", 18, `older: "3x" is no time; write it like 90s`},
		"time without unit":       {"older 3", 7, "older: "},
		"huge time":               {"older 99999999999w", 7, "older: "},
		"bad size":                {"larger 3q", 8, `larger: "3q" is no size`},
		"negative size":           {"larger -3", 8, "larger: "},
		"huge size":               {"larger 99999999999G", 8, "larger: "},
		"two bounds":              {"older 3d,4d", 10, "older: it takes one value"},
		"bad state":               {"state asleep", 7, `state: "asleep" is no state; they are open waiting`},
		"bad second state":        {"state held,asleep", 12, "asleep"},
		"bad regex":               {"reply a(", 9, "something is missing"},
		"bad regex in quotes":     {`reply "a("`, 7, "reply: error parsing regexp"},
		"bad ID":                  {"id 12", 4, `id: "12" is no spool ID`},
		"ID with a path":          {"id S1A/x", 4, "no spool ID"},
		"open parenthesis":        {"(host a", 8, "a closing ) is missing"},
		"close parenthesis":       {"host a)", 7, "there is no ( for this )"},
		"empty parentheses":       {"()", 2, "a column's name is expected"},
		"open quote":              {`host "a`, 6, "a closing quote is missing"},
		"open bracket":            {"from <a", 6, "from: "},
		"column after characters": {"host ä and oldr 3d", 12, `"oldr" is no column`},
		"deep":                    {strings.Repeat("(", 300), 202, "too deeply nested"},
		"deep not":                {strings.Repeat("!", 300), 202, "too deeply nested"},
		"control character":       {"host \x01", 6, "quotes"},
	}
	for name, c := range cases {
		_, err := Parse(c.text)
		bad := (*Error)(nil)
		if !errors.As(err, &bad) {
			t.Errorf("%s: got %v, want an *Error", name, err)
			continue
		}
		if bad.Column != c.column || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%s: got %v, want column %d and %q", name, err, c.column, c.part)
		}
	}
}

// A20: a flag is a column; several values are alternatives, several columns all count.
func TestColumnsAreFlags(t *testing.T) {
	and := func(flags ...[]string) (Selector, error) {
		var all Selector
		for _, f := range flags {
			s, err := Column(f[0], f[1:]...)
			if err != nil {
				return all, err
			}
			all = all.And(s)
		}
		return all, nil
	}
	cases := []struct {
		flags [][]string
		want  string
		match bool
	}{
		{[][]string{{"host", "a", "mx.*"}}, "host a,mx.*", true},
		{[][]string{{"host", "a,mx.*"}, {"from", "@shop.example"}}, "host a,mx.* and from *@shop.example", true},
		{[][]string{{"reply", "4{1,2}5"}}, `reply "4{1,2}5"`, true},
		{[][]string{{"reply", "xx", "zz"}, {"older", "1d"}}, "(reply xx or reply zz) and older 1d", false},
		{[][]string{{"from", "<>"}}, "from <>", false},
		{[][]string{{"host"}}, "", true},
		{[][]string{{"to", "not"}}, `to "not"`, false},
	}
	for _, c := range cases {
		s, err := and(c.flags...)
		if err != nil {
			t.Errorf("%q: %v", c.flags, err)
			continue
		}
		if s.String() != c.want || s.Match(sample()) != c.match {
			t.Errorf("%q: got %s, %v, want %s, %v", c.flags, s, s.Match(sample()), c.want, c.match)
		}
	}
	for _, f := range [][]string{{"older", "3x"}, {"host", "a", "\xff*"}, {"color", "x"}, {"state", "open,shut"}} {
		if _, err := and(f); err == nil {
			t.Errorf("%q: no error", f)
		}
	}
}

func TestOnlyTheseIDsCanMatch(t *testing.T) {
	for text, want := range map[string]string{
		"id S1A1": "S1A1", "id S1A1,S2A2 and host a": "S1A1 S2A2", "host a and id S1A1": "S1A1", "id S1A1 or id S2A2": "S1A1 S2A2",
		"host a": "-", "id S1A1 or host a": "-", "not id S1A1": "-", "all": "-",
	} {
		s, err := Parse(text)
		assert.Must(t, err)
		ids, ok := s.IDs()
		got := strings.Join(ids, " ")
		if !ok {
			got = "-"
		}
		assert.Equal(t, got, want, text)
	}
	if _, ok := (Selector{}).IDs(); ok || !(Selector{}).Empty() || All().Empty() {
		t.Error("an empty selector has IDs, or is not empty")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"from *@x and (host a or host b) and not older 3d", `reply "\"\\"`, "from <>,@x", "older 1w2d3h4m5s larger 1k", "state open id S1A-1", "!(all)", `host "\\\"a" or to ""`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			bad := (*Error)(nil)
			if !errors.As(err, &bad) || bad.Column < 1 || bad.Column > len(text)+1 {
				t.Fatalf("%q: got %v", text, err)
			}
			return
		}
		printed := s.String()
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("%q prints as %q, which cannot be read: %v", text, printed, err)
		}
		if again.String() != printed {
			t.Fatalf("%q prints as %q, and that as %q", text, printed, again)
		}
		if s.Match(sample()) != again.Match(sample()) {
			t.Fatalf("%q and %q differ", text, printed)
		}
	})
}

// Op7: where mail came in can be asked for; what is not known matches no pattern.
func TestOp7WhereMailCameInIsSelected(t *testing.T) {
	f := Facts{To: "carol@far.example", OrigTo: "sales@mta.example", User: "alice", Client: "192.0.2.7", ClientName: "mx.client.example", MessageID: "<q1@client.example>"}
	for text, want := range map[string]bool{
		"user=alice": true, "user ALICE": true, "user bob": false, "user al*": true,
		"client 192.0.2.7": true, "client 192.0.2.0/24": true, "client 192.0.2.8": false, "client 198.51.100.0/24": false,
		"client ::ffff:192.0.2.7": true, "client *.client.example": true, "client 0.0.0.0/0": true, "client ::/0": false,
		"message-id <q1@client.example>": true, "message-id q1@*": true, "message-id q2@client.example": false,
		"orig-to sales@*": true, "orig-to carol@far.example": false,
	} {
		s, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		assert.Equal(t, s.Match(&f), want, text)
		again, err := Parse(s.String())
		if err != nil || again.Match(&f) != want {
			t.Errorf("%s: printed as %s, which reads as %v, %v", text, s, again, err)
		}
		if s.Match(&Facts{}) {
			t.Errorf("%s matches a message of which nothing is known", text)
		}
	}
	s, err := Parse("orig-to carol@far.example")
	if err != nil || !s.Match(&Facts{To: "carol@far.example"}) {
		t.Errorf("without an alias the recipient is the original one: %v", err)
	}
	for _, text := range []string{"client 192.0.2.7/24", "client 192.0.2.0/33", "client a/b"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}
