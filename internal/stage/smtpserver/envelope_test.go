package smtpserver

import (
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/mail/envelope"
)

// Atk2: what is answered with 250 can be read by a router, however much its recipients take:
// the one with which the envelope would be too large is told 452 while the client names it.
func TestAtk2AcceptedEnvelopeCanBeRead(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.MaxRecipients = 0 })
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	const batch = 500
	original := strings.Repeat("o", 470) + "@example.com" // RFC 3461 section 4.2 allows 500 octets
	taken, full := 0, false
	for n := 0; !full && n < 100*batch; n += batch {
		var lines strings.Builder
		for i := range batch {
			fmt.Fprintf(&lines, "RCPT TO:<r%d.%s@example.com> NOTIFY=FAILURE ORCPT=rfc822;%s\r\n", n+i, strings.Repeat("x", 50), original)
		}
		p.send(lines.String())
		for range batch {
			switch said := p.reply(); {
			case strings.HasPrefix(said, "250"):
				taken++
				if full {
					t.Fatalf("%d recipients are taken after one was not", taken)
				}
			case strings.HasPrefix(said, "452 4.5.3"):
				full = true
			default:
				t.Fatalf("recipient %d: %q", taken, said)
			}
		}
	}
	if !full || taken < 10_000 {
		t.Fatalf("%d recipients were taken, and the limit was met: %v", taken, full)
	}
	p.say("DATA", "354")
	p.say("Subject: x\r\n\r\nhi\r\n.", "250")
	m, err := envelope.Read(strings.NewReader(r.only()))
	if err != nil || len(m.Recipients) != taken {
		t.Fatalf("a router reads %+.200v, %v; want %d recipients", m, err, taken)
	}
}
