package session

import (
	"bytes"
	"hash/crc32"
	"io"
	"regexp"
	"strings"
	"testing"
)

// pieces is an input that comes cut into pieces.
type pieces struct {
	rest [][]byte
	buf  []byte
	end  error
}

func (p *pieces) peek() []byte { return p.buf }
func (p *pieces) skip(n int)   { p.buf = p.buf[n:] }

func (p *pieces) more() error {
	if len(p.rest) == 0 {
		return p.end
	}
	p.buf = append(bytes.Clone(p.buf), p.rest[0]...)
	p.rest = p.rest[1:]
	return nil
}

func cut(b []byte, size int, end error) *pieces {
	p := &pieces{end: end}
	for len(b) > size {
		p.rest = append(p.rest, b[:size:size])
		b = b[size:]
	}
	p.rest = append(p.rest, b)
	return p
}

var (
	lastLine = regexp.MustCompile(`(?s)^(.*?)(^|\r\n)\.\r\n`)
	dotLine  = regexp.MustCompile(`(^|\r\n)\.`)
)

// reference decodes as RFC 5321 §4.5.2 says, without a thought of memory.
func reference(b []byte) (content []byte, used int, ok bool) {
	m := lastLine.FindSubmatchIndex(b)
	if m == nil {
		return nil, 0, false
	}
	b = b[:m[5]]
	b = dotLine.ReplaceAll(b, []byte("$1"))
	return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")), m[1], true
}

// FuzzContent: whatever the pieces, DATA's content is what the RFC makes of it, and
// what follows it is left alone.
func FuzzContent(f *testing.F) {
	for _, s := range []string{"a\r\n.\r\nQUIT", ".\r\n", "..\r\n.\r\n", "a\n.\n\r.\r\r\n.\r\n", "\r\n.\rx\r\n.\r\n", "\r\r\n.\r\n", ".\r\r\n.\r\n"} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		want, used, ok := reference(data)
		in := cut(bytes.Clone(data), int(size)+1, io.EOF)
		c := Content{in: in, dots: true}
		var got bytes.Buffer
		end, err := c.copyTo(&got)
		if end != ok || ok != (err == nil) {
			t.Fatalf("%q: end %v, %v; want %v", data, end, err, ok)
		}
		if !ok {
			return
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q in %d: got %q, want %q", data, size, got.Bytes(), want)
		}
		left := append(bytes.Clone(in.buf), bytes.Join(in.rest, nil)...)
		if !bytes.Equal(left, data[used:]) {
			t.Fatalf("%q: %q is left, want %q", data, left, data[used:])
		}
		if wantSize := int64(len(want) + bytes.Count(data[:used], []byte("\r\n")) - 1); c.size != wantSize {
			t.Fatalf("%q: size %d, want %d", data, c.size, wantSize)
		}
	})
}

// FuzzChunks: BDAT's content is the same with LF for CRLF, whatever the pieces.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"a\r\n.\r\n", "\r", "a\r\r\n", "\n.\n"} {
		f.Add([]byte(s), uint8(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		c := Content{in: cut(bytes.Clone(data), int(size)+1, errEnd)}
		var got bytes.Buffer
		end, err := c.copyTo(&got)
		if want := bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")); !end || err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q in %d: got %q, %v, %v; want %q", data, size, got.Bytes(), end, err, want)
		}
		if c.size != int64(len(data)) {
			t.Fatalf("%q: size %d, want %d", data, c.size, len(data))
		}
	})
}

func TestPathsAndParametersAreParted(t *testing.T) {
	for arg, want := range map[string][2]string{
		"FROM:<a@b>":                         {"<a@b>", ""},
		"FROM:<>":                            {"<>", ""},
		"FROM:<a@b> SIZE=1 BODY=7BIT":        {"<a@b>", " SIZE=1 BODY=7BIT"},
		"from: \t<a@b>  RET=FULL":            {"<a@b>", "  RET=FULL"},
		"from:a@b NOTIFY=NEVER":              {"a@b", " NOTIFY=NEVER"},
		"FROM:a@b":                           {"a@b", ""},
		`FROM:<"> x"@b> ORCPT=rfc822;x`:      {`<"> x"@b>`, " ORCPT=rfc822;x"},
		`FROM:<"\"> x"@b> X`:                 {`<"\"> x"@b>`, " X"},
		`FROM:"a b"@c X=1`:                   {`"a b"@c`, " X=1"},
		"FROM:<c@[IPv6:2001:db8::1]> N=1":    {"<c@[IPv6:2001:db8::1]>", " N=1"},
		"FROM:<a@b> ORCPT=rfc822;x:y NOTIFY": {"<a@b>", " ORCPT=rfc822;x:y NOTIFY"},
	} {
		if path, params, ok := cutPath(arg, "FROM:"); !ok || path != want[0] || params != want[1] {
			t.Errorf("%q gives %q, %q, %v, want %q", arg, path, params, ok, want)
		}
	}
	for _, arg := range []string{"", "FROM", "FROM:", "FROM: ", "FROM <a@b>", "TO:<a@b>", "FROM:<@x,@y:a@b>X", "FROM:<unfinished", `FROM:"a@b`} {
		if path, params, ok := cutPath(arg, "FROM:"); ok {
			t.Errorf("%q gives %q and %q", arg, path, params)
		}
	}
}

// BenchmarkData makes a message file's content of 20 MB as they come after DATA, without
// a disk and without a network: lines of 78 bytes with their ends.
func BenchmarkData(b *testing.B) {
	text := append(bytes.Repeat([]byte(strings.Repeat("x", 76)+"\r\n"), 20<<20/78), endOfData...)
	in := &repeated{text: text}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		in.at, in.head, in.tail = 0, 0, 0
		c := Content{in: in, dots: true}
		if end, err := c.copyTo(&sum{}); !end || err != nil {
			b.Fatal(end, err)
		}
	}
}

// repeated is an input that gives a text in pieces of a connection's buffer.
type repeated struct {
	text       []byte
	at         int
	buf        [largeBuffer]byte
	head, tail int
}

func (r *repeated) peek() []byte { return r.buf[r.head:r.tail] }
func (r *repeated) skip(n int)   { r.head += n }

func (r *repeated) more() error {
	r.tail = copy(r.buf[:], r.buf[r.head:r.tail])
	r.head = 0
	n := copy(r.buf[r.tail:], r.text[r.at:])
	r.at += n
	r.tail += n
	return nil
}

// sum is an output as a draft is one, without its file.
type sum struct {
	buf [32 << 10]byte
	n   int
	crc uint32
}

func (s *sum) Write(b []byte) (int, error) {
	if s.n+len(b) > len(s.buf) {
		s.crc = crc32.Update(s.crc, crc32.MakeTable(crc32.Castagnoli), s.buf[:s.n])
		s.n = 0
	}
	s.n += copy(s.buf[s.n:], b)
	return len(b), nil
}
