package smtpserver

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// Atk6: an unauthenticated client from a foreign network may name fewer recipients, and sends
// the message to those. RFC 5321 §4.5.3.1.8
func TestAtk6UnauthenticatedClientsNameFewerRecipients(t *testing.T) {
	const most = 100
	foreign := func(c *Config) {
		c.MaxRecipients, c.MaxRecipientsUnauth = 500, most
		c.Access.RelayNets, c.Limits.Exempt = nil, nil
	}
	for name, tt := range map[string]struct {
		change func(*Config)
		taken  int
	}{
		"a foreign network": {func(*Config) {}, most},
		"RELAYNETS":         {func(c *Config) { c.Access.RelayNets = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }, most + 10},
		"LIMITSEXEMPT":      {func(c *Config) { c.Limits.Exempt = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }, most + 10},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { foreign(c); tt.change(c) })
			p := r.dial()
			p.say("EHLO c", "250")
			p.say("MAIL FROM:<a@b.example>", "250")
			for i := range most + 10 {
				want := "250"
				if i >= tt.taken {
					want = "452 4.5.3"
				}
				p.say("RCPT TO:<r"+strconv.Itoa(i)+"@localhost>", want)
			}
			p.say("DATA", "354")
			p.say("Subject: x\r\n\r\nhi\r\n.", "250")
			if got := strings.Count(r.only(), "\nto "); got != tt.taken {
				t.Errorf("%d recipients were taken, want %d", got, tt.taken)
			}
		})
	}
}
