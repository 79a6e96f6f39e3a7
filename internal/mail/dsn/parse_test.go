package dsn

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/emersion/go-message"
	"github.com/emersion/go-message/textproto"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
)

// parsed is a report as its receiver sees it.
type parsed struct {
	header     message.Header
	types      []string
	message    textproto.Header
	recipients []textproto.Header
	original   []byte
}

func parseReport(b []byte) (*parsed, error) {
	e, err := message.Read(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	p := &parsed{header: e.Header}
	mr := e.MultipartReader()
	if mr == nil {
		return nil, errors.New("no multipart")
	}
	for {
		part, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return nil, err
		}
		kind, _, err := part.Header.ContentType()
		if err != nil {
			return nil, err
		}
		p.types = append(p.types, kind)
		body, err := io.ReadAll(part.Body)
		if err != nil {
			return nil, err
		}
		switch len(p.types) {
		case 2:
			if err := p.parseStatus(body); err != nil {
				return nil, err
			}
		case 3:
			p.original = body
		}
	}
}

func (p *parsed) parseStatus(body []byte) error {
	// The newline before a boundary is the boundary's: the last line has none.
	r := bufio.NewReader(bytes.NewReader(append(body, '\n')))
	for n := 0; ; n++ {
		h, err := textproto.ReadHeader(r)
		if err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
		if n == 0 {
			p.message = h
		} else {
			p.recipients = append(p.recipients, h)
		}
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			return nil
		}
	}
}

// M37: whatever others said, the report reads back as the recipients it was
// written for, one block and one Action each, and what is returned is untouched.
func FuzzWrite(f *testing.F) {
	f.Add("sender@client.example.net", "fail1@b.example.com", "rfc822;fail1@b.example.com", "5.1.1",
		"dns; mx.b.example.com", "smtp; 550 5.1.1 no", "550 no\n--b\n", "QQ314159", []byte("Subject: x\n\nbody\n"), true, false)
	f.Add("пример@почта.example", "δοκιμή@παράδειγμα.example", "utf-8;a", "4.4.7 x", "evil\r\nAction: delivered",
		"smtp; \r\n\r\n", "\x00\x85\u2028", "+0A", []byte("\r\n\r"), true, true)
	f.Add("a@b", `"a  b"@c`, ";", "", "", ";", "", "", []byte{}, false, false)
	f.Fuzz(func(t *testing.T, to, final, orcpt, code, remote, diagnostic, said, envid string, original []byte, full, utf8 bool) {
		const boundary = "Xy7.fuzz-boundary"
		r := report(func(r *Report) {
			r.To, r.EnvID, r.Boundary, r.Full, r.UTF8 = to, envid, boundary, full, utf8
			r.Original = bytes.NewReader(original)
			r.Recipients = []Recipient{
				{Original: orcpt, Final: final, Action: Failed, Status: code, Remote: remote, Diagnostic: diagnostic, Text: said},
				{Final: "second@c.example.com", Action: Delayed, Status: "4.4.1", Text: said, Diagnostic: diagnostic},
			}
		})
		if bytes.Contains(original, []byte(boundary)) {
			return
		}
		var b bytes.Buffer
		if err := Write(&b, r); err != nil {
			if m, perr := address.Parse(to); perr == nil && !m.IsNull() {
				t.Fatalf("a good report was refused: %v", err)
			}
			return
		}
		p, err := parseReport(b.Bytes())
		if err != nil {
			t.Fatalf("%v in\n%s", err, b.Bytes())
		}
		if got, want := len(p.types), 3; got != want {
			t.Fatalf("parts: got %v, want %d of them", p.types, want)
		}
		checkRecipient(t, p, final)
		assert.Same(t, p.original, original, "returned")
		assert.Equal(t, strings.Join(p.header.Values("Auto-Submitted"), "|"), "auto-replied", "Auto-Submitted")
	})
}

func checkRecipient(t *testing.T, p *parsed, final string) {
	t.Helper()
	if got, want := len(p.recipients), 2; got != want {
		t.Fatalf("recipients: got %d, want %d", got, want)
	}
	for i, want := range []string{"failed", "delayed"} {
		h := p.recipients[i]
		assert.Equal(t, strings.Join(h.Values("Action"), "|"), want)
		assert.Equal(t, len(h.Values("Final-Recipient")), 1)
	}
	assert.Equal(t, p.recipients[1].Get("Final-Recipient"), "rfc822; second@c.example.com", "second recipient")
	m, err := address.Parse(final)
	if err != nil || m.IsNull() || !m.IsASCII() || len(m.String()) > 900 {
		return
	}
	assert.Equal(t, p.recipients[0].Get("Final-Recipient"), "rfc822; "+m.String(), "first recipient")
}

// Z2: a large message is returned through a buffer of constant size.
func TestLargeMessageIsReturnedInConstantMemory(t *testing.T) {
	const size = 64 << 20
	line := append(bytes.Repeat([]byte("x"), 63), '\n')
	original := io.LimitReader(&repeat{line: line}, size)
	texts := assert.Get(BuiltIn())(t)
	out := &counter{}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	assert.Must(t, Write(out, report(func(r *Report) { r.Full, r.Original, r.Texts = true, original, texts })))
	runtime.ReadMemStats(&after)
	if got := out.n; got < size {
		t.Errorf("written: got %d bytes, want more than %d", got, size)
	}
	if got, want := after.TotalAlloc-before.TotalAlloc, uint64(1<<20); got > want {
		t.Errorf("allocated: got %d bytes, want at most %d", got, want)
	}
}

// Bytes that are returned do not change with the sizes of the reads.
func TestReadSizesDoNotChangeTheReport(t *testing.T) {
	original := "Subject: x\n\nCR\rCRLF\r\n\r\r\n.\n\xff\x00" + strings.Repeat("line\r\n", 9000)
	full := func(r *Report) { r.Full, r.Original = true, strings.NewReader(original) }
	var want bytes.Buffer
	assert.Must(t, Write(&want, report(full)))
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"a byte at a time": iotest.OneByteReader, "halves": iotest.HalfReader, "data with EOF": iotest.DataErrReader,
	} {
		var got bytes.Buffer
		err := Write(&got, report(func(r *Report) { full(r); r.Original = wrap(r.Original) }))
		if err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%s: got another report (%d bytes, %v), want %d bytes", name, got.Len(), err, want.Len())
		}
	}
	if !strings.Contains(want.String(), "\n\n"+original+"\n--golden-boundary--\n") {
		t.Error("the returned message is not there as it was")
	}
}

type repeat struct {
	line []byte
	at   int
}

func (r *repeat) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		m := copy(b[n:], r.line[r.at:])
		r.at = (r.at + m) % len(r.line)
		n += m
	}
	return n, nil
}

type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) { c.n += int64(len(b)); return len(b), nil }
