package downgrade

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

// convert converts a whole stored message.
func convert(stored string, eight bool) (string, *Plan, error) {
	header, body := cut(stored)
	p, err := Inspect([]byte(header), strings.NewReader(body), eight)
	if err != nil {
		return "", nil, err
	}
	if !p.Changed() {
		p.Size = int64(len(stored))
		return stored, p, nil
	}
	out, err := io.ReadAll(p.Body(iotest.HalfReader(strings.NewReader(body))))
	return string(p.Header) + string(out), p, err
}

// cut parts a message before its empty line.
func cut(stored string) (header, body string) {
	if i := strings.Index(stored, "\n\n"); i >= 0 {
		return stored[:i+1], stored[i+1:]
	}
	return stored, ""
}

func TestConversion(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"text becomes quoted-printable": {
			"MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\nSubject: x\n\nGrüße = \n.\nzwei\t\nEnde",
			"MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\nSubject: x\n\nGr=C3=BC=C3=9Fe =3D=20\n.\nzwei=09\nEnde\n"},
		"text of other scripts becomes base64": {
			"MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\nпривет\n",
			"MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\n0L/RgNC40LLQtdGCDQo=\n"},
		"no MIME at all": {
			"Subject: x\n\ngrün\n",
			"Subject: x\nMIME-Version: 1.0\nContent-Type: text/plain; charset=unknown-8bit\nContent-Transfer-Encoding: quoted-printable\n\ngr=C3=BCn\n"},
		"no encoding is said": {
			"MIME-Version: 1.0\nContent-Type: text/plain\n\ngrün\n",
			"MIME-Version: 1.0\nContent-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\ngr=C3=BCn\n"},
		"encoding is said twice, folded": {
			"MIME-Version: 1.0\nContent-Transfer-Encoding:\n 8bit\nSubject: x\ncontent-transfer-encoding: 8bit\n\ngrün\n",
			"MIME-Version: 1.0\nContent-Transfer-Encoding: quoted-printable\nSubject: x\n\ngr=C3=BCn\n"},
		"only parts that need it": {
			"MIME-Version: 1.0\nContent-Transfer-Encoding: 8bit\nContent-Type: multipart/mixed; boundary=\"b c\"\n\nprämbel =\n--b c\n\nplain\n--b c  \nContent-Type: text/html\nContent-Transfer-Encoding: 8bit\n\n<b>grün</b>\n\n--b c\nContent-Type: image/png\nContent-Transfer-Encoding: base64\n\nAAAA\n--b c--\nepilög\n",
			"MIME-Version: 1.0\nContent-Transfer-Encoding: 7bit\nContent-Type: multipart/mixed; boundary=\"b c\"\n\npr=C3=A4mbel =3D\n--b c\n\nplain\n--b c  \nContent-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n<b>gr=C3=BCn</b>\n\n--b c\nContent-Type: image/png\nContent-Transfer-Encoding: base64\n\nAAAA\n--b c--\nepil=C3=B6g\n"},
		"nested, one boundary the start of the other": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=ab\n\n--ab\nContent-Type: multipart/alternative; boundary=abc\n\n--abc\n\nä\n--abc\n\nb\n--abc--\n\n--ab\n\nö\n--ab--",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=ab\n\n--ab\nContent-Type: multipart/alternative; boundary=abc\n\n--abc\nContent-Transfer-Encoding: base64\n\nw6Q=\n--abc\n\nb\n--abc--\n\n--ab\nContent-Transfer-Encoding: base64\n\nw7Y=\n--ab--\n"},
		"inner multipart is not closed": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nxxxxxxxx ä\n--a\n\nyyyyyyyy ö\n",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--a\nContent-Transfer-Encoding: quoted-printable\n\nyyyyyyyy =C3=B6\n"},
		"a message inside": {
			"MIME-Version: 1.0\nContent-Type: message/rfc822\nContent-Transfer-Encoding: 8bit\n\nSubject: in\n\nxxxxxxxx ä\n",
			"MIME-Version: 1.0\nContent-Type: message/rfc822\nContent-Transfer-Encoding: 7bit\n\nSubject: in\nMIME-Version: 1.0\nContent-Type: text/plain; charset=unknown-8bit\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n"},
		"a digest": {
			"MIME-Version: 1.0\nContent-Type: multipart/digest; boundary=b\n\n--b\n\nSubject: in\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\nxxxxxxxx ä\n--b--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/digest; boundary=b\n\n--b\n\nSubject: in\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--b--\n"},
		"message/global may be encoded": {
			"MIME-Version: 1.0\nContent-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/global\nContent-Transfer-Encoding: 8bit\n\nSubject: ä\n\nx\n--b--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/global\nContent-Transfer-Encoding: base64\n\nU3ViamVjdDogw6QNCg0KeA==\n--b--\n"},
		"said to be 8bit, and is not, beside what is": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Transfer-Encoding: 8bit\n\nplain\n--b\n\nxxxxxxxx ä\n--b--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Transfer-Encoding: 7bit\n\nplain\n--b\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--b--\n"},
		"said to be 8bit, and nothing is": {
			"MIME-Version: 1.0\nContent-Type: text/plain\nContent-Transfer-Encoding: 8bit\n\nplain\n",
			"MIME-Version: 1.0\nContent-Type: text/plain\nContent-Transfer-Encoding: 8bit\n\nplain\n"},
		"a part with CRLF in a message with LF": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: text/plain\r\n\r\nxxxxxxxx ä\n--a--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: text/plain\r\nContent-Transfer-Encoding: quoted-printable\n\r\nxxxxxxxx =C3=A4\n--a--\n"},
		"a header line as long as the buffer": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nX: " + strings.Repeat("x", fragment-3) + "\nContent-Type: text/plain\n\nxxxxxxxx ä\n--a--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nX: " + strings.Repeat("x", fragment-3) + "\nContent-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--a--\n"},
		"a signed part that is 7bit": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: multipart/signed; boundary=s\n\n--s\nContent-Transfer-Encoding: 8bit\n\nplain\n--s\n\nsig\n--s--\n--a\n\nxxxxxxxx ä\n--a--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: multipart/signed; boundary=s\n\n--s\nContent-Transfer-Encoding: 8bit\n\nplain\n--s\n\nsig\n--s--\n--a\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--a--\n"},
		"a long line": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\n\n" + strings.Repeat("a", 999) + "\n--a--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Transfer-Encoding: quoted-printable\n\n" + strings.Repeat(strings.Repeat("a", 75)+"=\n", 13) + strings.Repeat("a", 24) + "\n--a--\n"},
		"binary is encoded as it is stored": {
			"MIME-Version: 1.0\nContent-Type: application/x\nContent-Transfer-Encoding: binary\n\n\x00\n\r\n",
			"MIME-Version: 1.0\nContent-Type: application/x\nContent-Transfer-Encoding: base64\n\nAAoNCg==\n"},
		"text stored with CRLF, and a bare CR": {
			"MIME-Version: 1.0\nContent-Type: text/plain\n\nxxxxxxxxxx ä\r\nxxxxxxxx\rxxxxx \r\n",
			"MIME-Version: 1.0\nContent-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxxxx =C3=A4\nxxxxxxxx=0Dxxxxx=20\n"},
		"the same in base64": {
			"MIME-Version: 1.0\nContent-Type: application/x\n\nä\r\n\r",
			"MIME-Version: 1.0\nContent-Type: application/x\nContent-Transfer-Encoding: base64\n\nw6QNCg0=\n"},
		"binary text has lines": {
			"MIME-Version: 1.0\nContent-Type: text/plain\nContent-Transfer-Encoding: binary\n\na\nb",
			"MIME-Version: 1.0\nContent-Type: text/plain\nContent-Transfer-Encoding: base64\n\nYQ0KYg==\n"},
		"a boundary that cannot be parsed strictly": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"=_x\"; name=a b; x\n\n--=_x\n\nxxxxxxxx ä\n--=_x--\n",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"=_x\"; name=a b; x\n\n--=_x\nContent-Transfer-Encoding: quoted-printable\n\nxxxxxxxx =C3=A4\n--=_x--\n"},
		"parts without header, body or both": {
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n--b\n\n--b\nX: y\n--b\nX: y\n\n--b\n\n\n--b\n\nä\n--b",
			"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n--b\n\n--b\nX: y\n--b\nX: y\n\n--b\n\n\n--b\nContent-Transfer-Encoding: base64\n\nw6Q=\n--b\n"},
		"no body": {"Subject: x\n", "Subject: x\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, p, err := convert(c.in, false)
			assert.Must(t, err)
			assert.Same(t, got, c.want)
			if off := p.Size - int64(len(got)); max(off, -off) > 100+int64(len(got))/20 {
				t.Errorf("size %d was estimated, it is %d", p.Size, len(got))
			}
			again, _, err := convert(got, false)
			if err != nil || again != got {
				t.Errorf("converted again it is another message: %v", err)
			}
		})
	}
}

// RFC 3030 §3: a server that takes 8-bit content takes no binary content for that.
func TestBinaryIsEncodedForEveryServer(t *testing.T) {
	in := "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\nContent-Transfer-Encoding: binary\n\nprä\n--a\nContent-Transfer-Encoding: 8bit\n\ngrün\n--a\nContent-Type: application/x\nContent-Transfer-Encoding: binary\n\n\xff\x00\n--a--\n"
	want := "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\nContent-Transfer-Encoding: 8bit\n\nprä\n--a\nContent-Transfer-Encoding: 8bit\n\ngrün\n--a\nContent-Type: application/x\nContent-Transfer-Encoding: base64\n\n/wA=\n--a--\n"
	header, _ := cut(in)
	if s := NewScan([]byte(header), true); !s.Found() {
		t.Error("it is not known to be binary")
	}
	got, _, err := convert(in, true)
	if diff := cmp.Diff(got, want); err != nil || diff != "" {
		t.Errorf("%v, got -, want +:\n%s", err, diff)
	}
}

// RFC 6152 §3, RFC 3463 §3.7: what cannot be converted is refused, with the reason.
func TestWhatCannotBeConverted(t *testing.T) {
	cases := map[string]struct{ in, code, reason string }{
		"multipart without boundary":  {"Content-Type: multipart/mixed\n\nä\n", "5.6.3", "no boundary"},
		"8-bit in base64":             {"Content-Transfer-Encoding: base64\n\nAAAAä\n", "5.6.3", "base64"},
		"unknown encoding":            {"Content-Transfer-Encoding: x-own\n\nä\n", "5.6.3", "x-own"},
		"8-bit in a delivery status":  {"Content-Type: message/delivery-status\n\nä\n", "5.6.3", "must not be encoded"},
		"8-bit in a piece":            {"Content-Type: message/partial; id=x\n\nä\n", "5.6.3", "must not be encoded"},
		"signed":                      {"Content-Type: multipart/signed; boundary=s\n\n--s\n\nä\n--s\n\nsig\n--s--\n", "5.6.2", "signed"},
		"signed, deep inside":         {"Content-Type: multipart/signed; boundary=s\n\n--s\nContent-Type: message/rfc822\n\nContent-Type: multipart/mixed; boundary=m\n\n--m\n\nä\n--m--\n--s--\n", "5.6.2", "signed"},
		"nested too deep":             {nested(maxLevels+1) + "ä\n", "5.6.3", "nested more than 100 deep"},
		"too many parts":              {"Content-Type: multipart/mixed; boundary=b\n\n" + strings.Repeat("--b\n\n", maxParts) + "ä\n", "5.6.3", "more than 100000 parts"},
		"a part with an endless head": {"Content-Type: multipart/mixed; boundary=b\n\n--b\nX: " + strings.Repeat("x", maxHeader) + "\n\nä\n", "5.6.3", "header is larger"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, _, err := convert("MIME-Version: 1.0\n"+c.in, false)
			refused := (*Error)(nil)
			if !errors.As(err, &refused) || refused.Code.String() != c.code || !strings.Contains(refused.Reason, c.reason) {
				t.Errorf("got %v, want %s ... %s", err, c.code, c.reason)
			}
		})
	}
}

func nested(depth int) string {
	var b strings.Builder
	for i := range depth {
		fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=b%d-\n\n--b%d-\n", i, i)
	}
	return b.String() + "\n"
}

// A reader that fails is no fault of the message.
func TestReaderThatFails(t *testing.T) {
	body := func() io.Reader {
		return io.MultiReader(strings.NewReader("\nä\n"), iotest.ErrReader(io.ErrUnexpectedEOF))
	}
	if _, err := Inspect(nil, body(), false); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v", err)
	}
	p := assert.Get(Inspect(nil, strings.NewReader("\nä\n"), false))(t)
	if _, err := io.ReadAll(p.Body(body())); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v", err)
	}
}

// endless is the same line again and again.
type endless struct {
	line string
	left int64
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for n < len(p) && e.left > 0 {
		k := copy(p[n:], e.line[e.at:])
		k = int(min(int64(k), e.left))
		n, e.at, e.left = n+k, (e.at+k)%len(e.line), e.left-int64(k)
	}
	return n, nil
}

func FuzzConversion(f *testing.F) {
	f.Add("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nä\n--b--\n")
	f.Add("Content-Type: message/rfc822\n\nContent-Type: multipart/digest; boundary=\"b\"\n\n--b\n\n\xff\n\n--b--")
	f.Add("Subject: x\n\n\x00\n")
	f.Add("Content-Type:\x80BoundArY=")
	f.Add("Content-Transfer-Encoding: binary\n\n\r\n.\n")
	f.Add("Content-Type: multipart/mixed; boundary=b\n--b\nContent-Type: multipart/mixed; boundary=c\n--b--\n")
	for n := range uint64(40) {
		f.Add(newMaker(1, n).message())
	}
	f.Fuzz(func(t *testing.T, in string) {
		for _, eight := range []bool{false, true} {
			out, _, err := convert(in, eight)
			if refused := (*Error)(nil); err != nil && !errors.As(err, &refused) {
				t.Fatal(err)
			}
			if err != nil || eight {
				continue
			}
			for line := range strings.Lines(out) {
				if has8bit([]byte(line)) && !strings.Contains(in, strings.TrimSuffix(line, "\n")) {
					t.Fatalf("a line that was changed is not 7-bit: %q", line)
				}
			}
			again, _, err := convert(out, false)
			if err != nil || again != out && out+"\n" != again {
				t.Fatalf("converted again %v, got %q, want %q", err, again, out)
			}
		}
	})
}

func TestBinaryIsReadFromItsField(t *testing.T) {
	cases := map[string]bool{
		"Content-Transfer-Encoding: binary\n":                   true,
		"Content-Transfer-Encoding: (8bit) binary":              true,
		"Subject: x\ncontent-transfer-encoding:\n BINARY (x)\n": true,
		"Subject: binary\nContent-Transfer-Encoding: 8bit\n":    false,
		"Content-Transfer-Encoding: 8bit (binary)\nX: y\n":      false,
		"Content-Transfer-Encoding: 8bit\nX: y\n":               false,
		"":  false,
		"b": false,
		"c": false,
	}
	for header, want := range cases {
		s := NewScan([]byte(header), true)
		assert.Equal(t, s.Found(), want, "%q", header)
	}
}
