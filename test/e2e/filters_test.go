package e2e

import (
	"fmt"
	"net"
	"net/textproto"
	"strings"
	"testing"

	"github.com/emersion/go-milter"

	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/test/suite"
)

// bySubject is a filter that goes by the field Subject.
type bySubject struct {
	milter.NoOpMilter
	subject string
}

func (f *bySubject) Header(name, value string, _ *milter.Modifier) (milter.Response, error) {
	if strings.EqualFold(name, "Subject") {
		f.subject = value
	}
	return milter.RespContinue, nil
}

func (f *bySubject) Body(m *milter.Modifier) (milter.Response, error) {
	switch f.subject {
	case "discard":
		return milter.RespDiscard, nil
	case "refuse":
		return milter.NewResponseStr('y', "554 5.7.9 not this"), nil
	case "quarantine":
		if err := m.Quarantine("looks odd"); err != nil {
			return nil, err
		}
	}
	if err := m.AddHeader("X-Filter", "seen"); err != nil {
		return nil, err
	}
	return milter.RespContinue, m.ReplaceBody([]byte("filtered\r\n"))
}

// A stranger's mail through all programs: what was found out and what a filter has made
// of it is in the mailbox; what it has put into quarantine waits for a person (M13); what
// it has thrown away has an end in the ledger, which agrees with the disk.
func TestStrangersMailIsCheckedAndFiltered(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &milter.Server{NewMilter: func() milter.Milter { return &bySubject{} },
		Actions: milter.OptAddHeader | milter.OptChangeBody | milter.OptQuarantine}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { _ = l.Close(); <-done })
	_, resolver := checkstest.Serve(t, `a.example. TXT "v=spf1 ip4:127.0.0.1 -all"`, `_dmarc.a.example. TXT "v=DMARC1; p=reject"`)
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RELAYNETS": "192.0.2.0/24", "CHECKS": `"spf dkim dmarc"`, "RESOLVER": resolver, "MILTERS": "inet:" + l.Addr().String()}
		s.Files["access"] = "reject dmarc=fail policy=reject : \"forged\"\n"
	})
	send := func(from, subject, want string) {
		t.Helper()
		c, err := textproto.Dial("tcp", s.SMTPAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, step := range []struct{ say, want string }{{"EHLO client.example", "220"}, {"MAIL FROM:<" + from + ">", "250"}, {"RCPT TO:<alice@mta.example>", "250"},
			{"DATA", "250"}, {"From: ann@a.example\r\nSubject: " + subject + "\r\n\r\nhi\r\n.", "354"}, {"QUIT", want}} {
			code, text, err := c.ReadResponse(0)
			if err != nil || !strings.HasPrefix(fmt.Sprintf("%d %s", code, text), step.want) {
				t.Fatalf("before %.20q: %d %s, %v, want %s", step.say, code, text, err, step.want)
			}
			if err := c.PrintfLine("%s", step.say); err != nil {
				t.Fatal(err)
			}
		}
	}
	send("ann@a.example", "good", "250")
	got := string(awaitMail(t, s, "alice", 1)[0])
	head, body, _ := strings.Cut(got, "\n\n")
	wantIn(t, head, "spf=pass smtp.mailfrom=ann@a.example;\n\tdkim=none;\n\tdmarc=pass header.from=a.example policy.dmarc=reject\nFrom: ann@a.example\nSubject: good\nX-Filter: seen")
	if body != "filtered\n" || strings.Index(head, "Received:") > strings.Index(head, "Authentication-Results:") {
		t.Errorf("got %s", got)
	}
	send("x@b.example", "good", "550 5.7.1 forged")
	send("ann@a.example", "refuse", "554 5.7.9 not this")
	send("ann@a.example", "discard", "250 2.0.0")
	send("ann@a.example", "quarantine", "250 2.0.0")
	frozen := event(t, s, "frozen", "program", "smtpserver", "reason", "looks odd").Get("name")
	wantIn(t, zmctl(t, s, "freezer", "show", strings.TrimPrefix(frozen, "freezer/")), "looks odd")
	zmctl(t, s, "freezer", "thaw", strings.TrimPrefix(frozen, "freezer/"))
	awaitMail(t, s, "alice", 2)
	awaitEmpty(t, s)
	balance(t, s)
}
