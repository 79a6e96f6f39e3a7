package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// notifications is a case of the matrix: what a sender wants to hear of, and what
// becomes of the message.
type notifications struct {
	user   string // the sender, who has a mailbox of his own
	notify string // of -N; "" is the default
	to     string
	want   string // action of the one report, "" for none
	header string // of the message
}

// matrix is RFC 3461 §4.1 and §5.2: every choice of NOTIFY with every outcome.
func matrix() []notifications {
	outcomes := map[string]struct{ to, success, delay, failure string }{
		"delivered":                  {"alice@mta.example", "delivered", "", ""},
		"relayed to a host with DSN": {"user@dsn.example", "", "", ""}, // that host reports
		"relayed to one without":     {"user@plain.example", "relayed", "", ""},
		"delayed":                    {"user@slow.example", "", "delayed", ""},
		"failed":                     {"user@bad.example", "", "", "failed"},
	}
	var list []notifications
	for _, o := range outcomes {
		for _, notify := range []string{"", "never", "success", "failure", "delay", "success,failure,delay"} {
			want := ""
			for _, w := range []struct{ word, action string }{{"success", o.success}, {"delay", o.delay}, {"failure", o.failure}} {
				if strings.Contains(notify, w.word) || notify == "" && w.word != "success" {
					want += w.action
				}
			}
			list = append(list, notifications{user: fmt.Sprintf("user%d", len(list)), notify: notify, to: o.to, want: want})
		}
	}
	// Z19: what a program sent is not answered on the way.
	return append(list, notifications{user: "robot", to: outcomes["delayed"].to, header: "Auto-Submitted: auto-generated\n"},
		notifications{user: "person", to: outcomes["delayed"].to, want: "delayed", header: "Auto-Submitted: no\n"})
}

// M37: each sender gets the reports that NOTIFY requests.
func TestSendersHearOfWhatTheyWanted(t *testing.T) {
	t.Parallel()
	cases := matrix()
	with := newSink(t, &peer.Sink{})
	without := newSink(t, &peer.Sink{NoDSN: true})
	bad := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "550 5.1.1 no such user" }})
	var s *suite.Suite
	slow := newSink(t, &peer.Sink{Rcpt: func(string, int) string {
		// Until the four who want to hear of the delay have heard.
		if s.Count("report", "kind", "delayed") >= 4 {
			return ""
		}
		return "451 4.2.1 later"
	}})
	s = prepare(t, nil, func(s *suite.Suite) {
		for _, c := range cases {
			s.Users = append(s.Users, c.user)
		}
		s.Files["routes"] = fmt.Sprintf("dsn.example smtp!%s\nplain.example smtp!%s\nbad.example smtp!%s\nslow.example smtpx!%s\n",
			with.RouteHost(), without.RouteHost(), bad.RouteHost(), slow.RouteHost())
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, "smtp/*\n", "smtpx/*\n\treporttimes=2s\nsmtp/*\n", 1)
	})
	begin(t, s)
	for _, c := range cases {
		args := []string{"-f", c.user + "@mta.example"}
		if c.notify != "" {
			args = append(args, "-N", c.notify)
		}
		submit(t, s, "Subject: x\n"+c.header+"\n", append(args, c.to)...)
	}
	awaitEmpty(t, s)
	for _, c := range cases {
		mail := assert.Get(suite.Mail(s.Maildir(c.user)))(t)
		got := ""
		for _, m := range mail {
			for line := range strings.Lines(string(m)) {
				if action, ok := strings.CutPrefix(line, "Action: "); ok {
					got += strings.TrimSpace(action)
				}
			}
		}
		assert.Equal(t, got, c.want, c.notify+" "+c.to)
	}
	// What is not ours to report is asked of the next host.
	passed := 0
	for _, m := range with.Messages() {
		if strings.Contains(strings.Join(m.Commands, " "), "NOTIFY=SUCCESS") {
			passed++
		}
	}
	assert.Equal(t, passed, 2)
}

// M37, S5: the report contains the sender's ENVID and ORCPT, decoded; RET decides whether it
// contains the body.
func TestReportTellsWhatTheSenderGave(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "550-5.1.1 no such user\r\n550 5.1.1 really" }})
	s := start(t, sink, nil)
	tests := map[string]struct {
		ret  string
		full bool
	}{
		"full":     {" RET=FULL", true},
		"headers":  {" RET=HDRS", false},
		"not said": {"", true}, // RFC 3461 §4.3 leaves it to us
	}
	seen := map[string]bool{}
	for name, tt := range tests {
		src := source(s, 1, "bob@mta.example", "nosuch@sink.example", "Subject: returned to sender\n\nthe secret body\n")
		src.MailParams, src.RcptParams = "ENVID=QQ+2B314159"+tt.ret, "NOTIFY=FAILURE ORCPT=rfc822;Orig+2BUser@a.example.com"
		assert.Must(t, src.Run(context.Background()))
		report := ""
		for _, m := range awaitMail(t, s, "bob", len(seen)+1) {
			if !seen[string(m)] {
				report, seen[string(m)] = string(m), true
			}
		}
		assert.Equal(t, strings.Contains(report, "the secret body"), tt.full, name)
		wantIn(t, report, "Return-Path: <>\n", "Content-Type: multipart/report", "message/delivery-status", "Auto-Submitted: auto-replied",
			"Original-Envelope-Id: QQ+314159\n", "Original-Recipient: rfc822;", "Orig+User@a.example.com\n",
			"Final-Recipient: rfc822; nosuch@sink.example\n", "Action: failed\n", "Status: 5.1.1\n", "550", "really",
			"Reporting-MTA: dns; mta.example\n", "Remote-MTA: X-IP-addr; [127.0.0.1]", "Subject: returned to sender\n")
	}
}

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
	assert.Must(t, src.Run(t.Context()))
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
		assert.Equal(t, len(mail), 1, user)
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
	assert.Equal(t, len(awaitMail(t, s, "keeper", 3)), 3)
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
		assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
		args = append(args, file)
	}
	out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput()
	if err != nil || strings.Count(string(out), `"Action"`) != recipients {
		t.Errorf("python3: %v, want %d recipients\n%.5000s", err, recipients, out)
	}
}

// M37, RFC 3461 section 5.2.7: for an alias with several members the sender gets "expanded" and no
// report for each member; for an alias with one member the sender gets that member's report.
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
		assert.Equal(t, strings.Count(text, want), n, want)
	}
	for user, n := range map[string]int{"alice": 2, "bob": 1, "carl": 2} {
		assert.Equal(t, len(awaitMail(t, s, user, n)), n, user)
	}
}

const frenchText = "Subject: {{.Action}} un\n\nBonjour.\n"

// M37: a text that cannot be used is refused with its line, by --check-config, at the
// start, and by a scheduler that runs on with the old one; a good one is taken.
func TestTextsAreReadAgain(t *testing.T) {
	t.Parallel()
	bad := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "550 5.1.1 no such user" }})
	conf := "PARAM report-language = fr\n" + schedulerConf
	s := start(t, bad, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = conf
		s.Files["reports/fr/failed"] = frenchText
	})
	file := strings.TrimSuffix(s.Config(), "zmailer.conf") + "reports/fr/failed"
	replace := func(text, comment string) {
		t.Helper()
		for name, content := range map[string]string{file: text, strings.TrimSuffix(s.Config(), "zmailer.conf") + "scheduler.conf": conf + comment} {
			assert.Must(t, os.WriteFile(name+".new", []byte(content), 0o644))
			assert.Must(t, os.Rename(name+".new", name))
		}
	}
	reported := func(subject string, n int) {
		t.Helper()
		submit(t, s, "Subject: x\n\nx\n", "-f", "bob@mta.example", "x@sink.example")
		found := 0
		for _, m := range awaitMail(t, s, "bob", n) {
			if strings.Contains(string(m), "Subject: "+subject+"\n") {
				found++
			}
		}
		if found == 0 {
			t.Errorf("no report %q", subject)
		}
	}
	reported("failed un", 1)
	replace("Subject: x\n\n{{.Wrong}}\n", "# a change\n")
	if e := event(t, s, "conf-refused"); !strings.Contains(e.Get("reason"), file+":3") || !strings.Contains(e.Get("reason"), ".Wrong is not known") {
		t.Errorf("got %+v", e)
	}
	out, err := s.Command("scheduler", "--config", s.Config(), "--check-config").CombinedOutput()
	if err == nil || !strings.Contains(string(out), file+":3") {
		t.Errorf("--check-config: %v\n%s", err, out)
	}
	reported("failed un", 2)
	replace(strings.Replace(frenchText, "un", "deux", 1), "# another\n")
	event(t, s, "conf-read")
	reported("failed deux", 3)
}

// M38: a server that answers with sixty kilobytes of control characters, of lines that look like
// fields of a report, and of boundaries causes a report that is short and valid, also for a
// thousand recipients. The programs stay small.
func TestHostileRepliesMakeReadableReports(t *testing.T) {
	t.Parallel()
	var reply strings.Builder
	for i := 0; reply.Len() < 60_000; i++ {
		fmt.Fprintf(&reply, "550-5.1.1 %d \x1b[2J\x00\x07 {{.Host}} --boundary Final-Recipient: rfc822; x@y\t%s\r\n", i, strings.Repeat("\xff", 300))
	}
	reply.WriteString("550 5.1.1 no")
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return reply.String() }})
	s := start(t, sink, func(s *suite.Suite) { s.Users = []string{"ann", "bob"} })
	submit(t, s, "Subject: one\n\nx\n", "-f", "ann@mta.example", "one@sink.example")
	args := []string{"-f", "bob@mta.example"}
	const many = 1010
	for i := range many {
		args = append(args, fmt.Sprintf("r%d@sink.example", i))
	}
	submit(t, s, "Subject: many\n\nx\n", args...)
	texts := map[string]string{"ann": string(awaitMail(t, s, "ann", 1)[0])}
	await(t, s, "all reports", func() (bool, error) {
		mail, err := suite.Mail(s.Maildir("bob"))
		n := 0
		for i, m := range mail {
			texts[fmt.Sprint("bob", i)] = string(m)
			n += strings.Count(string(m), "\nFinal-Recipient: rfc822; r")
		}
		return n >= many, err
	})
	awaitEmpty(t, s)
	total := 0
	for name, text := range texts {
		n := strings.Count(text, "\nFinal-Recipient: rfc822; ")
		total += n
		if n > 1000 || len(text) > 1<<20+n*10<<10 {
			t.Errorf("%s: %d bytes on %d recipients", name, len(text), n)
		}
		if strings.ContainsAny(text, "\x00\x07\x1b\r") || strings.Contains(text, "\nFinal-Recipient: rfc822; x@y") {
			t.Errorf("%s: the reply is not quoted safely", name)
		}
	}
	assert.Equal(t, total, many+1)
	if e := event(t, s, "failed", "rcpt", "one@sink.example"); len(e.Get("reply")) > 1000 {
		t.Errorf("a reply of %d bytes in the log", len(e.Get("reply")))
	}
	for _, p := range processes(t, s) {
		if peak := p.Peak(); peak > 200<<20 {
			t.Errorf("%s took %d bytes", p.Name, peak)
		} else {
			t.Logf("%s: %d MB at most", p.Name, peak>>20)
		}
	}
	for name, text := range texts {
		if n := strings.Count(text, "\nAction: "); n > 0 {
			readStrictlyN(t, map[string]string{name: text}, n)
		}
	}
}
