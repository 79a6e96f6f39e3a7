package workspec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

// FuzzParse: the error is of a known kind, each recipient is at
// its offset, and a reading of all recipients by ParseOnly is that of Parse.
func FuzzParse(f *testing.F) {
	for _, b := range samples(f) {
		f.Add(b)
	}
	f.Add(written(f))
	f.Add([]byte("s local - a 1\nr~smtp h b 1\nN x\ns l - c 1\nm\n\nM\nx\n\nz 3\nd 1:2:3::4\t\t\nh 1 2 x a=b  c=d\n"))
	f.Add([]byte("@ 0x00000003\ns l - a@b 1\nV +\nr           x h b 1\ne d\ns l - c 1\nV\nV  -\nr           x h b 1\nV +\nm\n\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		first, err := Parse(file)
		if err != nil {
			var bad *SyntaxError
			if !errors.As(err, &bad) && !errors.Is(err, ErrUnknownFormat) {
				t.Fatalf("error of an unknown kind: %v", err)
			}
			return
		}
		all := assert.Get(ParseOnly(file, func(int64, []byte, []byte) bool { return true }))(t)
		// It leaves out those about no recipient.
		all.Diagnostics, all.History, first.Diagnostics, first.History = nil, nil, nil, nil
		if diff := cmp.Diff(all, first); diff != "" {
			t.Fatalf("ParseOnly of %q, got - want +\n%s", file, diff)
		}
		for _, g := range first.Groups {
			for _, r := range g.Recipients {
				if file[r.Offset] != 'r' || Tag(file[TagOffset(r.Offset)]) != r.Tag || !bytes.Contains(file[r.Offset:], []byte(r.Address)) {
					t.Fatalf("%+v is not at its offset in %q", r, file)
				}
			}
		}
	})
}

// FuzzWriter: whatever the values hold, what Close accepts parses back to them and
// to nothing else.
func FuzzWriter(f *testing.F) {
	f.Add("1", "id", "smtp", "h", "a b", "1", "NOTIFY=NEVER", []byte("A: b\n"))
	f.Add("1\n", "id\r", "sm tp", "", "a\x00", "1", "", []byte("A: b\n\nC"))
	f.Fuzz(func(t *testing.T, name, ident, channel, host, address, privilege, notary string, header []byte) {
		var b bytes.Buffer
		w := NewWriter(&b)
		w.Preamble(&Spec{Message: name, Ident: ident})
		r := Recipient{Tag: TagToDo, Channel: channel, Host: host, Address: address, Privilege: privilege, Notary: notary}
		w.Group(Sender{Channel: channel, Host: host, Address: address, Privilege: privilege}, []Recipient{r}, header)
		if w.Close() != nil {
			return
		}
		s := assert.Get(Parse(b.Bytes()))(t)
		if len(s.Groups) != 1 || len(s.Groups[0].Recipients) != 1 || !s.Complete || s.Message != name || s.Ident != ident {
			t.Fatalf("got %+v from %q", s, b.Bytes())
		}
		g := s.Groups[0]
		got := g.Recipients[0]
		got.Offset, got.NotaryOffset = 0, 0
		assert.Same(t, got, r)
		block := b.Bytes()[g.HeaderOffset:g.HeaderEnd]
		if !bytes.Equal(bytes.TrimSuffix(block, []byte("\n")), bytes.TrimSuffix(header, []byte("\n"))) {
			t.Errorf("headers %q, want %q", block, header)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, file := range map[string][]byte{
		"recorded":       samples(b)["05-fail/transport-after"],
		"5000recipients": largeFile(b, 5000, 1000),
		"200kHeader":     largeFile(b, 1, 200<<10),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(file)))
			for b.Loop() {
				assert.Get(Parse(file))(b)
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	header := bytes.Repeat([]byte("Subject: a header line of usual length, more or less\n"), 10)
	spec := &Spec{Message: "4711-12", BodyOffset: 98, Ident: "<id@example.org>", ErrorTo: []string{"a@example.org"}}
	for name, n := range map[string]int{"1recipient": 1, "5000recipients": 5000} {
		rcpts := manyRecipients(n)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			w := NewWriter(io.Discard)
			for b.Loop() {
				w.Reset(io.Discard)
				w.Preamble(spec)
				w.Group(Sender{Channel: "local", Host: "a@example.org", Address: "a@example.org", Privilege: "1"}, rcpts, header)
				assert.Must(b, w.Close())
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	b.ReportAllocs()
	d := &Diagnostic{Recipient: 181, HeaderOffset: 548, NotaryOffset: 238, Notary: Notary{"a@b", "failed", "5.1.1", "smtp; 550 x", "dns; mx", "smtp[1]", ""}, Text: "550 x\ny"}
	e := &Event{Recipient: 181, Event: EventSent, Attrs: []Attr{{"owner", "17"}}}
	var buf []byte
	for b.Loop() {
		buf = AppendEvent(AppendDiagnostic(buf[:0], d), e)
	}
}

// BenchmarkLargeList is a specification of 100,000 recipients in 10,000 hosts, all of it
// and what one host needs.
func BenchmarkLargeList(b *testing.B) {
	var file bytes.Buffer
	w := NewWriter(&file)
	w.Preamble(&Spec{Message: "4711-12", BodyOffset: 98})
	w.Begin(&Sender{Channel: "local", Host: "a@example.org", Address: "a@example.org", Privilege: "1"})
	for i := range 100_000 {
		host := fmt.Sprintf("h%d.example", i%10_000)
		w.Recipient(&Recipient{Channel: "smtp", Host: host, Address: fmt.Sprintf("user%d@%s", i, host), Privilege: "65534"})
	}
	w.Header([]byte("Subject: x\n"))
	assert.Must(b, w.Close())
	for name, want := range map[string]func(int64, []byte, []byte) bool{
		"all":      nil,
		"one-host": func(_ int64, _, host []byte) bool { return string(host) == "h77.example" },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(file.Len()))
			for b.Loop() {
				assert.Get(ParseOnly(file.Bytes(), want))(b)
			}
		})
	}
}
