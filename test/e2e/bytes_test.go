package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
)

// wire is text as SMTP carries it: CRLF line ends, an ended last line, a blank for a CR.
func wire(text string) string {
	text = strings.ReplaceAll(text, "\r", " ")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return strings.ReplaceAll(text, "\n", "\r\n")
}

// stuffed is wire with dots doubled at line beginnings.
func stuffed(text string) []byte {
	const cr = "\x01CR\x01" // which the source sends as it is
	text = strings.ReplaceAll("\r\n"+wire(strings.ReplaceAll(text, "\r", cr)), "\r\n.", "\r\n..")
	return []byte(strings.ReplaceAll(strings.TrimPrefix(text, "\r\n"), cr, "\r"))
}

var contents = map[string]string{
	"empty body":               "Subject: empty\n\n",
	"header without a body":    "Subject: header only\n",
	"one byte without newline": "Subject: one\n\nx",
	"lone dots":                "Subject: dots\n\n.\n..\n.x\nx.\n.\n",
	"NUL and 8-bit":            "Subject: octets\n\n\x00\x01\xff\xfe\x80 caf\xc3\xa9\n\x00",
	"From lines":               "Subject: from\n\nFrom here\n>From there\n\nFrom the end\n",
	"bare CR":                  "Subject: cr\n\na\rb\r\rc\n",
	"folded header":            "Subject: a\n b\n\tc\nX-Empty:\nX-Last: z\n\nbody\n",
	"header line of 200 kB":    "Subject: long\nX-Long: " + strings.Repeat("0123456789", 20000) + "\n\nbody\n",
	"8-bit header":             "Subject: caf\xe9\nX-Y: \xfe\n\nbody\n",
}

// Z4, and the trap "a body without a final newline": what is submitted arrives byte for
// byte below the lines that were added on top, by SMTP with CRLF and an ended last line,
// in a Maildir as it was.
func TestContentArrivesByteForByte(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	seen := map[string]bool{}
	n := 0
	for name, text := range contents {
		submit(t, s, text, "-f", "bob@mta.example", "alice@mta.example", "far@sink.example")
		n++
		if err := sink.Wait(n, patience); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := string(sink.Messages()[n-1].Data); !strings.HasSuffix(got, "\r\n"+wire(text)) {
			t.Errorf("%s: the sink got %q", name, abbreviate(got))
		}
		found := false
		for _, m := range awaitMail(t, s, "alice", n) {
			if !seen[string(m)] && strings.HasSuffix(string(m), "\n"+text) {
				found, seen[string(m)] = true, true
			}
		}
		if !found {
			t.Errorf("%s: no message in the Maildir ends with it", name)
		}
	}
	awaitEmpty(t, s)
}

// Z4: the same by SMTP in and out.
func TestContentBySMTPArrivesByteForByte(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	n := 0
	for name, text := range contents {
		src := peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: 1, From: "bob@mta.example",
			To: func(int) string { return "far@sink.example" }, Body: func(int) []byte { return stuffed(text) }}
		if err := src.Run(context.Background()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n++
		if err := sink.Wait(n, patience); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := string(sink.Messages()[n-1].Data); !strings.HasSuffix(got, "\r\n"+wire(text)) {
			t.Errorf("%s: the sink got %q", name, abbreviate(got))
		}
	}
	awaitEmpty(t, s)
}

func abbreviate(s string) string {
	if len(s) > 600 {
		return s[:300] + " ... " + s[len(s)-300:]
	}
	return s
}

// Z2: 100 MB go through in constant memory.
func TestHugeMessageTakesNoMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a 100 MB message")
	}
	const lines = 100 << 20 / 64
	line := strings.Repeat("x", 63) + "\n"
	want := sha256.New()
	for range lines {
		io.WriteString(want, strings.TrimSuffix(line, "\n")+"\r\n")
	}
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	cmd := s.Command("submit", "-i", "-f", "bob@mta.example", "far@sink.example", "alice@mta.example")
	cmd.Stdin = io.MultiReader(strings.NewReader("Subject: huge\n\n"), &repeat{line: line, left: lines})
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("submit: %v %s", err, out)
	}
	if err := sink.Wait(1, patience); err != nil {
		t.Fatal(err)
	}
	_, body, _ := bytes.Cut(sink.Messages()[0].Data, []byte("\r\n\r\n"))
	if got := sha256.Sum256(body); !bytes.Equal(got[:], want.Sum(nil)) {
		t.Errorf("the body at the sink differs (%d bytes)", len(body))
	}
	awaitEmpty(t, s)
	// And in by SMTP.
	src := peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: 1, From: "bob@mta.example",
		To: func(int) string { return "far@sink.example" }, Body: func(int) []byte {
			return append([]byte("Subject: huge\r\n\r\n"), bytes.Repeat([]byte(wire(line)), lines)...)
		}}
	if err := src.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := sink.Wait(2, patience); err != nil {
		t.Fatal(err)
	}
	const limit = 64 << 20
	for _, p := range processes(t, s) {
		if got := p.Peak(); got > limit {
			t.Errorf("%s grew to %d MB, want at most %d", p.Name, got>>20, limit>>20)
		}
	}
	files, err := filepath.Glob(filepath.Join(s.Maildir("alice"), "new", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("alice has %q, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Size() < 100<<20 {
		t.Errorf("alice's message: %v, %v", info, err)
	}
	awaitEmpty(t, s)
}

// repeat reads as a line many times.
type repeat struct {
	line string
	left int
	rest string
}

func (r *repeat) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		if r.rest == "" {
			if r.left == 0 {
				break
			}
			r.left--
			r.rest = r.line
		}
		k := copy(b[n:], r.rest)
		r.rest = r.rest[k:]
		n += k
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
