package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/stage/tasmtp/tlsrpt"
	"zmailer/internal/wire/smtpclient"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Z6: tls= and auth= of a clause reach the agents: the clause's mail goes verified and under
// its account, other mail to the same server as the file tls has it.
func TestTLSAndAccountOfAClause(t *testing.T) {
	t.Parallel()
	ca := peer.NewCA(t, "own")
	var logins atomic.Value
	logins.Store("")
	sink := (&tasmtptest.Sink{TLS: &tls.Config{Certificates: []tls.Certificate{ca.Issue("127.0.0.1")}}, Secure: []string{"AUTH LOGIN PLAIN"},
		Answer: func(command string) string {
			if login, ok := strings.CutPrefix(command, "AUTH PLAIN "); ok {
				logins.Store(login)
				return "235 2.7.0 in"
			}
			return ""
		}}).Start(t, "", "")
	host := fmt.Sprintf("[127.0.0.1]:%d", sink.Port())
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Files["routes"] = ".partner.example smtp-partner!" + host + "\n. smtp!" + host + "\n"
		s.Files["tls"] = "* none\n"
		s.Files["scheduler.conf"] = `*/* interval=1s retries=1 expiry=1d
smtp-partner/*
	tls="verify ca=` + ca.File() + `" auth=partner
	command="ta-smtp $channel"
smtp/*
	command="ta-smtp $channel"
local/*
	command="ta-mailbox $channel"
`
	})
	credentials := filepath.Join(filepath.Dir(s.Config()), "credentials")
	must(t, os.WriteFile(credentials, []byte(host+" us secret name=partner\n"), 0o600))
	begin(t, s)
	submit(t, s, "Subject: tls\n\nbody\n", "-f", "bob@mta.example", "u@partner.example")
	submit(t, s, "Subject: tls\n\nbody\n", "-f", "bob@mta.example", "u@else.example")
	for _, m := range sink.WaitMessages(2) {
		partner := strings.Contains(m.Rcpts[0], "u@partner.example")
		if (m.TLS != nil) != partner {
			t.Errorf("%v: under TLS %v", m.Rcpts, m.TLS != nil)
		}
	}
	if got := logins.Load(); got != "AHVzAHNlY3JldA==" {
		t.Errorf("got login %q", got)
	}
}

// zmctl tlsrpt prints the report of a day as JSON.
func TestReportOfTLS(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	write(t, filepath.Join(s.PostOffice(), tlsrpt.Dir, "2026-11-22"),
		`{"domain":"a.example","type":"no-policy-found","mx":"mx.a.example","result":"starttls-not-supported","count":3}`+"\n")
	var r tlsrpt.Report
	ask(t, s, &r, "tlsrpt", "2026-11-22", "a.example")
	if r.Organization != "mta.example" || r.Contact != "postmaster@mta.example" || len(r.Policies) != 1 || r.Policies[0].Summary.Bad != 3 {
		t.Errorf("got %+v", r)
	}
	exits(t, s, 1, "zmctl", "tlsrpt", "2020-01-01")
}

// RFC 8689, RFC 7677: a message that requires TLS goes from one system to another: taken
// under TLS with REQUIRETLS, logged in with SCRAM-SHA-256, verified and passed on with
// REQUIRETLS, into a mailbox.
func TestRequiredTLSFromSystemToSystem(t *testing.T) {
	t.Parallel()
	ca := peer.NewCA(t, "own")
	cert, key := ca.Pair("127.0.0.1", "localhost")
	submission := freeAddr(t)
	far := prepare(t, nil, func(s *suite.Suite) {
		s.Hostname = "far.example"
		users := filepath.Join(s.Dir, "accounts")
		s.Settings = map[string]string{"SUBMISSIONLISTEN": submission, "TLSCERT": cert, "TLSKEY": key, "AUTH": "file:" + users}
		cmd := s.Command("zmctl", "passwd", "--scram", "--file", users, "us")
		cmd.Stdin = strings.NewReader("an even better secret\n")
		must(t, os.MkdirAll(s.Dir, 0o755))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("zmctl passwd: %v\n%s", err, out)
		}
	})
	begin(t, far)
	_, port, _ := net.SplitHostPort(submission)
	host := "[127.0.0.1]:" + port
	near := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"TLSCERT": cert, "TLSKEY": key}
		s.Files["routes"] = ".plain.example smtp!localhost:" + port + "\n. smtp!" + host + "\n"
		s.Files["tls"] = host + " verify ca=" + ca.File() + "\nlocalhost none\n"
	})
	must(t, os.WriteFile(filepath.Join(filepath.Dir(near.Config()), "credentials"), []byte(host+` us "an even better secret"`+"\n"), 0o600))
	begin(t, near)

	nc, err := net.Dial("tcp", near.SMTPAddr)
	must(t, err)
	c := smtpclient.New(nc, smtpclient.Config{Hostname: "client.example"})
	defer c.Quit()
	must(t, c.Hello())
	must(t, c.StartTLS(&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}))
	if !c.Extensions().RequireTLS {
		t.Fatal("REQUIRETLS is not offered")
	}
	res, err := c.Send(&smtpclient.Message{From: "bob@mta.example", Header: []byte("Subject: safe\n"), Body: strings.NewReader("\nbody\n"),
		RequireTLS: true, Recipients: []smtpclient.Recipient{{Address: "alice@far.example"}, {Address: "u@plain.example"}}})
	if err != nil || res[0].Outcome != status.Delivered {
		t.Fatalf("got %+v, %v", res, err)
	}
	mail := string(awaitMail(t, far, "alice", 1)[0])
	if !strings.Contains(mail, "with ESMTPSA") {
		t.Errorf("it did not come under TLS with a login:\n%s", mail)
	}
	event(t, near, "failed", "rcpt", "u@plain.example", "status", "5.7.30")
}
