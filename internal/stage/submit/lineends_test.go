package submit

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestTextWithCRLFIsReadAsText(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"lines that end in CRLF":      {"To: a\r\n\r\nx\r\n", "To: a\n\nx\n"},
		"lines that end in LF":        {"To: a\n\nx\r\n\r", "To: a\n\nx\r\n\r"},
		"an empty line first":         {"\r\nx\r\n", "\nx\n"},
		"a bare CR among them":        {"a\r\nb\rc\r\r\n\r", "a\nb\rc\r\n\r"},
		"a bare LF among them":        {"a\r\nb\nc\r\n", "a\nb\nc\n"},
		"no line end":                 {"a\rb", "a\rb"},
		"a CR alone":                  {"\r", "\r"},
		"nothing":                     {"", ""},
		"a long first line":           {strings.Repeat("x", 3*copyBuffer) + "\r\ny\r\n", strings.Repeat("x", 3*copyBuffer) + "\ny\n"},
		"CRLF on the buffer's border": {"a\r\n" + strings.Repeat("x", copyBuffer-4) + "\r\ny", "a\n" + strings.Repeat("x", copyBuffer-4) + "\ny"},
	} {
		for how, r := range map[string]io.Reader{
			"at once": strings.NewReader(tt.in), "bytewise": iotest.OneByteReader(strings.NewReader(tt.in)),
			"early EOF": iotest.DataErrReader(strings.NewReader(tt.in)),
		} {
			got, err := io.ReadAll(&lineEnds{r: r})
			if err != nil || string(got) != tt.want {
				t.Errorf("%s, %s: got %.80q, %v; want %.80q", name, how, got, err, tt.want)
			}
		}
	}
}

// FuzzLineEnds: whatever the pieces in which the input comes, the text is the same.
func FuzzLineEnds(f *testing.F) {
	for _, s := range []string{"a\r\nb", "\r\r\n\n", "a\n\r\n", "\r"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		once, err1 := io.ReadAll(&lineEnds{r: bytes.NewReader(in)})
		bytewise, err2 := io.ReadAll(&lineEnds{r: iotest.OneByteReader(bytes.NewReader(in))})
		if err1 != nil || err2 != nil || !bytes.Equal(once, bytewise) {
			t.Fatalf("%q: %q (%v) at once, %q (%v) bytewise", in, once, err1, bytewise, err2)
		}
		if i := bytes.IndexByte(in, '\n'); i < 1 || in[i-1] != '\r' {
			if !bytes.Equal(once, in) {
				t.Fatalf("%q was changed to %q", in, once)
			}
		} else if bytes.Contains(once, []byte("\r\n")) != bytes.Contains(in, []byte("\r\r\n")) {
			t.Fatalf("%q has a CRLF: %q", in, once)
		}
	})
}
