package tasmtp

import (
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
)

func TestBareCRAndNULAtALineBecomeBlanks(t *testing.T) {
	for name, tt := range map[string]struct{ header, body, wantHeader, wantBody string }{
		"none":          {"Subject: x\n", "a\n.\n", "Subject: x\n", "a\n.\n"},
		"in the body":   {"Subject: x\n", "a\r.\rMAIL\r\n", "Subject: x\n", "a . MAIL\n"},
		"all header":    {"Subject: x\r\n\r\na\r\n\x00.\r\nb\r\n", "", "Subject: x\n\na\n .\nb\n", ""},
		"in the header": {"Subject: a\rBcc: b\n", "", "Subject: a Bcc: b\n", ""},
		"nothing else":  {"A: \r\n", "\r\r\nx\x00\r", "A: \n", " \nx\x00 "},
		"NUL and a dot": {"A: b\n", "\x00.\n\x00\x00.\nx\x00.\n\n\x00", "A: b\n", " .\n\x00 .\nx\x00.\n\n\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			header := []byte(tt.header)
			c := content{header: header, size: int64(len(tt.header) + len(tt.body)), body: func() io.Reader { return iotest.OneByteReader(strings.NewReader(tt.body)) }}
			if err := c.tame(); err != nil || c.size != int64(len(tt.wantHeader)+len(tt.wantBody)) {
				t.Errorf("size %d, %v, want %d", c.size, err, len(tt.wantHeader)+len(tt.wantBody))
			}
			for range 2 { // a letter is read again for a second attempt
				body, err := io.ReadAll(c.body())
				if err != nil || string(c.header) != tt.wantHeader || string(body) != tt.wantBody {
					t.Errorf("got %q and %q, %v", c.header, body, err)
				}
			}
			if string(header) != tt.header {
				t.Error("the header is changed where others use it")
			}
		})
	}
}

func BenchmarkLetterWithoutCR(b *testing.B) {
	body := strings.NewReader(strings.Repeat("0123456789 abcdefghijklmnopqrstuvwxyz\n", 108))
	c := content{body: func() io.Reader { body.Seek(0, io.SeekStart); return body }}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.tame(); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzTame(f *testing.F) {
	f.Add("a\r.\r\nb\r\r\n", 3)
	f.Add("\r", 1)
	f.Add("\x00.\r\n\x00\r\x00.", 2)
	f.Fuzz(func(t *testing.T, text string, piece int) {
		c := content{size: int64(len(text)), body: func() io.Reader { return strings.NewReader(text) }}
		if err := c.tame(); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		r := c.body()
		buf := make([]byte, max(1, piece%100))
		for {
			n, err := r.Read(buf)
			got.Write(buf[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want := strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", " ")
		want = regexp.MustCompile(`(?m)^(\x00*)\x00\.`).ReplaceAllString(want, "${1} .")
		if got.String() != want || c.size != int64(len(want)) {
			t.Errorf("got %q, %d, want %q", got.String(), c.size, want)
		}
	})
}
