package smtpserver

import (
	"strings"
	"testing"

	"zmailer/internal/smtpserver/checks"
)

// BenchmarkAccept takes messages of 4 kB on one connection, client included: as they come,
// and held for checks or a filter.
func BenchmarkAccept(b *testing.B) {
	b.Run("as they come", func(b *testing.B) { accept(b, nil) })
	b.Run("held", func(b *testing.B) {
		accept(b, func(c *Config) {
			c.RelayNets, c.LocalNames = nil, ""
			c.Filters.Checks = checks.Config{DKIM: true} // there is no signature: nobody is asked
		})
	})
	b.Run("shown to a filter", func(b *testing.B) { accept(b, with(filterOn(b, &sieve{}))) })
}

func accept(b *testing.B, change func(*Config)) {
	r := start(b, change)
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	message := []byte("MAIL FROM:<a@example.net>\r\nRCPT TO:<b@mx.example.org>\r\nBDAT 4000 LAST\r\nSubject: x\r\n\r\n" + strings.Repeat("0123456789abcd\r\n", 249) + "\r\n")
	b.ReportAllocs()
	b.SetBytes(4000)
	for b.Loop() {
		if _, err := p.Write(message); err != nil {
			b.Fatal(err)
		}
		p.expect("250", "250", "250 2.0.0 queued")
	}
}
