package smtpserver

import (
	"strings"
	"testing"
	"zmailer/internal/run/assert"

	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/wire/milter/miltertest"
)

// BenchmarkAccept takes messages of 4 kB on one connection, client included: as they come,
// with METRICS, and held for checks or a filter.
func BenchmarkAccept(b *testing.B) {
	b.Run("as they come", func(b *testing.B) { accept(b, nil) })
	b.Run("counted", func(b *testing.B) {
		accept(b, func(c *Config) { c.Metrics = metrics.New("smtpserver", "unix") })
	})
	b.Run("held", func(b *testing.B) {
		accept(b, func(c *Config) {
			c.Access.RelayNets, c.Access.LocalNamesFile = nil, ""
			c.Filters.Checks = checks.Config{DKIM: true} // there is no signature: no query is made
		})
	})
	b.Run("shown to a filter", func(b *testing.B) { accept(b, with(filter(b, &miltertest.Filter{}))) })
}

func accept(b *testing.B, change func(*Config)) {
	r := start(b, change)
	p := r.greeted()
	message := []byte("MAIL FROM:<a@example.net>\r\nRCPT TO:<b@mx.example.org>\r\nBDAT 4000 LAST\r\nSubject: x\r\n\r\n" + strings.Repeat("0123456789abcd\r\n", 249) + "\r\n")
	b.ReportAllocs()
	b.SetBytes(4000)
	for b.Loop() {
		assert.Get(p.Write(message))(b)
		p.expect("250", "250", "250 2.0.0")
	}
}

// TestMessageAllocatesLittle counts the client's, too, which has some.
func TestMessageAllocatesLittle(t *testing.T) {
	r := start(t, nil)
	p := r.greeted()
	message := []byte("MAIL FROM:<a@example.net>\r\nRCPT TO:<b@mx.example.org>\r\nBDAT 12 LAST\r\nSubject: x\r\n")
	got := testing.AllocsPerRun(100, func() {
		assert.Get(p.Write(message))(t)
		p.expect("250", "250", "250 2.0.0")
	})
	// 62 to 65; with the race detector, from whose pools things get lost, some more.
	if got > 80 {
		t.Errorf("%v allocations for a message, at most 80 are to be", got)
	}
}
