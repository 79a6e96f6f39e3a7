package sign

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// newKey writes a private key and gives its DNS record.
func newKey(t *testing.T, path, kind string) string {
	t.Helper()
	var private crypto.Signer
	var err error
	var public []byte
	switch kind {
	case "ed25519":
		_, k, e := ed25519.GenerateKey(rand.Reader)
		private, err = k, e
		public = []byte(k.Public().(ed25519.PublicKey))
	default:
		bits := 2048
		if kind == "weak" {
			bits = 1024
		}
		k, e := rsa.GenerateKey(rand.Reader, bits)
		if err = e; err == nil {
			private = k
			public, err = x509.MarshalPKIXPublicKey(&k.PublicKey)
		}
		kind = "rsa"
	}
	assert.Must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	assert.Must(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	assert.Must(t, os.WriteFile(path, text, 0o600))
	return "v=DKIM1; k=" + kind + "; p=" + base64.StdEncoding.EncodeToString(public)
}

// bench has a table, its keys and their records.
type bench struct {
	t     *testing.T
	dir   string
	table *Table
	zone  map[string]string
	log   strings.Builder
}

func newBench(t *testing.T, lines string) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), zone: map[string]string{}}
	for _, kind := range []string{"rsa", "ed25519"} {
		b.zone[kind+"._domainkey.example.org"] = newKey(t, filepath.Join(b.dir, kind+".pem"), kind)
	}
	path := filepath.Join(b.dir, "dkim")
	assert.Must(t, os.WriteFile(path, []byte(lines), 0o600))
	var err error
	if b.table, err = Open(path, Options{Log: slog.New(slog.NewTextHandler(&b.log, nil))}); err != nil {
		t.Fatal(err)
	}
	return b
}

// verify checks the signatures of a message with LF line ends.
func (b *bench) verify(message io.Reader) []*dkim.Verification {
	b.t.Helper()
	v, err := dkim.VerifyWithOptions(message, &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
		if txt, ok := b.zone[name]; ok {
			return []string{txt}, nil
		}
		return nil, errors.New("no such name: " + name)
	}})
	assert.Must(b.t, err)
	return v
}

func crlf(s string) io.Reader { return strings.NewReader(strings.ReplaceAll(s, "\n", "\r\n")) }

const both = "example.org rsa rsa.pem\nexample.org ed25519 ed25519.pem\n"

const header = "From: Alice <alice@example.org>\nTo: bob@example.net,\n carol@example.net\nSubject:  zwei  Worte \nSubject: again\nList-Id: <x.example.org>\nX-Other: y\nBroken line\n"

// RFC 6376, RFC 8463: both algorithms verify, whatever the body is like.
func TestSignaturesVerify(t *testing.T) {
	b := newBench(t, both)
	bodies := map[string]string{
		"text":                  "\nHello\n.\n world \t\n\n\n",
		"no line end":           "\nHello",
		"empty":                 "\n",
		"none":                  "",
		"only empty lines":      "\n\n\n \n\t\n",
		"bare carriage returns": "\na\rb\r\nc\n",
		"8-bit and NUL":         "\n\xff\x00ü\n",
		"a long line":           "\n" + strings.Repeat("x y", 50000) + "\n",
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			fields, err := Sign(b.table.For("example.org"), []byte(header), strings.NewReader(body), time.Now())
			assert.Must(t, err)
			for line := range strings.Lines(string(fields)) {
				if len(line) > 999 {
					t.Errorf("a line of %d bytes", len(line))
				}
			}
			message := string(fields) + header + body
			if body == "" {
				message += "\n" // what the verifier takes for the end of the header
			}
			all := b.verify(crlf(message))
			if len(all) != 2 {
				t.Fatalf("%d signatures", len(all))
			}
			for _, v := range all {
				if v.Err != nil || v.Domain != "example.org" {
					t.Errorf("%s: %v\n%s", v.Domain, v.Err, fields)
				}
			}
		})
	}
}

// A field that is added or changed on the way shows; what a mailing list adds does not.
func TestAddedFieldsBreakTheSignature(t *testing.T) {
	b := newBench(t, both)
	fields, err := Sign(b.table.For("example.org"), []byte(header), strings.NewReader("\nx\n"), time.Now())
	assert.Must(t, err)
	cases := map[string]struct {
		added string
		good  bool
	}{
		"nothing":         {"", true},
		"another From":    {"From: eve@example.net\n", false},
		"another To":      {"To: eve@example.net\n", false},
		"a third Subject": {"Subject: z\n", false},
		"a first Date":    {"Date: today\n", false},
		"Reply-To":        {"Reply-To: eve@example.net\n", false},
		"Content-Type":    {"Content-Type: text/html\n", false},
		"Received":        {"Received: by x\n", true},
		"List-Post":       {"List-Post: <mailto:x@example.net>\n", true},
		"Sender":          {"Sender: list@example.net\n", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for _, v := range b.verify(crlf(c.added + string(fields) + header + "\nx\n")) {
				if (v.Err == nil) != c.good {
					t.Errorf("got %v", v.Err)
				}
			}
		})
	}
}

func TestKeysForADomain(t *testing.T) {
	b := newBench(t, `
# comment
example.org        a  a.pem
example.org        b  /keys/b.pem expire=14d
.example.org       c  c.pem
.sub.example.org   d  d.pem d=example.org
Bücher.example     e  e.pem
`)
	cases := map[string]string{
		"example.org":             "a@example.org b@example.org",
		"EXAMPLE.org.":            "a@example.org b@example.org",
		"x.example.org":           "c@example.org",
		"sub.example.org":         "d@example.org",
		"y.x.sub.example.org":     "d@example.org",
		"otherexample.org":        "",
		"org":                     "",
		"":                        "",
		"xn--bcher-kva.example":   "e@xn--bcher-kva.example",
		"x.xn--bcher-kva.example": "",
	}
	for domain, want := range cases {
		var got []string
		for _, k := range b.table.For(domain) {
			got = append(got, k.Selector+"@"+k.Domain)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %s, want %s", domain, got, want)
		}
	}
	k := b.table.For("example.org")
	if k[0].Path != filepath.Join(b.dir, "a.pem") || k[1].Path != "/keys/b.pem" || k[1].Expire != 14*24*time.Hour {
		t.Errorf("got %+v %+v", k[0].Path, k[1])
	}
}

func TestBrokenLinesAreNamed(t *testing.T) {
	cases := map[string]string{
		"two words":       "example.org sel\n",
		"no domain":       ". sel key\n",
		"bad domain":      "a..b sel key\n",
		"bad selector":    "example.org s_l! key\n",
		"unknown option":  "example.org sel key x=y\n",
		"no time":         "example.org sel key expire=soon\n",
		"zero time":       "example.org sel key expire=0\n",
		"d= of nothing":   "example.org sel key d=\n",
		"the same twice":  "example.org sel key\nexample.org sel other\n",
		"two of them bad": "good.example sel key\nx\ny\n",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := parse("/etc/zmailer/dkim", []byte(text), Options{})
			if cerr := (*config.Error)(nil); !errors.As(err, &cerr) || cerr.Line == 0 || !strings.Contains(err.Error(), "/etc/zmailer/dkim:") {
				t.Errorf("got %v", err)
			}
			if name == "two of them bad" && (!strings.Contains(err.Error(), ":2:") || !strings.Contains(err.Error(), ":3:")) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// An unusable key is logged once; another of the domain serves alone; without one
// it is an *Error.
func TestKeysThatCannotBeUsed(t *testing.T) {
	b := newBench(t, "example.org rsa rsa.pem\nexample.org x other\nalone.example x other\n")
	other := filepath.Join(b.dir, "other")
	cases := map[string]struct {
		make   func()
		reason string
	}{
		"missing":               {func() {}, "no such file"},
		"weak":                  {func() { newKey(t, other, "weak") }, "1024 bits is too weak"},
		"not a key":             {func() { os.WriteFile(other, []byte("-----\n"), 0o600) }, "no PEM block"},
		"everybody may read it": {func() { newKey(t, other, "ed25519"); os.Chmod(other, 0o644) }, "chmod o="},
		"a certificate, not a key": {func() {
			os.WriteFile(other, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), 0o600)
		}, "no private key"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			os.Remove(other)
			c.make()
			for range 2 {
				_, err := Sign(b.table.For("alone.example"), []byte(header), strings.NewReader("\nx\n"), time.Now())
				if trouble := (*Error)(nil); !errors.As(err, &trouble) || trouble.Domain != "alone.example" || !strings.Contains(err.Error(), c.reason) {
					t.Errorf("got %v, want %s", err, c.reason)
				}
			}
			if got := strings.Count(b.log.String(), "dkim-key-unusable"); got != 1 || !strings.Contains(b.log.String(), c.reason) {
				t.Errorf("%d lines in the log: %s", got, b.log.String())
			}
			b.log.Reset()
		})
	}
	fields, err := Sign(b.table.For("example.org"), []byte(header), strings.NewReader("\nx\n"), time.Now())
	if err != nil || bytes.Count(fields, []byte("DKIM-Signature:")) != 1 {
		t.Errorf("got %q, %v", fields, err)
	}
	// Mended, it serves at once.
	os.Remove(other)
	b.zone["x._domainkey.alone.example"] = newKey(t, other, "ed25519")
	fields, err = Sign(b.table.For("alone.example"), []byte(header), strings.NewReader("\nx\n"), time.Now())
	assert.Must(t, err)
	if v := b.verify(crlf(string(fields) + header + "\nx\n")); v[0].Err != nil {
		t.Error(v[0].Err)
	}
}

func TestSignatureExpires(t *testing.T) {
	b := newBench(t, "example.org rsa rsa.pem expire=1d\n")
	now := time.Now().Truncate(time.Second)
	fields, err := Sign(b.table.For("example.org"), []byte(header), strings.NewReader("\nx\n"), now)
	assert.Must(t, err)
	v := b.verify(crlf(string(fields) + header + "\nx\n"))[0]
	if v.Err != nil || !v.Expiration.Equal(now.Add(24*time.Hour)) {
		t.Errorf("got %v, %v", v.Expiration, v.Err)
	}
}

// repeat is a text again and again, left times.
type repeat struct {
	text string
	left int
	at   int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && r.left > 0 {
		k := copy(p[n:], r.text[r.at:])
		n += k
		if r.at += k; r.at == len(r.text) {
			r.at = 0
			r.left--
		}
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// watched calls a function at each read.
type watched struct {
	io.Reader
	look func()
}

func (w watched) Read(p []byte) (int, error) {
	w.look()
	return w.Reader.Read(p)
}

// A message of 100 MB is signed in constant memory; one that would not be is not signed.
func TestLargeMessagesAreSignedInConstantMemory(t *testing.T) {
	b := newBench(t, both)
	line := strings.Repeat("All work and no play. ", 3) + "\n\n"
	lines := 100 << 20 / len(line)
	if testing.Short() {
		lines /= 10
	}
	body := func() io.Reader {
		return io.MultiReader(strings.NewReader("\n"), &repeat{text: line, left: lines})
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	fields, err := Sign(b.table.For("example.org"), []byte(header), watched{body(), func() {
		runtime.ReadMemStats(&after)
		most = max(most, after.HeapInuse)
	}}, time.Now())
	assert.Must(t, err)
	if most > before.HeapInuse+32<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before.HeapInuse, most)
	}
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(&wire{to: []io.Writer{w}}, io.MultiReader(bytes.NewReader(fields), strings.NewReader(header), body()))
		w.CloseWithError(err)
	}()
	for _, v := range b.verify(r) {
		if v.Err != nil {
			t.Error(v.Err)
		}
	}
	empty := io.MultiReader(strings.NewReader("\nx"), &repeat{text: "\n \n", left: maxEmpty}, strings.NewReader("x\n"))
	if _, err := Sign(b.table.For("example.org"), []byte(header), empty, time.Now()); !errors.Is(err, ErrShape) {
		t.Errorf("got %v", err)
	}
}

// A body that cannot be read is not our keys' fault, and leaves no goroutine.
func TestReaderThatFails(t *testing.T) {
	b := newBench(t, both)
	before := runtime.NumGoroutine()
	for range 10 {
		_, err := Sign(b.table.For("example.org"), []byte(header), io.MultiReader(strings.NewReader("\nx"), failing{}), time.Now())
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
	}
	// One that has answered may not have ended yet.
	for late := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Whatever the message is, what is signed verifies.
func FuzzSign(f *testing.F) {
	dir := f.TempDir()
	t := &testing.T{}
	b := &bench{t: t, dir: dir, zone: map[string]string{}}
	b.zone["e._domainkey.example.org"] = newKey(t, filepath.Join(dir, "e.pem"), "ed25519")
	keys, err := parse(filepath.Join(dir, "dkim"), []byte("example.org e e.pem\n"), Options{Log: slog.New(slog.DiscardHandler)})
	assert.Must(f, err)
	f.Add(header, "\nx\n")
	f.Add("From: a\n", "\n \t\r\n\n")
	f.Add("From : a\nfrom:\n b\nTo\n", "\n")
	f.Add("From: a\n: x\n\x00\xff: y\n", "\nx\r")
	f.Fuzz(func(t *testing.T, header, body string) {
		// The router gives whole lines without an empty one, the first of them a field.
		header = "From: a@example.org\n" + strings.ReplaceAll(header, "\n\n", "\n")
		if !strings.HasSuffix(header, "\n") {
			header += "\n"
		}
		header = strings.ReplaceAll(header, "\n\n", "\n")
		body = "\n" + body
		fields, err := Sign(keys["example.org"], []byte(header), strings.NewReader(body), time.Now())
		assert.Must(t, err)
		all, err := dkim.VerifyWithOptions(crlf(string(fields)+header+body), &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
			return []string{b.zone[name]}, nil
		}})
		if err != nil || len(all) == 0 || all[0].Err != nil {
			t.Fatalf("%v %v\n%q", all, err, string(fields)+header+body)
		}
	})
}
