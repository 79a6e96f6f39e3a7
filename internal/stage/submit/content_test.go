package submit

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestLoneDotEndsTheMessage(t *testing.T) {
	for name, tt := range map[string]struct {
		in, want string
		keep     bool // -i
	}{
		"dot line":                 {in: "a\n.\nb\n", want: "a\n"},
		"dot line at once":         {in: ".\nb", want: ""},
		"dot line with CRLF":       {in: "a\r\n.\r\nb", want: "a\r\n"},
		"dot at the end":           {in: "a\n.", want: "a\n"},
		"dot and CR at the end":    {in: "a\n.\r", want: "a\n"},
		"dot before text":          {in: "a\n.b\n..\n", want: "a\n.b\n..\n"},
		"dot and CR before text":   {in: "a\n.\rb\n", want: "a\n.\rb\n"},
		"dot inside of a line":     {in: "a.\nb", want: "a.\nb"},
		"no newline at the end":    {in: "a", want: "a"},
		"nothing":                  {in: "", want: ""},
		"with -i":                  {in: "a\n.\nb", want: "a\n.\nb", keep: true},
		"CRLF stays":               {in: "a\r\nb\r\n", want: "a\r\nb\r\n"},
		"any bytes":                {in: "\x00\xff\r\r\n\n.\x00\n", want: "\x00\xff\r\r\n\n.\x00\n"},
		"two dots are not one":     {in: "..\n", want: "..\n"},
		"after an empty last line": {in: "\n\n.\n", want: "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"at once":   bytes.NewReader([]byte(tt.in)),
				"bytewise":  iotest.OneByteReader(bytes.NewReader([]byte(tt.in))),
				"early EOF": iotest.DataErrReader(bytes.NewReader([]byte(tt.in))),
			} {
				got, err := io.ReadAll(newContent(r, !tt.keep))
				if err != nil || string(got) != tt.want {
					t.Errorf("%s: got %q, %v; want %q", how, got, err, tt.want)
				}
			}
		})
	}
}

func TestReadErrorIsNotTakenForTheEnd(t *testing.T) {
	broken := errors.New("broken")
	for _, in := range []string{"a\n", "a\n.", "a\n.\r", ""} {
		r := io.MultiReader(bytes.NewReader([]byte(in)), iotest.ErrReader(broken))
		if _, err := io.ReadAll(newContent(r, true)); !errors.Is(err, broken) {
			t.Errorf("%q: got %v, want the reader's error", in, err)
		}
	}
}

// FuzzContent: whatever the pieces in which the input comes, the message is the same.
func FuzzContent(f *testing.F) {
	for _, s := range []string{"a\n.\nb", "a\r\n.\r\n", ".", "\n.", "\n.\r", "..\n.x\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		once, err1 := io.ReadAll(newContent(bytes.NewReader(in), true))
		bytewise, err2 := io.ReadAll(newContent(iotest.OneByteReader(bytes.NewReader(in)), true))
		if err1 != nil || err2 != nil || !bytes.Equal(once, bytewise) {
			t.Fatalf("%q: %q (%v) at once, %q (%v) bytewise", in, once, err1, bytewise, err2)
		}
		if !bytes.HasPrefix(in, once) {
			t.Fatalf("%q: %q was changed", in, once)
		}
	})
}
