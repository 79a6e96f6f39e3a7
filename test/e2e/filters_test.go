package e2e

import (
	"net"
	"strings"
	"testing"

	"github.com/emersion/go-milter"

	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/test/suite"
)

// bySubject is a milter that decides by the field Subject.
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

// M13: mail of an unauthenticated client through all programs: the results of the checks and a
// milter's changes are in the mailbox; a message that the milter quarantines waits in freezer/
// for an operator; one that it discards has an end in the ledger, which agrees with the files.
func TestIncomingMailIsCheckedAndFiltered(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
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
		k := connect(t, s.SMTPAddr)
		defer k.c.Close()
		k.send(from, "From: ann@a.example\r\nSubject: "+subject+"\r\n\r\nhi\r\n", want, "alice@mta.example")
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
	zmctl(t, s, "freezer", "thaw", strings.TrimPrefix(frozen, "freezer/"))
	awaitMail(t, s, "alice", 2)
	awaitEmpty(t, s)
	balance(t, s)
}
