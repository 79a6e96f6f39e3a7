package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
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
	assert.Must(t, os.WriteFile(credentials, []byte(host+" us secret name=partner\n"), 0o600))
	begin(t, s)
	submit(t, s, "Subject: tls\n\nbody\n", "-f", "bob@mta.example", "u@partner.example")
	submit(t, s, "Subject: tls\n\nbody\n", "-f", "bob@mta.example", "u@else.example")
	for _, m := range sink.WaitMessages(2) {
		partner := strings.Contains(m.Rcpts[0], "u@partner.example")
		assert.Equal(t, m.TLS != nil, partner, m.Rcpts)
	}
	assert.Equal(t, logins.Load(), "AHVzAHNlY3JldA==")
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
		assert.Must(t, os.MkdirAll(s.Dir, 0o755))
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
	assert.Must(t, os.WriteFile(filepath.Join(filepath.Dir(near.Config()), "credentials"), []byte(host+` us "an even better secret"`+"\n"), 0o600))
	begin(t, near)

	nc, err := net.Dial("tcp", near.SMTPAddr)
	assert.Must(t, err)
	c := smtpclient.New(nc, smtpclient.Config{Hostname: "client.example"})
	defer c.Quit()
	assert.Must(t, c.Hello())
	assert.Must(t, c.StartTLS(&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}))
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

// startDovecot runs Dovecot's LMTP server on a socket of its own: two users, ok and full,
// who has no room. It gives the socket and where their Maildirs are.
func startDovecot(t *testing.T) (socket, mail string) {
	t.Helper()
	dovecot, err := exec.LookPath("dovecot")
	if err == nil {
		_, err = os.Stat("/usr/lib/dovecot/lmtp")
	}
	if err != nil {
		t.Skip("skipped: dovecot-lmtpd is not installed")
	}
	needRoot(t)
	dir, err := os.MkdirTemp("", "dovecot") // short: a socket's path is
	assert.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	mail = filepath.Join(dir, "mail")
	for _, d := range []string{dir, mail} {
		assert.Must(t, os.MkdirAll(d, 0o755))
	}
	assert.Must(t, os.Chmod(dir, 0o755))
	assert.Must(t, os.Chown(mail, nobody, nobody))
	write(t, dir+"/users", fmt.Sprintf("ok::%[1]d:%[1]d::%[2]s/ok::userdb_quota_rule=*:bytes=1M\nfull::%[1]d:%[1]d::%[2]s/full::userdb_quota_rule=*:bytes=20\n", nobody, mail))
	write(t, dir+"/dovecot.conf", fmt.Sprintf(`base_dir = %[1]s/run
state_dir = %[1]s/run
log_path = %[1]s/log
protocols = lmtp
ssl = no
listen = 127.0.0.1
first_valid_uid = 1
first_valid_gid = 1
mail_location = maildir:%%h
mail_plugins = quota
passdb {
  driver = passwd-file
  args = username_format=%%n %[1]s/users
}
userdb {
  driver = passwd-file
  args = username_format=%%n %[1]s/users
}
plugin {
  quota = maildir:User quota
  quota_grace = 0
}
quota_full_tempfail = yes
service lmtp {
  unix_listener lmtp {
    mode = 0666
  }
}
protocol lmtp {
  postmaster_address = postmaster@box.example
}
`, dir))
	cmd := exec.Command(dovecot, "-F", "-c", dir+"/dovecot.conf")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out := &logtest.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	assert.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if log, err := os.ReadFile(dir + "/log"); t.Failed() {
			t.Logf("Dovecot's log: %s %v\n%s", log, err, out)
		}
	})
	return dir + "/run/lmtp", mail
}

// M49, K14: Dovecot takes mail by LMTP over its Unix socket and answers for each recipient:
// one has it, one over quota waits, an unknown one is reported. The message arrives unchanged.
func TestDovecotTakesMailByLMTP(t *testing.T) {
	t.Parallel()
	socket, mail := startDovecot(t)
	s := start(t, nil, func(s *suite.Suite) { s.Files["routes"] = "box.example lmtp!unix:" + socket + "\n" })
	await(t, s, "Dovecot listens", func() (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, ignoreMissing(err)
	})
	submit(t, s, "Subject: x\n\n.dot\nFrom here\n", "-f", "bob@mta.example", "ok@box.example", "full@box.example", "gone@box.example")
	event(t, s, "delivered", "rcpt", "ok@box.example", "channel", "lmtp")
	event(t, s, "deferred", "rcpt", "full@box.example", "status", "4.2.2")
	event(t, s, "failed", "rcpt", "gone@box.example", "status", "5.1.1")
	files, err := filepath.Glob(mail + "/ok/new/*")
	if err != nil || len(files) != 1 {
		t.Fatalf("in the Maildir: %q, %v", files, err)
	}
	text := strings.ReplaceAll(read(t, files[0]), "\r\n", "\n")
	wantIn(t, text, "Return-Path: <bob@mta.example>\n", "Subject: x\n", "\n\n.dot\nFrom here\n")
}
