package smtpclient

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
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

// stuffed returns what a message becomes on the line, read through r.
func stuffed(t testing.TB, r io.Reader) (string, *writes) {
	t.Helper()
	to := &writes{}
	var w dataWriter
	w.start(to, &Config{Timeouts: short(patience)})
	readErr, err := w.readBody(r)
	assert.Must(t, errors.Join(readErr, err))
	assert.Must(t, end(&w))
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

// simpleStuffing returns the same, written for clarity.
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
	assert.Equal(t, len(to.sizes), 1, "writes %v", to.sizes)
}

func TestBigMessageLeavesInWholeBuffers(t *testing.T) {
	_, to := stuffed(t, strings.NewReader(strings.Repeat("a line of text\n", 40000)))
	for i, n := range to.sizes[:len(to.sizes)-1] {
		if n < dataBuffer-len("a line of text\r\n") {
			t.Errorf("write %d has %d bytes, want a full buffer", i, n)
		}
	}
}

func TestReadErrorIsNoWriteError(t *testing.T) {
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
		assert.Must(t, end(&w))
		assert.Equal(t, to.all.String(), simpleStuffing(string(stored)))
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
				assert.Must(b, end(&w))
			}
		})
	}
}

// failing is a body that cannot be read.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestMailParameters(t *testing.T) {
	all := Extensions{Size: true, EightBitMIME: true, DSN: true, SMTPUTF8: true}
	cases := map[string]struct {
		ext  Extensions
		m    Message
		want string
	}{
		"nothing offered": {Extensions{}, Message{From: "a@b", Ret: "FULL", EnvID: "x", Size: 5}, "MAIL From:<a@b>"},
		"everything, in ZMailer's order": {all, Message{From: "a@b", Ret: "hdrs", EnvID: "EID1", Size: 396},
			"MAIL From:<a@b> BODY=8BITMIME SIZE=408 ENVID=EID1 RET=hdrs"},
		"null sender":         {all, Message{}, "MAIL From:<> BODY=8BITMIME"},
		"blank in a value":    {all, Message{From: "a@b", EnvID: "x SIZE=1", Ret: "FULL"}, "MAIL From:<a@b> BODY=8BITMIME RET=FULL"},
		"line end in a value": {all, Message{From: "a@b", EnvID: "x\r\nRSET"}, "MAIL From:<a@b> BODY=8BITMIME"},
		"UTF-8 sender":        {all, Message{From: "grüße@b"}, "MAIL From:<grüße@b> BODY=8BITMIME SMTPUTF8"},
		"domain in Unicode for a server without SMTPUTF8": {Extensions{}, Message{From: "a@bücher.example"},
			"MAIL From:<a@xn--bcher-kva.example>"},
		"quoted local part": {Extensions{}, Message{From: `"a b"@c`}, `MAIL From:<"a b"@c>`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn := &Conn{ext: c.ext}
			from, _, err := wireAddress(c.m.From, c.ext.SMTPUTF8)
			assert.Must(t, err)
			assert.Equal(t, string(conn.appendMail(nil, &c.m, from, from.utf8)), c.want)
		})
	}
}

func TestRcptParameters(t *testing.T) {
	r := Recipient{Address: "u@x", Notify: "SUCCESS,FAILURE", ORcpt: "rfc822;Orig+2BUser@x"}
	with := &Conn{ext: Extensions{DSN: true}}
	assert.Equal(t, string(with.appendRcpt(nil, &r, wire{path: "u@x"}, false)), "RCPT To:<u@x> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Orig+2BUser@x")
	without := &Conn{}
	assert.Equal(t, string(without.appendRcpt(nil, &r, wire{path: "u@x"}, false)), "RCPT To:<u@x>")
}

// RFC 6531 §3.1: an address that needs SMTPUTF8 fails where it is not offered; the
// others of the message go on.
func TestAddressThatNeedsSMTPUTF8(t *testing.T) {
	script := plainHello + `
C: MAIL From:<sender@client.test>
S: 250 ok
C: RCPT To:<a@test>
S: 250 ok
C: RCPT To:<b@xn--bcher-kva.example>
S: 250 ok
C: DATA
S: 354 go
BODY
S: 250 ok`
	c, _, p := open(t, Config{}, script)
	res, err := c.Send(message("grüße@test", "a@test", "b@bücher.example", "bad\raddress@test", ""))
	assert.Must(t, err)
	p.end(t)
	for i, want := range []string{"5.6.7", "2.0.0", "2.0.0", "5.1.3", "5.1.3"} {
		assert.Equal(t, res[i].Code.String(), want, "recipient %d (%v)", i, res[i].Err)
	}
}

func TestSenderThatNeedsSMTPUTF8(t *testing.T) {
	c, rec, _ := open(t, Config{}, plainHello+"WAIT")
	m := message("a@test", "b@test")
	m.From = "grüße@test"
	res, err := c.Send(m)
	assert.Must(t, err)
	for _, r := range res {
		if r.Outcome != status.Failed || r.Code.String() != "5.6.7" {
			t.Errorf("got %+v", r)
		}
	}
	if len(rec.writes) != 1 || !c.Usable() {
		t.Errorf("something was sent: %q; usable %v", rec.writes, c.Usable())
	}
}

func TestSMTPUTF8IsAskedForWhenOffered(t *testing.T) {
	c, _, p := open(t, Config{}, hello+`C: MAIL From:<sender@client.test> BODY=8BITMIME SMTPUTF8
C: RCPT To:<grüße@test> ORCPT=utf-8;grüße@test
C: DATA
S: 250 ok
S: 250 ok
S: 354 go
BODY
S: 250 ok`)
	m := message("grüße@test")
	m.Recipients[0].ORcpt = "utf-8;grüße@test"
	if res, err := c.Send(m); err != nil || res[0].Outcome != status.Delivered {
		t.Errorf("got %+v, %v", res, err)
	}
	p.end(t)
}

// M37, RFC 6533 §3: the original recipient is passed on to a server without SMTPUTF8.
func TestOriginalRecipientIsPassedOnInASCII(t *testing.T) {
	tests := map[string]struct {
		value string
		utf8  bool
		want  string
	}{
		"ASCII":               {"rfc822;Orig+2BUser@x", false, "rfc822;Orig+2BUser@x"},
		"utf-8 to SMTPUTF8":   {"utf-8;grüße@test", true, "utf-8;grüße@test"},
		"utf-8 to others":     {"UTF-8;grüße@test", false, `UTF-8;gr\x{FC}\x{DF}e@test`},
		"encoded already":     {`utf-8;gr\x{FC}e@test`, false, `utf-8;gr\x{FC}e@test`},
		"above the first 64k": {"utf-8;😀@test", false, `utf-8;\x{1F600}@test`},
		"no type":             {"grüße@test", false, "grüße@test"},
		"no UTF-8":            {"utf-8;\xff", false, "utf-8;\xff"},
	}
	for name, tt := range tests {
		assert.Equal(t, orcpt(tt.value, tt.utf8), tt.want, name)
	}
	c := &Conn{ext: Extensions{DSN: true}}
	assert.Equal(t, string(c.appendRcpt(nil, &Recipient{ORcpt: "utf-8;ü@x"}, wire{path: "u@x"}, false)), `RCPT To:<u@x> ORCPT=utf-8;\x{FC}@x`)
	// What cannot be written so is left out.
	assert.Equal(t, string(c.appendRcpt(nil, &Recipient{ORcpt: "rfc822;ü@x"}, wire{path: "u@x"}, false)), `RCPT To:<u@x>`)
}
