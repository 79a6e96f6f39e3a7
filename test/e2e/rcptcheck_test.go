package e2e

import (
	"strings"
	"testing"

	"zmailer/test/suite"
)

// Sec7: by default, unauthenticated clients cannot cause reports to forged senders: an unknown
// local recipient is rejected at RCPT. Clients of RELAYNETS and users who logged in get a
// report instead.
func TestSec7UnknownRecipientsOfUnauthenticatedClientsAreRejected(t *testing.T) {
	t.Parallel()
	const (
		outside = "XCLIENT ADDR=198.51.100.7"
		ours    = "XCLIENT ADDR=127.0.0.1"
		user    = "XCLIENT ADDR=198.51.100.7 LOGIN=bob"
		unknown = "nobody@mta.example"
	)
	for name, c := range map[string]struct {
		setting string
		want    map[string]string // by client: the answer about the unknown recipient
	}{
		"by default": {"", map[string]string{outside: "550 5.1.1", ours: "250", user: "250"}},
		"yes":        {"yes", map[string]string{outside: "550 5.1.1", ours: "250", user: "250"}},
		"all":        {"all", map[string]string{outside: "550 5.1.1", ours: "550 5.1.1", user: "550 5.1.1"}},
		"no":         {"no", map[string]string{outside: "250", ours: "250", user: "250"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, nil, func(s *suite.Suite) {
				s.Settings = map[string]string{"XCLIENTNETS": "127.0.0.0/8", "RCPTCHECKTIME": "30s", "RCPTCHECKTROUBLE": "defer"}
				s.Files["aliases"] = "postmaster: alice\n"
				if c.setting != "" {
					s.Settings["RCPTCHECK"] = c.setting
				}
			})
			for client, want := range c.want {
				k := connect(t, s.SMTPAddr)
				k.say(client, "220")
				k.say("EHLO client.example.net", "250")
				k.say("MAIL FROM:<bob@mta.example>", "250")
				k.say("RCPT TO:<alice@mta.example>", "250")
				k.say("RCPT TO:<postmaster>", "250")
				k.say("RCPT TO:<"+unknown+">", want)
				if client == outside {
					k.say("RCPT TO:<x@far.example>", "550 5.7.1")
				}
				k.say("QUIT", "221")
			}
			if c.setting != "" {
				return
			}
			// A message of a trusted client is accepted and comes back.
			connect(t, s.SMTPAddr).send("bob@mta.example", "Subject: x\r\n\r\nhi\r\n", "250 2.0.0", unknown)
			if mail := awaitMail(t, s, "bob", 1); !strings.Contains(string(mail[0]), "Status: 5.1.1") {
				t.Errorf("bob has %q, want a report", mail[0])
			}
			awaitEmpty(t, s)
		})
	}
}

// Sec7: 200 unknown recipients of one message cause no report.
func TestSec7NoReportsForUnknownRecipients(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RELAYNETS": "192.0.2.0/24", "RCPTCHECKTIME": "30s", "RCPTCHECKTROUBLE": "defer", "SMTPERRORS": "0"}
	})
	k := connect(t, s.SMTPAddr)
	k.say("MAIL FROM:<bob@mta.example>", "250")
	for i := range 200 {
		k.say("RCPT TO:<x"+strings.Repeat("y", i%20)+"@mta.example>", "550 5.1.1")
	}
	k.say("RCPT TO:<alice@mta.example>", "250")
	k.say("DATA", "354")
	k.say("Subject: x\r\n\r\n.", "250 2.0.0")
	awaitMail(t, s, "alice", 1)
	awaitEmpty(t, s)
	if mail, err := suite.Mail(s.Maildir("bob")); len(mail) > 0 {
		t.Errorf("got %d reports (%v), want none", len(mail), err)
	}
}

// Sec7: a confined server without root's rights checks recipients too.
func TestSec7ConfinedServerVerifiesRecipients(t *testing.T) {
	t.Parallel()
	s := confined(t, nil, func(s *suite.Suite) {
		s.Settings["RELAYNETS"], s.Settings["RCPTCHECKTIME"], s.Settings["RCPTCHECKTROUBLE"] = "192.0.2.0/24", "30s", "defer"
	})
	begin(t, s)
	k := connect(t, s.SMTPAddr)
	k.say("MAIL FROM:<bob@mta.example>", "250")
	k.say("RCPT TO:<no-such-user-of-this-machine@mta.example>", "550 5.1.1")
	k.say("RCPT TO:<"+daemonUser+"@mta.example>", "250")
}
