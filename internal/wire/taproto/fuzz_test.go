package taproto

import (
	"bytes"
	"errors"
	"testing"

	"zmailer/internal/wire/taproto/taprototest"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseLine: any line is something, and is written as one line that reads the
// same.
func FuzzParseLine(f *testing.F) {
	for _, name := range transcripts(f) {
		for _, s := range taprototest.Transcript(f, name) {
			if s.Agent {
				f.Add([]byte(s.Said[:len(s.Said)-1]))
			}
		}
	}
	f.Add([]byte("1/2\t\tretryat +60 x"))
	f.Add([]byte("1/2\t\tretryat 1795220010 x"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return
		}
		first := ParseLine(line)
		b := AppendLine(nil, &first)
		for i, c := range b {
			if (c == '\n') != (i == len(b)-1) {
				t.Fatalf("not one line: %q", b)
			}
		}
		second := ParseLine(b[:len(b)-1])
		if diff := cmp.Diff(second, first); diff != "" {
			t.Fatalf("%q, got - want +\n%s", b, diff)
		}
	})
}

// FuzzParseCommand: what is read is written as a line that reads the same.
func FuzzParseCommand(f *testing.F) {
	for _, s := range []string{"", "#idle", "D/G/10117776\ta.example.com", "17-4", "17\t", "\t", "#"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := ParseCommand(line)
		if err != nil {
			if !errors.Is(err, ErrCommand) {
				t.Fatal(err)
			}
			return
		}
		if bytes.IndexByte(line, '\n') >= 0 {
			return
		}
		b := AppendCommand(nil, c)
		again, err := ParseCommand(b[:len(b)-1])
		if err != nil || again != c {
			t.Fatalf("got %+v, %v; want %+v", again, err, c)
		}
	})
}
