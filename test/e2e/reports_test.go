package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// notifications is a case of the matrix: what a sender wants to hear of, and what
// becomes of the message.
type notifications struct {
	user   string // the sender, who has a mailbox of his own
	notify string // of -N; "" says nothing
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

// M37: who is told of what, over the real programs.
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
		mail, err := suite.Mail(s.Maildir(c.user))
		must(t, err)
		got := ""
		for _, m := range mail {
			for line := range strings.Lines(string(m)) {
				if action, ok := strings.CutPrefix(line, "Action: "); ok {
					got += strings.TrimSpace(action)
				}
			}
		}
		if got != c.want {
			t.Errorf("NOTIFY %q, %s: got reports %q, want %q", c.notify, c.to, got, c.want)
		}
	}
	// What is not ours to report is asked of the next host.
	passed := 0
	for _, m := range with.Messages() {
		if strings.Contains(strings.Join(m.Commands, " "), "NOTIFY=SUCCESS") {
			passed++
		}
	}
	if passed != 2 {
		t.Errorf("%d messages asked the next host for a report of success, want 2", passed)
	}
}

// M37, S5: the report says what the sender gave along: ENVID and ORCPT, decoded; RET
// decides whether the body comes back.
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
		must(t, src.Run(context.Background()))
		report := ""
		for _, m := range awaitMail(t, s, "bob", len(seen)+1) {
			if !seen[string(m)] {
				report, seen[string(m)] = string(m), true
			}
		}
		if got := strings.Contains(report, "the secret body"); got != tt.full {
			t.Errorf("%s: the body came back %v, want %v", name, got, tt.full)
		}
		wantIn(t, report, "Return-Path: <>\n", "Content-Type: multipart/report", "message/delivery-status", "Auto-Submitted: auto-replied",
			"Original-Envelope-Id: QQ+314159\n", "Original-Recipient: rfc822;", "Orig+User@a.example.com\n",
			"Final-Recipient: rfc822; nosuch@sink.example\n", "Action: failed\n", "Status: 5.1.1\n", "550", "really",
			"Reporting-MTA: dns; mta.example\n", "Remote-MTA: X-IP-addr; [127.0.0.1]", "Subject: returned to sender\n")
	}
}

// M38: nobody is told of what the null sender's message came to; if the postmaster
// wants that, a copy stays in postman/.
func TestNoReportOfAReport(t *testing.T) {
	t.Parallel()
	for name, conf := range map[string]string{
		"dropped": schedulerConf,
		"copied":  "PARAM deliveryreports = postman\n" + schedulerConf,
	} {
		t.Run(name, func(t *testing.T) {
			sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "550 5.1.1 no such user" }})
			s := start(t, sink, func(s *suite.Suite) { s.Files["scheduler.conf"] = conf })
			// A message of the null sender, and one whose report finds nobody either.
			submit(t, s, "Subject: of nobody\n\n", "-f", "<>", "one@sink.example")
			submit(t, s, "Subject: of somebody\n\n", "-f", "gone@sink.example", "two@sink.example")
			first := event(t, s, "report-suppressed", "rcpt", "one@sink.example", "status", "5.1.1")
			report := event(t, s, "report", "rcpt", "gone@sink.example", "kind", "failed")
			second := event(t, s, "report-suppressed", "id", report.Get("report"), "rcpt", "gone@sink.example")
			if name == "dropped" {
				awaitEmpty(t, s)
				return
			}
			var left []string
			await(t, s, "copies alone", func() (bool, error) {
				var err error
				left, err = s.Left()
				return len(left) == 2 && strings.HasPrefix(left[0], "postman/"), err
			})
			text := ""
			for _, file := range left {
				if !strings.HasSuffix(file, "_undeliverable") {
					t.Errorf("got %s in postman/", file)
				}
				text += read(t, path(s, file))
			}
			wantIn(t, text, "Subject: of nobody\n", "Final-Recipient: rfc822; two@sink.example\n")
			for _, e := range []suite.Event{first, second} {
				if e.Get("copy") != "postman" {
					t.Errorf("got %+v", e)
				}
			}
			if _, err := os.Stat(s.Maildir("bob")); err == nil {
				t.Error("bob has mail")
			}
		})
	}
}
