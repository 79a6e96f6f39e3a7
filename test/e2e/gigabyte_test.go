package e2e

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
	"net/smtp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// tail hashes the last bytes of what is written, beginning with the first empty line.
type tail struct {
	hash.Hash
	head []byte // until the empty line has come
	body bool
}

func (w *tail) Write(b []byte) (int, error) {
	if w.body {
		return w.Hash.Write(b)
	}
	w.head = append(w.head, b...)
	if _, rest, ok := bytes.Cut(w.head, []byte("\r\n\r\n")); ok {
		w.body = true
		w.Hash.Write(rest)
	}
	return len(b), nil
}

// Z2: a message of 1 GB goes in and out by SMTP, and into a Maildir, in memory that does
// not grow with it.
func TestGigabyteGoesInAndOutInFlatMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a message of 1 GB")
	}
	const lines = 1 << 30 / 1024
	line := strings.Repeat("0123456789abcdef", 64)[:1022]
	sink := newSink(t, &peer.Sink{Content: func(*peer.Message) io.Writer { return &tail{Hash: sha256.New()} }})
	s := start(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"MAXSIZE": "2G"} })
	c, err := smtp.Dial(s.SMTPAddr)
	must(t, err)
	defer c.Close()
	for _, err := range []error{c.Hello("client.example"), c.Mail("bob@mta.example"), c.Rcpt("far@sink.example"), c.Rcpt("alice@mta.example")} {
		must(t, err)
	}
	w, err := c.Data()
	must(t, err)
	want := sha256.New()
	block := []byte(strings.Repeat(line+"\r\n", 64))
	if _, err := io.WriteString(w, "Subject: huge\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for range lines / 64 {
		want.Write(block)
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	must(t, w.Close())
	must(t, sink.Wait(1, patience))
	if got := sink.Messages()[0].Content.(*tail).Sum(nil); !bytes.Equal(got, want.Sum(nil)) {
		t.Error("the body at the sink differs")
	}
	awaitEmpty(t, s)
	const limit = 64 << 20
	for _, p := range processes(t, s) {
		t.Logf("%s: %d MB at most", p.Name, p.Peak()>>20)
		if got := p.Peak(); got > limit {
			t.Errorf("%s grew to %d MB, want at most %d", p.Name, got>>20, limit>>20)
		}
	}
	files, err := filepath.Glob(filepath.Join(s.Maildir("alice"), "new", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("alice has %q, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Size() < lines*1023 {
		t.Errorf("alice's message: %v, %v", info, err)
	}
}
