package smtpserver

import (
	"net/netip"
	"strings"
	"testing"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

// What comes back from the content filter is marked as filtered, and no rule of ours refuses what
// was accepted before; the same mail on the port of other hosts is refused, and never marked.
func TestReinjectedMailIsFilteredAndPassesNoRuleAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		role       session.Role
		nets       []netip.Prefix
		mail, rcpt string
	}{
		"the filter":      {session.RoleReinject, loopback, "250", "250"},
		"another client":  {session.RoleReinject, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "554 5.7.1", ""},
		"the port of all": {session.RoleMX, loopback, "250", "550"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := files(t, map[string]string{"access": "reject to=b@example.com\nreject from=a@example.net\n", contentrules.BodyFile: "/hello/ REJECT\n", "localnames": "example.com\n"})
			r := start(t, func(c *Config) {
				c.Access.Dir, c.Listen, c.ReinjectNets = dir, on(tt.role, anyPort), tt.nets
				c.Access.RelayNets = nil
			})
			p := r.greeted()
			p.say("MAIL FROM:<a@example.net>", tt.mail)
			if tt.rcpt == "" {
				r.nothing()
				return
			}
			p.say("RCPT TO:<b@example.com>", tt.rcpt)
			if tt.rcpt != "250" {
				r.nothing()
				return
			}
			p.content("Subject: x\n\nhello\n", "250")
			p.say("MAIL FROM:<a@example.net>", "250") // the connection is kept
			p.say("RSET", "250")
			p.say("QUIT", "221")
			assert.Equal(t, strings.Contains(r.only("filtered", "rules skipped", "external"), "\nfiltered\n"), true)
		})
	}
}
