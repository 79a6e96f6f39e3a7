package submit

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
)

// composed returns what is stored below the envelope lines.
func composed(t testing.TB, r io.Reader) (header, all string) {
	t.Helper()
	m := assert.Get(readText(r))(t)
	rest := assert.Get(io.ReadAll(m.rest))(t)
	return string(m.header), string(m.header) + string(m.end) + string(rest)
}

// Loc1: text without a header gets an empty line before it, so that the fields that the
// router adds do not swallow it.
func TestLoc1TextWithoutHeaderIsBody(t *testing.T) {
	long := strings.Repeat("x", 3*copyBuffer)
	for name, tt := range map[string]struct{ in, header, want string }{
		"one line":                     {"disk full\n", "", "\ndisk full\n"},
		"no line end":                  {"disk full", "", "\ndisk full"},
		"header, then text":            {"To: a\ndisk full\nCc: b\n", "To: a\n", "To: a\n\ndisk full\nCc: b\n"},
		"blank first":                  {" To: a\n\nx\n", "", "\n To: a\n\nx\n"},
		"header":                       {"To: a\n b\nX-Y : z\n\nTo: c\n", "To: a\n b\nX-Y : z\n", "To: a\n b\nX-Y : z\n\nTo: c\n"},
		"header alone":                 {"To: a\n", "To: a\n", "To: a\n"},
		"header without a line end":    {"To: a", "To: a", "To: a"},
		"empty line first":             {"\nTo: a\n", "", "\nTo: a\n"},
		"nothing":                      {"", "", ""},
		"no name":                      {": x\n", "", "\n: x\n"},
		"not ASCII":                    {"Größe: x\n", "", "\nGröße: x\n"},
		"two words before the colon":   {"Warning for you: x\n", "", "\nWarning for you: x\n"},
		"a URL is a field for Postfix": {"https://x\n", "https://x\n", "https://x\n"},
		"long line of text":            {long + "\nTo: a\n", "", "\n" + long + "\nTo: a\n"},
		"long field":                   {"X: " + long + "\nTo: a\n\ny", "X: " + long + "\nTo: a\n", "X: " + long + "\nTo: a\n\ny"},
		"long mbox line":               {"From " + long + "\nTo: a\n\ny", "To: a\n", "To: a\n\ny"},
		"blanks in a header":           {"To: a\n \t\nCc: b\n\n", "To: a\n \t\nCc: b\n", "To: a\n \t\nCc: b\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"at once": strings.NewReader(tt.in), "bytewise": iotest.OneByteReader(strings.NewReader(tt.in)),
			} {
				if header, all := composed(t, r); header != tt.header || all != tt.want {
					t.Errorf("%s: got header %.80q of %.80q, want %.80q of %.80q", how, header, all, tt.header, tt.want)
				}
			}
		})
	}
}

// Loc2: the mbox lines at the top go; others stay.
func TestLoc2FromLinesAreStripped(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"From":               {"From me Mon Jan  1\nTo: a\n\nx\n", "To: a\n\nx\n"},
		"escaped":            {">From me\n>>From you\nTo: a\n\nx\n", "To: a\n\nx\n"},
		"before text":        {"From me\nhello\n", "\nhello\n"},
		"in the body":        {"To: a\n\nFrom me\n>From you\n", "To: a\n\nFrom me\n>From you\n"},
		"behind a field":     {"To: a\nFrom me\n\nx\n", "To: a\n\nFrom me\n\nx\n"},
		"the field":          {"From: me\n\nx\n", "From: me\n\nx\n"},
		"nothing else":       {"From me", ""},
		"behind an end line": {"\nFrom me\n", "\nFrom me\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, all := composed(t, strings.NewReader(tt.in)); all != tt.want {
				t.Errorf("got %q, want %q", all, tt.want)
			}
		})
	}
}

func TestLongHeaderIsNotHeldInMemory(t *testing.T) {
	field := "X: " + strings.Repeat("x", 900) + "\n"
	in := strings.Repeat(field, 2*envelope.MaxHeader/len(field))
	m, err := readText(strings.NewReader(in))
	if err != nil || m.withoutEnd() == nil || len(m.header) > envelope.MaxHeader+len(field) {
		t.Fatalf("%d bytes of header, %v", len(m.header), err)
	}
	rest, err := io.ReadAll(m.rest)
	if got := string(m.header) + string(m.end) + string(rest); err != nil || got != in {
		t.Errorf("%d bytes of %d came through, %v", len(got), len(in), err)
	}
}

func TestErrorInTheHeaderIsReturned(t *testing.T) {
	broken := errors.New("broken")
	for _, in := range []string{"", "To: a\n", strings.Repeat("x:", copyBuffer)} {
		if _, err := readText(io.MultiReader(strings.NewReader(in), iotest.ErrReader(broken))); !errors.Is(err, broken) {
			t.Errorf("%.20q: %v", in, err)
		}
	}
}

// FuzzCompose: nothing but leading mbox lines is lost, nothing but an empty line
// is added, what is stored is composed already, and its header
// consists of fields.
func FuzzCompose(f *testing.F) {
	for _, s := range []string{"From x\nTo: a\n\nb", "text", "A: b\n c\ntext\n", ">From\n>From y\n", "\r\nx", " x\n", "A :b", "\x00:\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		header, all := composed(t, bytes.NewReader(in))
		if _, bytewise := composed(t, iotest.OneByteReader(bytes.NewReader(in))); bytewise != all {
			t.Fatalf("%q: %q at once, %q bytewise", in, all, bytewise)
		}
		again, twice := composed(t, strings.NewReader(all))
		if twice != all || again != header {
			t.Errorf("%q gives %q, and that gives %q", in, all, twice)
		}
		for _, field := range envelope.Fields([]byte(header)) {
			if field.Name == "" {
				t.Errorf("%q: %q is in the header", in, field.Raw)
			}
		}
		rest := in
		for isFromLine(rest) {
			if i := bytes.IndexByte(rest, '\n'); i >= 0 {
				rest = rest[i+1:]
			} else {
				rest = nil
			}
		}
		bare := func(s string) string { return strings.NewReplacer("\n", "", "\r", "").Replace(s) }
		assert.Equal(t, bare(all), bare(string(rest)))
	})
}
