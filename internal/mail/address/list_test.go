package address

import (
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// RFC 5890 §2.3.2.4, RFC 6532 §3.1, RFC 5321 §2.4
func TestMailboxesThatAreOneHaveOneKey(t *testing.T) {
	tests := map[string]struct {
		a, b string
		same bool
	}{
		"case of the domain":             {"a@Example.ORG", "a@example.org", true},
		"final dot":                      {"a@example.org.", "a@example.org", true},
		"needless quotes":                {`"a"@example.org`, "a@example.org", true},
		"source route":                   {"<@x.example:a@example.org>", "a@example.org", true},
		"U-label and A-label":            {"a@Bücher.example", "a@XN--bcher-kva.example", true},
		"U-label, composed or not":       {"a@bu\u0308cher.example", "a@bücher.example", true},
		"local part, composed or not":    {"ju\u0308rgen@example.org", "jürgen@example.org", true},
		"ideographic full stop":          {"a@例。org", "a@例.org", true},
		"literals":                       {"a@[IPv6:2001:DB8:0::1]", "a@[ipv6:2001:db8::1]", true},
		"bare names":                     {"bond", "bond", true},
		"null senders":                   {"<>", "", true},
		"case of the local part":         {"A@example.org", "a@example.org", false},
		"other domain":                   {"a@example.org", "a@example.net", false},
		"bare and with a domain":         {"a", "a@example.org", false},
		"sharp s is not ss":              {"a@faß.example", "a@fass.example", false},
		"quoted blank, no blank":         {`"a "@example.org`, "a@example.org", false},
		"an @ in quotes and one without": {`"a@b"@c`, "a@b", false},
	}
	for name, tt := range tests {
		a := assert.Get(Parse(tt.a))(t)
		b := assert.Get(Parse(tt.b))(t)
		assert.Equal(t, a.Key() == b.Key(), tt.same, name)
	}
}

func TestAddressOfAListSaysWhereItStands(t *testing.T) {
	tests := map[string]struct {
		in   string
		want []string
	}{
		"alone":          {"a@x", []string{"a@x"}},
		"blanks":         {"  a@x\t", []string{"a@x"}},
		"brackets":       {"A <a@x> (c), b@y (c)", []string{"a@x", "b@y"}},
		"blanks inside":  {"A < a @ x >", []string{"a @ x"}},
		"comment inside": {"<a@(c)x(d)>", []string{"a@(c)x"}},
		"route":          {"<@r,@s:a@x>", []string{"@r,@s:a@x"}},
		"group":          {"g: a@x, \"b c\"@y;", []string{"a@x", "\"b c\"@y"}},
		"folded":         {"A\n <a@\n x>", []string{"a@\n x"}},
		"empty":          {"<>", []string{""}},
	}
	for name, tt := range tests {
		found := ParseList(tt.in)
		if len(found) != len(tt.want) {
			t.Fatalf("%s: got %+v", name, found)
		}
		for i, it := range found {
			assert.Equal(t, tt.in[it.Start:it.End], tt.want[i], name)
		}
	}
}

// Whatever a field holds, the found lie in it in order, and what one spans is the
// same address alone.
func FuzzParseList(f *testing.F) {
	for _, c := range readTable(f) {
		f.Add(c.in)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at := 0
		for _, it := range ParseList(s) {
			if it.Start < at || it.End < it.Start || it.End > len(s) {
				t.Fatalf("%q: %+v begins before %d or ends behind the field", s, it, at)
			}
			at = it.End
			if it.Err != nil {
				if it.Mailbox != (Mailbox{}) {
					t.Fatalf("%q: %+v beside an error", s, it)
				}
				continue
			}
			alone := ParseList("<" + s[it.Start:it.End] + ">")
			if len(alone) != 1 || alone[0].Err != nil || alone[0].Mailbox != it.Mailbox {
				t.Fatalf("%q: %+v is %+v alone", s, it, alone)
			}
			again := ParseList(it.Mailbox.String())
			if it.Mailbox.IsNull() {
				continue
			}
			if len(again) != 1 || again[0].Err != nil || again[0].Mailbox != it.Mailbox {
				t.Fatalf("%q: %+v printed as %q is %+v", s, it, it.Mailbox, again)
			}
			if strings.ContainsAny(it.Mailbox.String(), "\x00\r\n") {
				t.Fatalf("%q prints as %q", s, it.Mailbox)
			}
		}
	})
}

// What begins a thousand times and never ends takes no more time than its length asks
// for: anyone can send headers of megabytes.
func TestBeginsWithoutEndsAreReadInLittleTime(t *testing.T) {
	const size = 2 << 20
	for _, piece := range []string{"\"\\", "\"", "<", "<a", "[", "[\\", "(", "(\\", ",", "a@b,", "\"a\" ", "<\"[(", "a:", "\\"} {
		begin := time.Now()
		ParseList(strings.Repeat(piece, size/len(piece)))
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%q: it took %v", piece, took)
		}
	}
}

// The quick way to a closing byte finds what the slow one does.
func TestClosingIsTheSameForAllPlaces(t *testing.T) {
	slow := func(s string, open int, b byte) int {
		for i := open + 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case b:
				return i
			}
		}
		return -1
	}
	const letters = "\"\\]a"
	for n := range 1 << 16 {
		var b [8]byte
		for i := range b {
			b[i] = letters[n>>(2*i)&3]
		}
		p := listParser{s: string(b[:])}
		for open := range b {
			for _, end := range []byte("\"]") {
				if got, want := p.closing(open, end), slow(p.s, open, end); got != want {
					t.Fatalf("%q, %c from %d: got %d, want %d", p.s, end, open, got, want)
				}
			}
		}
	}
}
