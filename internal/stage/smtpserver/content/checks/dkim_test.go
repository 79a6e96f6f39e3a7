package checks

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
)

// parts returns a message as a caller has it.
func parts(message string) ([]envelope.Field, func() (io.Reader, error)) {
	head := message
	if i := strings.Index(message, "\n\n"); i >= 0 {
		head = message[:i+1]
	}
	return envelope.Fields([]byte(head)), func() (io.Reader, error) { return strings.NewReader(message), nil }
}

func (c *Checker) dkimOf(t testing.TB, message string) []Signature {
	t.Helper()
	header, content := parts(message)
	return assert.Get(c.DKIM(context.Background(), header, content))(t)
}

const plainText = "From: Ann <ann@a.example>\nTo: bob@b.example\nSubject: folded\n\tsubject\n\nDear Bob,\n\n.\nno more  \n\n\n"

func TestDKIMVerifiesWhatWasSigned(t *testing.T) {
	big, ed, small := checkstest.RSA(t, 2048), checkstest.Ed25519(t), checkstest.RSA(t, 1024)
	_, server := checkstest.Serve(t, checkstest.TXT("rsa._domainkey.a.example", big.Record), checkstest.TXT("ed._domainkey.a.example", ed.Record),
		checkstest.TXT("old._domainkey.a.example", small.Record), checkstest.TXT("gone._domainkey.a.example", "v=DKIM1; p="),
		checkstest.TXT("two._domainkey.a.example", ed.Record), checkstest.TXT("two._domainkey.a.example", big.Record),
		checkstest.TXT("x._domainkey.other.example", ed.Record), checkstest.TXT("strict._domainkey.a.example", ed.Record+"; t=y : s"))
	c := New(Config{DKIM: true, Server: server})
	rsaSimple, edRelaxed := big.Sign(t, plainText, "a.example", "rsa", false), ed.Sign(t, plainText, "a.example", "ed", true)
	for name, tt := range map[string]struct {
		message string
		want    []Value
	}{
		"RSA, simple":               {rsaSimple, []Value{Pass}},
		"Ed25519, relaxed":          {edRelaxed, []Value{Pass}},
		"both":                      {big.Sign(t, edRelaxed, "a.example", "rsa", true), []Value{Pass, Pass}},
		"1024 bits":                 {small.Sign(t, plainText, "a.example", "old", true), []Value{Pass}},
		"a body that was changed":   {strings.Replace(rsaSimple, "Dear Bob", "Dear Rob", 1), []Value{Fail}},
		"a header that was changed": {strings.Replace(edRelaxed, "Subject: f", "Subject: F", 1), []Value{Fail}},
		"one of two was broken":     {strings.Replace(big.Sign(t, edRelaxed, "a.example", "rsa", false), "no more  \n", "no more\n", 1), []Value{Fail, Pass}},
		"a field added on top":      {"Received: from x\n" + rsaSimple, []Value{Pass}},
		"no signature":              {plainText, nil},
		"no key":                    {ed.Sign(t, plainText, "a.example", "none", true), []Value{PermError}},
		"a revoked key":             {ed.Sign(t, plainText, "a.example", "gone", true), []Value{PermError}},
		"two keys":                  {ed.Sign(t, plainText, "a.example", "two", true), []Value{PermError}},
		"another's key":             {ed.Sign(t, plainText, "a.example", "rsa", true), []Value{PermError}},
		"the name server fails":     {ed.Sign(t, plainText, "broken.example", "x", true), []Value{TempError}},
		"no tags":                   {"DKIM-Signature: nonsense\n" + plainText, []Value{PermError}},
		"an empty field":            {"DKIM-Signature:\n" + plainText, []Value{PermError}},
		"a body of no lines":        {ed.Sign(t, "From: a@a.example\n\n", "a.example", "ed", true), []Value{Pass}},
		"a line that is none":       {strings.Replace(edRelaxed, "Subject:", "junk\nSubject:", 1), []Value{Pass}},
		"a long signature":          {"DKIM-Signature: v=1; a=ed25519-sha256; d=a.example; s=ed; h=from; bh=AA==; b=" + strings.Repeat("AA==", maxSignature) + "\n" + plainText, []Value{PermError}},
		"a signature of many names": {"DKIM-Signature: v=1; a=ed25519-sha256; d=a.example; s=ed; h=from" + strings.Repeat(":a", maxNames+1) + "; bh=AA==; b=AA==\n" + plainText, []Value{PermError}},
		"a length tag":              {"DKIM-Signature: v=1; a=ed25519-sha256; d=a.example; s=ed; l=3; h=from; bh=AA==; b=AA==\n" + plainText, []Value{Policy}}, // Peer6
		// Peer6: a key with the flag s is for its own domain alone (RFC 6376 section 3.6.1).
		"a strict key, its domain":   {ed.SignAs(t, plainText, "a.example", "strict", "ann@a.example"), []Value{Pass}},
		"a strict key, one below":    {ed.SignAs(t, plainText, "a.example", "strict", "ann@news.a.example"), []Value{PermError}},
		"another key, one below":     {ed.SignAs(t, plainText, "a.example", "ed", "ann@news.a.example"), []Value{Pass}},
		"strict beside another":      {ed.Sign(t, ed.SignAs(t, plainText, "a.example", "strict", "ann@news.a.example"), "a.example", "ed", true), []Value{Pass, PermError}},
		"the header never ends":      {"DKIM-Signature: " + strings.Repeat("x", maxHeader) + "\n", []Value{PermError}},
		"a body of nothing but ends": {ed.Sign(t, plainText, "a.example", "ed", true) + strings.Repeat("\n", maxBlank+10), []Value{Neutral}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Value
			for _, s := range c.dkimOf(t, tt.message) {
				got = append(got, s.Value)
			}
			assert.Same(t, got, tt.want)
		})
	}
}

// Each signature costs a question and a digest: the sender does not choose how many.
func TestNoMoreSignaturesThanFiveAreChecked(t *testing.T) {
	ed := checkstest.Ed25519(t)
	z, server := checkstest.Serve(t, checkstest.TXT("ed._domainkey.a.example", ed.Record))
	c := New(Config{DKIM: true, Server: server})
	message := plainText
	for range 8 {
		message = ed.Sign(t, message, "a.example", "ed", true)
	}
	if got := c.dkimOf(t, message); len(got) != maxSignatures {
		t.Errorf("%d results", len(got))
	}
	assert.Equal(t, z.Count(), maxSignatures)
}

// An error of the disk is no result, and leaves nothing running.
func TestErrorOfTheContentIsNotASignatures(t *testing.T) {
	ed := checkstest.Ed25519(t)
	_, server := checkstest.Serve(t, checkstest.TXT("ed._domainkey.a.example", ed.Record))
	c := New(Config{DKIM: true, Server: server})
	message := ed.Sign(t, ed.Sign(t, plainText, "a.example", "ed", true), "a.example", "ed", true)
	header, _ := parts(message)
	broken := errors.New("the disk is gone")
	before := runtime.NumGoroutine()
	for _, n := range []int{0, 10, len(message) - 5} {
		_, err := c.DKIM(context.Background(), header, func() (io.Reader, error) {
			return io.MultiReader(strings.NewReader(message[:n]), &failing{broken}), nil
		})
		if !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	if after := runtime.NumGoroutine(); after > before+2 {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// No header of 1 MB keeps us busy.
func TestHostileHeaderCostsLittleTime(t *testing.T) {
	_, server := checkstest.Serve(t)
	c := New(Config{SPF: true, DKIM: true, DMARC: true, Server: server, Host: "mx.example.org"})
	names := "DKIM-Signature: v=1; a=ed25519-sha256; d=a.example; s=ed; h=from" + strings.Repeat(":a", maxNames-2) + "; bh=AA==; b=AA==\n"
	const size = 900 << 10
	for name, head := range map[string]string{
		"names":         strings.Repeat(names, 5) + strings.Repeat("b: c\n", 4990),
		"From, commas":  "From: " + strings.Repeat(",", size) + "\n",
		"From, open":    "From: " + strings.Repeat("(", size) + "\n",
		"From, quotes":  "From: " + strings.Repeat("\"\\", size/2) + "\n",
		"From, angles":  "From: " + strings.Repeat("<", size) + "\n",
		"From, many":    "From: " + strings.Repeat("a@b.example,", size/12) + "\n",
		"From, dots":    "From: " + strings.Repeat("a . ", size/4) + "@b.example\n",
		"results, open": "Authentication-Results: " + strings.Repeat("(", size) + "\n",
		"results, CRs":  "Authentication-Results: " + strings.Repeat("\r:", size/2) + "\n",
		"tags":          "DKIM-Signature: " + strings.Repeat("a=;", maxSignature/3-10) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			c.dkimOf(t, head+"\nbody\n")
			header, _ := parts(head + "\nbody\n")
			author(header)
			for _, f := range header {
				c.Forged(f)
			}
			if took := time.Since(begin); took > patience {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// patience is what a hostile header may cost on a busy machine.
const patience = 5 * time.Second

// The form that was signed has CRLF, wherever the pieces end.
func TestSignedFormHasCRLF(t *testing.T) {
	for _, text := range []string{"", "\n", "a\n\nb", "\r\n", "x\ry\n", strings.Repeat("ab\n", 40000)} {
		want := strings.ReplaceAll(text, "\n", "\r\n")
		for _, size := range []int{1, 2, 3, 100, 40000} {
			r := wireForm(strings.NewReader(text))
			var got []byte
			b := make([]byte, size)
			for {
				n, err := r.Read(b)
				got = append(got, b[:n]...)
				if err != nil {
					break
				}
				if n == 0 {
					t.Fatal("a read of nothing")
				}
			}
			assert.Equal(t, string(got), want)
		}
	}
}
