package envelope

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

// Whatever a file holds, Read returns either what it is or that it is broken; what it
// returns does not depend on the sizes of reads, and prints and reads back the same.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"to bond\n\n", "external\nfrom <a@b>\nto <c@d>\nenv-end\nS: x\n y\n\nbody", "channel error\ntodsn N\nto a, \"b,c\"@d\nenv-eof\n",
		"comment octets 0000000000000012\nto a\nA: 1", "to a\nenv-end\n\x00\n\n", "\n", "from <>\nx-y z\nTo : a\n\n", "env-end\nA: 1\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		m, err := Read(bytes.NewReader(file))
		small, serr := Read(iotest.OneByteReader(bytes.NewReader(file)))
		if (err == nil) != (serr == nil) || err == nil && cmp.Diff(m, small) != "" {
			t.Fatalf("read at once: %+v, %v; byte by byte: %+v, %v", m, err, small, serr)
		}
		if err != nil {
			var s *SyntaxError
			if !errors.As(err, &s) || s.Line < 1 {
				t.Fatalf("got %v, want a *SyntaxError with a line", err)
			}
			return
		}
		checkOffsets(t, file, m)
		for _, f := range Fields(m.Header) {
			if v := f.Value(); strings.Contains(v, "\n") {
				t.Fatalf("field %q: its value %q has a newline", f.Raw, v)
			}
		}
		printed, err := Append(nil, &m.Envelope)
		if err != nil {
			t.Fatalf("append: %v", err)
		}
		// A first comment that looks like a draft's first line, behind another line in
		// the file, would become one.
		again, err := Read(bytes.NewReader(append([]byte("x\n"), append(printed, "A: 1\n"...)...)))
		if err != nil {
			t.Fatalf("read again: %v in %q", err, printed)
		}
		want := m.Envelope
		want.Octets, want.Unknown = -1, []string{"x"}
		want.Comments = nil
		for _, c := range m.Comments {
			if c != "" {
				want.Comments = append(want.Comments, c)
			}
		}
		if diff := cmp.Diff(want, again.Envelope); diff != "" {
			t.Fatalf("%q printed as %q (-want +got):\n%s", file, printed, diff)
		}
	})
}

func benchmarkFile(body int) []byte {
	return []byte("comment octets 0000000000004096\nexternal\nrcvdfrom localhost ([127.0.0.1]:37290 \"EHLO client.example.net\")\n" +
		"with ESMTP\nfrom <sender@client.example.net>\ntodsn NOTIFY=FAILURE,DELAY ORCPT=rfc822;user@a.example.com\nto <user@a.example.com>\nenv-end\n" +
		strings.Repeat("X-Header-Field: a value of common length, as it stands in mail\n", 12) + "Subject: x\n\n" + strings.Repeat("body\n", body/5))
}

func BenchmarkRead(b *testing.B) {
	file := benchmarkFile(4096)
	r := bytes.NewReader(file)
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(file)
		assert.Get(Read(r))(b)
	}
}
