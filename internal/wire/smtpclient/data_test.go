package smtpclient

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// writes keeps each write apart.
type writes struct {
	all   bytes.Buffer
	sizes []int
	last  []byte
	err   error
}

func (w *writes) Write(p []byte) (int, error) {
	w.sizes = append(w.sizes, len(p))
	w.last = append(w.last[:0], p...)
	w.all.Write(p)
	return len(p), w.err
}

func end(w *dataWriter) error {
	w.finish()
	return w.flush()
}

// stuffed is what a message becomes on the line, read through r.
func stuffed(t testing.TB, r io.Reader) (string, *writes) {
	t.Helper()
	to := &writes{}
	var w dataWriter
	w.start(to, &Config{Timeouts: short(patience)})
	readErr, err := w.readBody(r)
	if err := errors.Join(readErr, err); err != nil {
		t.Fatal(err)
	}
	if err := end(&w); err != nil {
		t.Fatal(err)
	}
	return to.all.String(), to
}

// Z4: what is stored with LF leaves with CRLF, dots doubled, ended by a dot.
func TestDataOnTheWire(t *testing.T) {
	cases := map[string]struct{ stored, want string }{
		"nothing":                   {"", ".\r\n"},
		"an empty line":             {"\n", "\r\n.\r\n"},
		"one line":                  {"a\n", "a\r\n.\r\n"},
		"no final newline":          {"a\nb", "a\r\nb\r\n.\r\n"},
		"one byte":                  {"x", "x\r\n.\r\n"},
		"lone dot":                  {".\n", "..\r\n.\r\n"},
		"lone dot, no newline":      {".", "..\r\n.\r\n"},
		"lone dot in the middle":    {"a\n.\nb\n", "a\r\n..\r\nb\r\n.\r\n"},
		"two dots":                  {"..\n", "...\r\n.\r\n"},
		"dots inside a line":        {"a.b\n", "a.b\r\n.\r\n"},
		"bare CR":                   {"a\rb\n", "a\rb\r\n.\r\n"},
		"CR before LF":              {"a\r\n", "a\r\r\n.\r\n"},
		"dot after a bare CR":       {"a\r.\r\nb\n", "a\r.\r\r\nb\r\n.\r\n"},
		"dot and CR":                {".\r\n", "..\r\r\n.\r\n"},
		"CR at the end":             {"a\r", "a\r\r\n.\r\n"},
		"NUL":                       {"\x00\n\x00.\x00", "\x00\r\n\x00.\x00\r\n.\r\n"},
		"8 bit":                     {"gr\xfc\xdfe \xff\n", "gr\xfc\xdfe \xff\r\n.\r\n"},
		"only dots and empty lines": {".\n\n.\n\n", "..\r\n\r\n..\r\n\r\n.\r\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got, _ := stuffed(t, strings.NewReader(c.stored)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got, _ := stuffed(t, iotest.OneByteReader(strings.NewReader(c.stored))); got != c.want {
				t.Errorf("byte by byte: got %q, want %q", got, c.want)
			}
		})
	}
}

// Line ends and dots fall on every place around the edge of the buffer.
func TestDataAcrossTheBufferEdge(t *testing.T) {
	tails := []string{"", "\n", "\n.\n", "\n.", "\n.\n.\n.\n.\n", "\n\n\n\n", "\r\n", ".\n"}
	for fill := dataBuffer - 8; fill <= dataBuffer+2; fill++ {
		for _, tail := range tails {
			stored := strings.Repeat("x", fill) + tail
			got, to := stuffed(t, strings.NewReader(stored))
			if want := simpleStuffing(stored); got != want {
				t.Fatalf("%d bytes and %q: wrong bytes on the wire: ...%q", fill, tail, got[len(got)-20:])
			}
			if !strings.HasSuffix(string(to.last), "\r\n") || len(to.last) <= len(".\r\n") {
				t.Errorf("%d bytes and %q: the dot was written apart from the last of the message", fill, tail)
			}
		}
	}
}

// simpleStuffing is the same, written for clarity.
func simpleStuffing(stored string) string {
	if stored != "" && !strings.HasSuffix(stored, "\n") {
		stored += "\n"
	}
	var b strings.Builder
	for line := range strings.Lines(stored) {
		if strings.HasPrefix(line, ".") {
			b.WriteByte('.')
		}
		b.WriteString(strings.TrimSuffix(line, "\n"))
		b.WriteString("\r\n")
	}
	b.WriteString(".\r\n")
	return b.String()
}

func TestSmallMessageLeavesInOneWrite(t *testing.T) {
	_, to := stuffed(t, strings.NewReader(strings.Repeat("a line of text\n", 4000)))
	if got := len(to.sizes); got != 1 {
		t.Errorf("got %d writes %v, want 1", got, to.sizes)
	}
}

func TestBigMessageLeavesInWholeBuffers(t *testing.T) {
	_, to := stuffed(t, strings.NewReader(strings.Repeat("a line of text\n", 40000)))
	for i, n := range to.sizes[:len(to.sizes)-1] {
		if n < dataBuffer-len("a line of text\r\n") {
			t.Errorf("write %d has %d bytes, want a full buffer", i, n)
		}
	}
}

func TestReadErrorIsToldFromWriteError(t *testing.T) {
	wrong := errors.New("bad sector")
	var w dataWriter
	w.start(&writes{}, &Config{Timeouts: short(patience)})
	if readErr, err := w.readBody(iotest.ErrReader(wrong)); !errors.Is(readErr, wrong) || err != nil {
		t.Errorf("got %v and %v, want the reader's error first", readErr, err)
	}
	w.start(&writes{err: wrong}, &Config{Timeouts: short(patience)})
	if readErr, err := w.readBody(strings.NewReader(strings.Repeat("x", 3*dataBuffer))); readErr != nil || !errors.Is(err, wrong) {
		t.Errorf("got %v and %v, want the writer's error second", readErr, err)
	}
}

func FuzzData(f *testing.F) {
	for _, s := range []string{"", ".", "a\n.\n", "\r\n.\r\n", "a\nb", strings.Repeat(".\n", 40000)} {
		f.Add([]byte(s), 7)
	}
	f.Fuzz(func(t *testing.T, stored []byte, step int) {
		step = max(step, 1)
		to := &writes{}
		var w dataWriter
		w.start(to, &Config{Timeouts: short(patience)})
		for p := stored; len(p) > 0; {
			n := min(step, len(p))
			if _, err := w.Write(p[:n]); err != nil {
				t.Fatal(err)
			}
			p = p[n:]
		}
		if err := end(&w); err != nil {
			t.Fatal(err)
		}
		if got, want := to.all.String(), simpleStuffing(string(stored)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func BenchmarkData(b *testing.B) {
	bodies := map[string]string{
		"text": strings.Repeat(strings.Repeat("x", 76)+"\n", 14000),
		"dots": strings.Repeat(".\n", 500000),
	}
	for name, body := range bodies {
		b.Run(name, func(b *testing.B) {
			var w dataWriter
			stored := []byte(body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				w.start(io.Discard, &Config{Timeouts: short(patience)})
				if _, err := w.Write(stored); err != nil {
					b.Fatal(err)
				}
				if err := end(&w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
