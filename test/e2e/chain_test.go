package e2e

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/stage/tasmtp/mx/mxtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Two systems of ours: what one signs and sends under TLS, the other verifies, files
// with the results on top, and refuses where its rules say so.
func TestSignedMailIsVerifiedByAnotherOfUs(t *testing.T) {
	t.Parallel()
	dns := mxtest.Start(t, "")
	cert, err := peer.NewCertificate(openDir(t), "mx.far.example")
	must(t, err)
	far := prepare(t, nil, func(s *suite.Suite) {
		s.Hostname = "mx.far.example"
		s.Settings = map[string]string{
			"RESOLVER": dns.Addr, "CHECKS": "spf dkim dmarc", "RELAYNETS": "192.0.2.0/24",
			"TLSCERT": cert.CertFile, "TLSKEY": cert.KeyFile,
		}
		s.Files["localnames"] = "far.example\n"
		s.Files["access"] = "reject dmarc=fail policy=reject : \"550 5.7.26 not vouched for\"\n"
	})
	begin(t, far)
	_, port := split(t, far.SMTPAddr)
	near := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RESOLVER": dns.Addr, "SMTPPORT": port}
		s.Files["routes"] = ". smtp!\n"
	})
	zone := "far.example. 300 IN MX 10 mx.far.example.\nmx.far.example. 300 IN A 127.0.0.1\n" +
		"mta.example. 300 IN A 127.0.0.9\nmta.example. 300 IN TXT \"v=spf1 ip4:127.0.0.1 -all\"\n" +
		"forged.example. 300 IN TXT \"v=spf1 -all\"\n"
	for _, domain := range []string{"mta.example", "forged.example"} {
		zone += "_dmarc." + domain + ". 300 IN TXT \"v=DMARC1; p=reject\"\n"
	}
	var lines strings.Builder
	for selector, kind := range map[string]string{"r": "rsa", "e": "ed25519"} {
		out, err := near.Command("zmctl", "--config", near.Config(), "dkim", "newkey", "--type", kind, "mta.example", selector).Output()
		if err != nil {
			t.Fatalf("zmctl dkim newkey: %v %s", err, out)
		}
		// The record as it is to be published: strings of at most 255 octets.
		var text []string
		for _, m := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(string(out), -1) {
			text = append(text, `"`+m[1]+`"`)
		}
		zone += fmt.Sprintf("%s._domainkey.mta.example. 300 IN TXT %s\n", selector, strings.Join(text, " "))
		fmt.Fprintf(&lines, "mta.example %s keys/%s.mta.example.pem\n", selector, selector)
	}
	dns.SetZone(t, zone)
	configure(t, near, "dkim", lines.String())
	begin(t, near)

	submit(t, near, letter, "-f", "bob@mta.example", "alice@far.example")
	submit(t, near, strings.Replace(letter, "bob@mta.example", "ceo@forged.example", 1), "-f", "bob@mta.example", "alice@far.example")
	mail := awaitMail(t, far, "alice", 1)[0]
	head, _, _ := bytes.Cut(mail, []byte("\n\n"))
	unfolded := strings.Join(strings.Fields(string(head)), " ")
	for _, want := range []string{
		"Authentication-Results: mx.far.example; spf=pass", "dkim=pass", "dmarc=pass", "header.from=mta.example", "with ESMTPS",
	} {
		if !strings.Contains(unfolded, want) {
			t.Errorf("no %q in\n%s", want, head)
		}
	}
	if n := strings.Count(unfolded, "dkim=pass"); n != 2 {
		t.Errorf("%d signatures verify, want that of RSA and that of Ed25519", n)
	}
	awaitLetters(t, far, 1)
	// The forger hears of it.
	event(t, near, "failed", "rcpt", "alice@far.example", "status", "5.7.26")
	wantIn(t, string(awaitMail(t, near, "bob", 1)[0]), "not vouched for")
	awaitEmpty(t, near)
	awaitEmpty(t, far)
}
