package smtpserver

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
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

// Where a filter says that a message comes from is in the log and in the message's file, for the
// router and the reports; the Received field names the filter. It concerns one message.
func TestFilterNamesTheClientByXFORWARD(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Listen, c.ReinjectNets, c.Access.RelayNets = on(session.RoleReinject, anyPort), loopback, nil
	})
	p := r.greeted()
	p.say("XFORWARD NAME=mx.far.example ADDR=192.0.2.9 PORT=4711 HELO=far+28x PROTO=ESMTPS IDENT=S1A SOURCE=REMOTE", "250 2.0.0")
	p.from("a@example.net").to("b@example.com").content("Subject: x\n\nhello\n", "250")
	first := r.only()
	assert.Contains(t, first, "\nforwarded far?x (mx.far.example [192.0.2.9]:4711)\n")
	assert.Contains(t, first, "\nrcvdfrom client.example.net ([127.0.0.1]:PORT)\n")
	m := assert.Get(envelope.Read(strings.NewReader(first)))(t)
	assert.Equal(t, m.Origin(), envelope.Origin{Client: "[192.0.2.9]:4711", Name: "mx.far.example"})
	for _, part := range []string{" client=127.0.0.1:", " orig-client=192.0.2.9:4711 orig-client-name=mx.far.example orig-helo=far?x orig-protocol=ESMTPS orig-id=S1A"} {
		assert.Contains(t, r.log.String(), part)
	}
	p.say("XFORWARD ADDR=192.0.2.10", "250")
	p.say("RSET", "250")
	p.from("a@example.net").to("c@example.com").content("Subject: x\n\nhello\n", "250")
	assert.Equal(t, strings.Count(r.log.String(), "orig-client="), 1)
}

// Each XFORWARD has the code of Postfix's reply, but for values that are not what they are to be.
func TestXFORWARDIsAnsweredAsByPostfix(t *testing.T) {
	addr := startPolicyPostfix(t, nil, "smtpd_authorized_xforward_hosts = 127.0.0.0/8", "mynetworks = 127.0.0.0/8", "smtpd_recipient_restrictions = permit_mynetworks, reject", "inet_protocols = all")
	r := start(t, func(c *Config) { c.XForwardNets = loopback })
	for _, session := range []string{
		"XFORWARD ADDR=192.0.2.1|XFORWARD NAME=a.example HELO=b PROTO=SMTP IDENT=X SOURCE=LOCAL PORT=1|MAIL FROM:<a@here.test>|XFORWARD ADDR=192.0.2.1|RSET|XFORWARD NAME=x",
		"XFORWARD", "XFORWARD ADDR", "XFORWARD ADDR=192.0.2", "XFORWARD ADDR=IPV6:2001:db8::1|XFORWARD ADDR=[unavailable]",
		"XFORWARD PORT=0|XFORWARD PORT=65535", "XFORWARD PORT=x", "XFORWARD SOURCE=HERE", "XFORWARD SHOE=42", "XFORWARD LOGIN=ann",
		"XFORWARD PROTO=" + strings.Repeat("x", 64), "XFORWARD PROTO=" + strings.Repeat("x", 65), "XFORWARD NAME=a_b.example", "XFORWARD NAME=a+28b", "XFORWARD NAME=[UNAVAILABLE] PORT=[UNAVAILABLE] SOURCE=[UNAVAILABLE]",
		"XFORWARD HELO=x+28y", "XFORWARD IDENT=" + strings.Repeat("x", 255), "xforward addr=192.0.2.1 source=remote",
	} {
		codes := func(to string) (list []string) {
			c := r.connectFrom(nil, assert.Get(netAddr(to))(t))
			defer c.Close()
			c.expect("220")
			c.say("EHLO client.test", "250")
			for line := range strings.SplitSeq(session, "|") {
				c.send(line + "\r\n")
				list = append(list, c.reply()[:3])
			}
			return list
		}
		if want, got := codes(addr), codes(r.addr); !slices.Equal(want, got) {
			t.Errorf("%s: Postfix %v, ours %v", session, want, got)
		}
	}
	// What Postfix takes, or takes for text that is not encoded.
	p := r.greeted()
	for _, line := range []string{"PORT=65536", "HELO=x+4", "HELO=x+0D+0Ay"} {
		p.say("XFORWARD "+line, "501 5.5.4")
	}
}
