package e2e

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Op10: senders are verified at their next hop as reject_unverified_sender of Postfix does, beside
// one on the same input: codes, enhanced codes and words are the same up to the next hop's own.
// Sec7: the null sender is never verified, so that two systems do not ask each other for ever;
// senders of ours are looked up in the tables.
func TestSendersAreVerifiedAsPostfixDoes(t *testing.T) {
	t.Parallel()
	hop := &peer.Sink{Rcpt: func(to string, _ int) string {
		switch {
		case strings.HasPrefix(to, "no"):
			return "550 5.1.1 no such mailbox"
		case strings.HasPrefix(to, "busy"):
			return "450 4.2.1 not now"
		case strings.HasPrefix(to, "blocked"):
			return "550 5.7.1 your host is listed"
		}
		return ""
	}}
	assert.Must(t, hop.Start())
	t.Cleanup(hop.Close)
	rules := map[string]string{
		"soft@mta.example":     "reject_unverified_sender",
		"hard@mta.example":     "reject_unverified_sender reject_code=550",
		"late@mta.example":     "reject_unverified_sender reject_code=550 defer_code=451",
		"then@mta.example":     "reject_unverified_sender|reject : \"554 5.7.1 <then@mta.example>: Recipient address rejected: Access denied\"",
		"unlisted@mta.example": "reject_unlisted_sender",
	}
	var access, users strings.Builder
	for to, list := range rules {
		users.WriteString(strings.TrimSuffix(to, "@mta.example") + "\n")
		for rule := range strings.SplitSeq(list, "|") {
			before, text, _ := strings.Cut(rule, " : ")
			if text != "" {
				text = " : " + text
			}
			fmt.Fprintf(&access, "%s to=%s%s\n", before, to, text)
		}
	}
	s := start(t, hop, func(s *suite.Suite) {
		s.Settings = map[string]string{"RELAYNETS": "192.0.2.1", "SMTPERRORS": "0", "RCPTCHECKTIME": "30s", "ADDRESSVERIFYTIME": "30s"}
		s.Files["access"], s.Files["users"] = access.String(), users.String()+"alice\nbob\n"
	})
	ask := func(addr, from, to string) string {
		k := connect(t, addr)
		defer k.say("QUIT", "221")
		k.say("MAIL FROM:<"+from+">", "250")
		return k.say("RCPT TO:<"+to+">", "")
	}
	// postfix is what Postfix answers where we differ on purpose.
	cases := []struct{ from, to, want, postfix string }{
		{from: "blocked@far.example", to: "soft@mta.example", want: "450 4.1.7 <blocked@far.example>: Sender address rejected: unverified address: "},
		{"blocked@far.example", "hard@mta.example", "450 4.1.7 <blocked@far.example>: Sender address rejected: unverified address: ",
			"550 5.1.7 <blocked@far.example>: Sender address rejected: undeliverable address: "},
		{from: "alice@far.example", to: "soft@mta.example", want: "250"},
		{from: "nobody@far.example", to: "soft@mta.example", want: "450 4.1.7 <nobody@far.example>: Sender address rejected: unverified address: "},
		{from: "nobody@far.example", to: "hard@mta.example", want: "550 5.1.7 <nobody@far.example>: Sender address rejected: undeliverable address: "},
		{from: "busy@far.example", to: "hard@mta.example", want: "450 4.1.7 <busy@far.example>: Sender address rejected: unverified address: "},
		{from: "busy@far.example", to: "late@mta.example", want: "451 4.1.7 <busy@far.example>: Sender address rejected: unverified address: "},
		{from: "busy@far.example", to: "then@mta.example", want: "554 5.7.1 <then@mta.example>: Recipient address rejected: Access denied"},
		{from: "", to: "hard@mta.example", want: "250"},
		{from: "alice@mta.example", to: "hard@mta.example", want: "250"},
		{from: "nosuchuser@mta.example", to: "hard@mta.example", want: "550 5.1.7 <nosuchuser@mta.example>: Sender address rejected: undeliverable address: "},
		{from: "nosuchuser@mta.example", to: "unlisted@mta.example", want: "550 5.1.0 <nosuchuser@mta.example>: Sender address rejected: User unknown"},
		{from: "alice@mta.example", to: "unlisted@mta.example", want: "250"},
		{from: "nobody@far.example", to: "unlisted@mta.example", want: "250"},
		{from: "", to: "unlisted@mta.example", want: "250"},
	}
	for _, c := range cases {
		if got := ask(s.SMTPAddr, c.from, c.to); !strings.HasPrefix(got, c.want) {
			t.Errorf("from %q to %s: got %q, want %q", c.from, c.to, got, c.want)
		}
	}
	asked, _ := call(t, s, "zmctl", "verify", "--list")
	wantIn(t, asked, "<nobody@far.example>", "<alice@far.example>")
	if strings.Contains(asked, "mta.example") || hop.Messages() != nil {
		t.Errorf("senders of ours were asked for elsewhere, or a message was sent: %s", asked)
	}
	trial, code := call(t, s, "zmctl", "test", "smtp", "--client", "198.51.100.7", "--helo", "x.example", "--from", "nobody@far.example", "--to", "hard@mta.example")
	if code != 1 || !strings.Contains(trial, "550 5.1.7 <nobody@far.example>") {
		t.Errorf("zmctl test smtp: exit code %d, %s", code, trial)
	}
	// The next hop is away: what is known counts, and nothing is refused for good.
	hop.Close()
	for from, want := range map[string]string{"alice@far.example": "250", "nobody@far.example": "550 5.1.7", "new@far.example": "450 4.1.7"} {
		if got := ask(s.SMTPAddr, from, "hard@mta.example"); !strings.HasPrefix(got, want) {
			t.Errorf("the next hop is away, from %s: got %q, want %s", from, got, want)
		}
	}

	judge := &peer.Sink{Rcpt: hop.Rcpt}
	assert.Must(t, judge.Start())
	t.Cleanup(judge.Close)
	// Postfix has one code for all recipients; it is asked with each.
	for code, list := range map[string][]string{"450": {"soft@mta.example"}, "550": {"hard@mta.example", "then@mta.example", "unlisted@mta.example"}} {
		settings := []string{
			"mynetworks = 192.0.2.1", "mydestination = mta.example", "local_recipient_maps = inline:{ {alice=1} {soft=1} {hard=1} {then=1} {unlisted=1} }",
			"alias_maps = inline:{ {alice=alice@sink.example} {soft=alice} {hard=alice} {then=alice} {unlisted=alice} }",
			"unverified_sender_reject_code = " + code, "smtpd_relay_restrictions = reject_unauth_destination", "smtpd_error_sleep_time = 0",
			"smtpd_restriction_classes = once, then, listed", "once = reject_unverified_sender", "then = reject_unverified_sender, reject", "listed = reject_unlisted_sender",
			"smtpd_recipient_restrictions = check_recipient_access inline:{ {soft@mta.example=once} {hard@mta.example=once} {then@mta.example=then} {unlisted@mta.example=listed} }",
			"address_verify_poll_delay = 1s", "address_verify_poll_count = 10",
		}
		p := startPostfix(t, judge.RouteHost(), settings...)
		for _, c := range cases {
			local := c.to
			if !strings.Contains(strings.Join(list, " "), local) {
				continue
			}
			if strings.HasPrefix(c.from, "alice@mta") && code == "550" && local == "hard@mta.example" {
				continue // verified by a delivery to its alias, which is not ours
			}
			var got string
			await(t, s, "Postfix's answer", func() (bool, error) {
				got = ask(p.Listen, c.from, c.to)
				return !strings.Contains(got, "in progress"), nil
			})
			if !strings.HasPrefix(got, cmp.Or(c.postfix, c.want)) {
				t.Errorf("Postfix answers otherwise, from %q to %s: %q, want %q", c.from, c.to, got, c.want)
			}
		}
	}
}
