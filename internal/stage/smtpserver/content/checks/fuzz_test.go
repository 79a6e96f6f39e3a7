package checks

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dmarc"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
)

// No message makes the verifier do more than it should: it ends, with no more results than
// are allowed, and none of them is pass. A wrong signature is no error of the content.
func FuzzDKIM(f *testing.F) {
	key := checkstest.Ed25519(f)
	_, server := checkstest.Serve(f, checkstest.TXT("s._domainkey.a.example", key.Record))
	c := New(Config{DKIM: true, Server: server})
	f.Add("DKIM-Signature: v=1; a=ed25519-sha256; d=a.example; s=s; h=from; bh=AA==; b=AA==\nFrom: a@a.example\n\nbody\n")
	f.Add("DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/simple; d=a.example; i=@b.example; s=s; h=from:to:to; t=1; x=2; bh=; b=\nFrom: x\n\n")
	f.Add("DKIM-Signature:;;;=\n b=\n\nDKIM-Signature: q=dns\n")
	f.Add(strings.Repeat("DKIM-Signature: v=1\n", 9) + "\n \n\n")
	f.Fuzz(func(t *testing.T, message string) {
		head := message
		if i := strings.Index(message, "\n\n"); i >= 0 {
			head = message[:i+1]
		}
		got, err := c.DKIM(context.Background(), envelope.Fields([]byte(head)), func() (io.Reader, error) { return strings.NewReader(message), nil })
		if err != nil || len(got) > maxSignatures {
			t.Fatalf("%d results, %v", len(got), err)
		}
		for _, s := range got {
			if s.Value == Pass {
				t.Fatalf("%q passes", message)
			}
		}
		c.Field(&Results{DKIM: got})
	})
}

// From fields and policies are read without harm; a policy that is used is one of three.
func FuzzAuthorAndPolicy(f *testing.F) {
	f.Add("Ann <a@a.example>", "v=DMARC1; p=reject; sp=none; pct=10; adkim=s; rua=mailto:x@y,z")
	f.Add("\"<\" (, @\\", "v=DMARC1;p=;;=")
	c := New(Config{SPF: true, DMARC: true, Percent: func() int { return 50 }})
	f.Fuzz(func(t *testing.T, from, record string) {
		domain, ok := author(envelope.Fields([]byte("From: " + from)))
		if ok && (domain == "" || strings.ContainsAny(domain, " \t\r\n;\"<>@[")) {
			t.Errorf("%q is of %q", from, domain)
		}
		r, err := dmarc.Parse(record)
		if err != nil {
			return
		}
		for _, sub := range []bool{true, false} {
			switch p := c.policy(r, sub); p {
			case "none", "quarantine", "reject":
			default:
				t.Errorf("%q asks for %q", record, p)
			}
		}
	})
}
