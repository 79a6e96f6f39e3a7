package downgrade

import (
	"io"
	"runtime"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

const relayHeader = "Received: from a by b; Mon, 2 Jan 2006 15:04:05 -0700\nFrom: Bob <bob@example.org>\nTo: far@example.net\nSubject: subject\nMIME-Version: 1.0\n"

// Content of 4 KB, as most mail has it: text, and parts of which one is base64.
func sample(multipart bool) (header, body string) {
	text := strings.Repeat("0123456789 abcdefghijklmnopqrstuvwxyz\n", 54)
	if !multipart {
		return relayHeader + "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n", "\n" + text + text
	}
	coded := strings.Repeat(strings.Repeat("QUJD", 19)+"\n", 27)
	return relayHeader + "Content-Type: multipart/mixed; boundary=\"=_1\"\n",
		"\n--=_1\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 7bit\n\n" + text +
			"--=_1\nContent-Type: image/png\nContent-Transfer-Encoding: base64\n\n" + coded + "--=_1--\n"
}

// What every message costs.
func BenchmarkScan(b *testing.B) {
	for name, multipart := range map[string]bool{"text": false, "multipart": true} {
		for server, eight := range map[string]bool{"8BITMIME": true, "old": false} {
			b.Run(name+"/"+server, func(b *testing.B) {
				h, text := sample(multipart)
				header, body := []byte(h), []byte(text)
				b.ReportAllocs()
				for b.Loop() {
					s := NewScan(header, eight)
					s.Body(body)
					if s.Found() {
						b.Fatal("found")
					}
				}
			})
		}
	}
}

// What a message costs that is converted.
func BenchmarkConversion(b *testing.B) {
	const multipart = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n"
	for name, c := range map[string]struct{ header, body string }{
		"quoted-printable": {"MIME-Version: 1.0\nContent-Type: text/plain\n", "\n" + strings.Repeat("Grüße aus dem Süden, wo es warm ist und die Sonne scheint.\n", 20000)},
		"base64":           {"MIME-Version: 1.0\nContent-Type: image/png\n", "\n" + strings.Repeat("\xff\xd8 0123456789\xe0\xe1\n", 60000)},
		"kept beside text": {multipart, "\n--b\n\nä\n--b\nContent-Type: image/png\nContent-Transfer-Encoding: base64\n\n" + strings.Repeat(strings.Repeat("QUJD", 19)+"\n", 15000) + "--b--\n"},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			for b.Loop() {
				p := assert.Get(Inspect([]byte(c.header), strings.NewReader(c.body), false))(b)
				assert.Get(io.Copy(io.Discard, p.Body(strings.NewReader(c.body))))(b)
			}
		})
	}
}

// A message of 200 MB takes no more memory than a small one.
func TestDel5LargeMessageTakesNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	const size = 50 << 20
	body := func() io.Reader {
		const head = "\n--b\nContent-Transfer-Encoding: "
		return io.MultiReader(
			strings.NewReader("\nä"), &endless{line: "text before the parts =\n", left: size},
			strings.NewReader(head+"quoted-printable\n\nä"), &endless{line: "a=C3=A4\xff = ==", left: size},
			strings.NewReader(head+"8bit\n\n"), &endless{line: "grüne Zeile\n", left: size},
			strings.NewReader(head+"base64\n\n"), &endless{line: "QUJD", left: size},
			strings.NewReader("\n--b--\n"))
	}
	header := []byte("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := assert.Get(Inspect(header, body(), false))(t)
	n, err := io.Copy(io.Discard, p.Body(body()))
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; err != nil || n < 4*size || allocated > 2<<20 || p.Parts != 4 {
		t.Errorf("%v, %d bytes of %d parts, %d bytes of memory", err, n, p.Parts, allocated)
	}
	if off := p.Size - n; max(off, -off) > n/10 {
		t.Errorf("size %d was estimated, it is %d", p.Size, n)
	}
}

// A Scan finds the label wherever the pieces that it gets begin and end, and no other word.
func TestDel9ScanFindsTheLabelInAnyPiece(t *testing.T) {
	for text, want := range map[string]bool{
		"\n--b\nContent-Transfer-Encoding: binary\n\nx\n":                               true,
		"\n--b-\n--\nx-Content-\ncOnTeNt-TrAnSfEr-EnCoDiNg:\n x\n\tbBiNaRy\n":           true,
		"Content-Transfer-Encoding: (x) binary":                                         true,
		"\nContent-Type: x\nContent-Transfer-Encoding: 8bit\nX: binary\n binary\n":      false,
		"\n Content-Transfer-Encoding: binary\nXContent-Transfer-Encoding: binary\n-\n": false,
		"\nContent-Transfer\n-Encoding: binary\nContent-Transfer-Encodin: binary\n":     false,
	} {
		for piece := 1; piece <= len(text); piece++ {
			s := NewScan([]byte("Content-Type: multipart/mixed\n"), true)
			for b := []byte(text); len(b) > 0; b = b[min(piece, len(b)):] {
				s.Body(b[:min(piece, len(b))])
			}
			assert.Equal(t, s.Found(), want)
		}
	}
}
