package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

const wordsConf = `PARAM report-copies = keeper@mta.example
*/*
	interval=1s retries="1 1 2 3" expiry=1h reporttimes=2s
smtpx/*
	expiry=3s reporttimes=1h
smtp/*
smtpx/*
	command="ta-smtp --slots=20 $channel"
local/*
	command="ta-mailbox --slots=4 $channel"
`

// M37: through the real programs: a failure in German of an 8-bit message, an expiry in
// words of the postmaster's own, a delay, a success, and a sender whose address needs
// SMTPUTF8. Python's strict parser reads all of them.
func TestReportsInTheirSendersWords(t *testing.T) {
	t.Parallel()
	bad := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "550 5.1.1 no such user" }})
	dead := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "451 4.3.0 never" }})
	good := newSink(t, &peer.Sink{NoDSN: true})
	var s *suite.Suite
	slow := newSink(t, &peer.Sink{Rcpt: func(string, int) string {
		if s.Count("report", "kind", "delayed") > 0 {
			return ""
		}
		return "451 4.2.1 later"
	}})
	s = prepare(t, nil, func(s *suite.Suite) {
		s.Users = []string{"hans", "franz", "dora", "sven", "keeper"}
		s.Files["scheduler.conf"] = wordsConf
		s.Files["routes"] = "bad.example smtp!" + bad.RouteHost() + "\ndead.example smtpx!" + dead.RouteHost() +
			"\nslow.example smtp!" + slow.RouteHost() + "\n.example smtp!" + good.RouteHost() + "\n"
		s.Files["reports/fr/failed"] = "Subject: Pas arrivé\n\nBonjour de {{.Host}}.\n{{range .Groups}}{{range .Recipients}}\n* {{.Address}} ({{.Advice}})\n{{end}}{{end}}\n"
	})
	begin(t, s)
	submit(t, s, "Subject: x\nContent-Language: de\nContent-Transfer-Encoding: 8bit\nMIME-Version: 1.0\n\ngr\xfc\xdfe\n", "-f", "hans@mta.example", "x@bad.example")
	submit(t, s, "Subject: x\nAccept-Language: fr-CA, en;q=0.1\n\nx\n", "-f", "franz@mta.example", "x@dead.example")
	submit(t, s, "Subject: x\n\nx\n", "-f", "dora@mta.example", "x@slow.example")
	submit(t, s, "Subject: x\n\nx\n", "-f", "sven@mta.example", "-N", "success", "x@good.example")
	src := source(s, 1, "jürgen@utf8.example", "пример@bad.example", "Subject: Grüße\n\nтело\n")
	src.MailParams = "SMTPUTF8"
	must(t, src.Run(t.Context()))
	awaitEmpty(t, s)
	texts := map[string]string{}
	for user, words := range map[string][]string{
		"hans": {"Subject: Ihre Nachricht konnte nicht zugestellt werden\n", "Content-Language: de\n", "Dieses Postfach gibt es nicht.", "gr\xfc\xdfe\n",
			"Action: failed\n", "Status: 5.1.1\n", "Content-Type: message/rfc822\nContent-Transfer-Encoding: 8bit\n", "Final-Log-ID: S"},
		"franz": {"Subject: =?utf-8?q?Pas_arriv=C3=A9?=\n", "Bonjour de mta.example.\n* x@dead.example (expired)\n", "Action: failed\n", "Status: 4.3.0\n", "451 4.3.0 never"},
		"dora":  {"Action: delayed\n", "Status: 4.2.1\n", "Will-Retry-Until: ", "Content-Type: text/rfc822-headers\n"},
		"sven":  {"Action: relayed\n", "Status: 2."},
	} {
		mail := awaitMail(t, s, user, 1)
		if len(mail) != 1 {
			t.Errorf("%s has %d messages", user, len(mail))
		}
		texts[user] = string(mail[0])
		wantIn(t, texts[user], words...)
	}
	for _, m := range good.Messages() {
		if m.From == "" {
			texts["jürgen"] = strings.ReplaceAll(string(m.Data), "\r\n", "\n")
			if cmd := strings.Join(m.Commands, "\n"); !strings.Contains(cmd, " SMTPUTF8") || !strings.Contains(cmd, "<jürgen@utf8.example>") {
				t.Errorf("the report to jürgen went out by %q", cmd)
			}
		}
	}
	wantIn(t, texts["jürgen"], "To: <jürgen@utf8.example>\n", "Content-Type: message/global-delivery-status\n", "Final-Recipient: utf-8; пример@bad.example\n",
		"Content-Type: message/global\n", "Subject: Grüße\n", "тело\n")
	// Copies of the three failures, and of nothing else.
	if mail := awaitMail(t, s, "keeper", 3); len(mail) != 3 {
		t.Errorf("the keeper has %d messages, want 3", len(mail))
	}
	readStrictly(t, texts)
}

// readStrictly gives reports to Python's parser.
func readStrictly(t *testing.T, texts map[string]string) {
	t.Helper()
	readStrictlyN(t, texts, len(texts))
}

// readStrictlyN wants so many recipients in them.
func readStrictlyN(t *testing.T, texts map[string]string, recipients int) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Log("SKIPPED: no python3 here to read the reports with")
		return
	}
	dir := t.TempDir()
	args := []string{filepath.Join("..", "..", "internal", "mail", "dsn", "testdata", "strict.py")}
	for name, text := range texts {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		args = append(args, file)
	}
	out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput()
	if err != nil || strings.Count(string(out), `"Action"`) != recipients {
		t.Errorf("python3: %v, want %d recipients\n%.5000s", err, recipients, out)
	}
}

// M37, RFC 3461 §5.2.7: of an alias with several members the sender hears that it was
// expanded, and not of each; an alias with one is nothing that he hears of.
func TestAliasIsReportedAsExpanded(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Users = []string{"alice", "bob", "carl"}
		s.Files["aliases"] = "staff: alice, bob\none: alice\npostmaster: alice\n"
	})
	submit(t, s, "Subject: x\n\nx\n", "-f", "carl@mta.example", "-N", "success,failure", "staff@mta.example")
	submit(t, s, "Subject: y\n\ny\n", "-f", "carl@mta.example", "-N", "success,failure", "one@mta.example")
	awaitEmpty(t, s)
	text := ""
	for _, m := range awaitMail(t, s, "carl", 2) {
		text += string(m)
	}
	for want, n := range map[string]int{"Action: expanded\n": 1, "Action: delivered\n": 1, "Final-Recipient: rfc822; staff@mta.example\n": 1,
		"Original-Recipient: rfc822; one@mta.example\n": 1, "Action: failed": 0, "Subject: Your message was passed on to a list\n": 1} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%d times %q, want %d", got, want, n)
		}
	}
	for user, n := range map[string]int{"alice": 2, "bob": 1, "carl": 2} {
		if mail := awaitMail(t, s, user, n); len(mail) != n {
			t.Errorf("%s has %d messages, want %d", user, len(mail), n)
		}
	}
}
