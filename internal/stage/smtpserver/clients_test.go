package smtpserver

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/wire/milter"
)

const python = `
import smtplib, sys
s = smtplib.SMTP("127.0.0.1", int(sys.argv[1]), local_hostname="py.example")
refused = s.sendmail("a@b", ["c@d", "e@f"], b"Subject: x\r\n\r\n.\r\n..dot\r\n\xe4\r\n",
    mail_options=["BODY=8BITMIME", "RET=HDRS", "ENVID=id"], rcpt_options=["NOTIFY=SUCCESS,DELAY"])
assert refused == {}, refused
s.quit()`

// Programs of others send by each of our roles.
func TestOtherClientsAreServed(t *testing.T) {
	users := accounts(t)
	r := startSecured(t, func(c *Config) {
		c.Users.Source, c.XClientNets = "file:"+users, loopback
		c.Listen[session.RoleLMTP] = []string{filepath.Join(t.TempDir(), "lmtp"), "127.0.0.1:0"}
	})
	port := func(i int) string { return strconv.Itoa(r.addrs[i].(*net.TCPAddr).Port) }
	swaks := func(more ...string) []string {
		return append([]string{"swaks", "--from", "a@example.net", "--to", "b@mx.example.org,c@mx.example.org", "--timeout", "20", "--data", "Subject: x\n\nhi\n"}, more...)
	}
	msmtp := func(more ...string) []string {
		return append([]string{"msmtp", "--file=/dev/null", "--host=127.0.0.1", "--from=a@example.net", "b@mx.example.org"}, more...)
	}
	login := []string{"--port=" + port(1), "--tls=off", "--user=jane", "--passwordeval=echo secret"}
	openssl := []string{"openssl", "s_client", "-crlf", "-ign_eof", "-servername", "mx.example.org",
		"-verify_hostname", "mx.example.org", "-verify_return_error", "-CAfile", r.ca, "-connect"}
	for name, tt := range map[string]struct {
		command []string
		line    string // of the message; "": none is sent
	}{
		"Python":               {[]string{"python3", "-c", python, port(0)}, "notaryret HDRS\ntodsn NOTIFY=SUCCESS,DELAY\nto <c@d>\ntodsn NOTIFY=SUCCESS,DELAY\nto <e@f>\nenv-end\nSubject: x\n\n.\n..dot\n\xe4"},
		"swaks":                {swaks("--server", r.addr), "with ESMTP"},
		"swaks, HELO":          {swaks("--server", r.addr, "--protocol", "SMTP"), "with SMTP"},
		"swaks, STARTTLS":      {swaks("--server", r.addr, "-tls", "--tls-sni", "mx.example.org"), "with ESMTPS"},
		"swaks, XCLIENT":       {swaks("--server", r.addr, "--xclient", "ADDR=203.0.113.9 NAME=mail.example.net"), "(mail.example.net [203.0.113.9])"},
		"swaks, LMTP":          {swaks("--socket", r.addrs[3].String(), "--protocol", "LMTP"), "with LMTP"},
		"swaks, LMTP by TCP":   {swaks("--server", r.addrs[4].String(), "--protocol", "LMTP"), "with LMTP"},
		"swaks, LMTP in TLS":   {swaks("--server", r.addrs[4].String(), "--protocol", "LMTP", "-tls"), "with LMTPS"},
		"swaks, PLAIN":         {swaks("--server", r.addrs[1].String(), "--auth", "PLAIN", "--auth-user", "jane", "--auth-password", "secret"), "with ESMTPA"},
		"swaks, LOGIN":         {swaks("--server", r.addrs[1].String(), "--auth", "LOGIN", "--auth-user", "jane", "--auth-password", "secret"), "with ESMTPA"},
		"msmtp, a name":        {msmtp("--port="+port(0), "--tls=on", "--tls-starttls=on", "--tls-trust-file="+r.ca, "--tls-host-override=mx.example.org"), "with ESMTPS"},
		"msmtp, PLAIN":         {msmtp(append(login, "--auth=plain")...), "with ESMTPA"},
		"msmtp, SCRAM":         {msmtp(append(login, "--auth=scram-sha-256")...), "with ESMTPA"},
		"OpenSSL, STARTTLS":    {append(openssl, r.addr, "-starttls", "smtp"), ""},
		"OpenSSL, TLS at once": {append(openssl, r.addrs[2].String()), ""},
	} {
		t.Run(name, func(t *testing.T) {
			program, err := exec.LookPath(tt.command[0])
			if err != nil {
				t.Skipf("skipped: %s is not installed", tt.command[0])
			}
			cmd := exec.CommandContext(t.Context(), program, tt.command[1:]...)
			cmd.Stdin = strings.NewReader("Subject: x\n\nhi\n")
			if tt.line == "" {
				cmd.Stdin = strings.NewReader("EHLO c\nQUIT\n")
			}
			out, err := cmd.CombinedOutput()
			if err != nil || tt.line == "" && !strings.Contains(string(out), "221 2.0.0") {
				t.Fatalf("%v\n%s", err, out)
			}
			if tt.line != "" {
				if got := r.only(); !strings.Contains(got, tt.line+"\n") || !strings.Contains(got, "Subject: x\n") {
					t.Errorf("no %q in\n%s", tt.line, got)
				}
				r.clear()
			}
		})
	}
}

// opendkim starts the real filter, which is made with Sendmail's libmilter, as a signer
// for a.example; its address is that of its socket.
func opendkim(t *testing.T, key checkstest.Signer) content.Milter {
	t.Helper()
	m, start, _ := dkimFilter(t, key)
	start()
	return m
}

// dkimFilter is opendkim, which start starts and stop ends.
func dkimFilter(t *testing.T, key checkstest.Signer) (m content.Milter, start, stop func()) {
	t.Helper()
	program, err := exec.LookPath("opendkim")
	if err != nil {
		t.Skip("skipped: opendkim is not installed; no filter made with libmilter was asked")
	}
	dir := t.TempDir()
	file, socket, conf := filepath.Join(dir, "key"), filepath.Join(dir, "s"), filepath.Join(dir, "conf")
	der := x509.MarshalPKCS1PrivateKey(key.Key.(*rsa.PrivateKey))
	writeFile(t, file, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: der}), 0o600)
	text := "Mode s\nDomain a.example\nSelector s\nKeyFile " + file + "\nSocket local:" + socket + "\nCanonicalization relaxed/relaxed\nRequireSafeKeys no\nSyslog no\nPidFile " + dir + "/pid\n"
	writeFile(t, conf, []byte(text), 0o600)
	start, stop = onAndOff(t, socket, func() *exec.Cmd { return exec.Command(program, "-f", "-x", conf) })
	return content.Milter{Config: milter.Config{Network: "unix", Address: socket}}, start, stop
}

// onAndOff starts a program that listens on host:port or a socket, and kills it.
func onAndOff(t *testing.T, addr string, command func() *exec.Cmd) (start, stop func()) {
	var cmd *exec.Cmd
	said := &logtest.Buffer{}
	stop = func() {
		if cmd != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		cmd = nil
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Log(said)
		}
	})
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	return func() {
		t.Helper()
		cmd = command()
		cmd.Stdout, cmd.Stderr = said, said
		assert.Must(t, cmd.Start())
		logtest.Eventually(t, cmd.Path+" listens", func() bool {
			c, err := net.Dial(network, addr)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
	}, stop
}

// A filter of others signs what comes in, and our check finds its signature right.
func TestOpendkimSignsAndWeVerify(t *testing.T) {
	key := checkstest.RSA(t, 2048)
	dkim := opendkim(t, key)
	_, server := checkstest.Serve(t, checkstest.TXT("s._domainkey.a.example", key.Record), `_dmarc.a.example. TXT "v=DMARC1; p=reject"`)
	signing := start(t, func(c *Config) { c.Filters.Milters = []content.Milter{dkim} })
	verifying := start(t, allChecks(server))
	message := "From: Ann <ann@a.example>\nTo: b@mx.example.org\nSubject: folded\n\tsubject\nDate: Sat, 21 Nov 2026 10:00:00 +0000\nMessage-ID: <1@a.example>\n\nDear Bob,\n\n.\n..x  \n" + strings.Repeat("a line of eighty bytes\n", 20000)
	p, q := signing.greeted(), verifying.greeted()
	for range 2 { // and once more on the same connection
		p.mail("ann@a.example", "x@far.example", message, "250")
		signed := signing.content()
		if !strings.HasPrefix(signed, "DKIM-Signature: v=1; a=rsa-sha256;") || !strings.HasSuffix(signed, message) {
			t.Fatalf("got %.600q", signed)
		}
		q.mail("ann@a.example", toUs, signed, "250")
		verifying.only("\tdkim=pass header.d=a.example header.i=@a.example;", "\tdmarc=pass header.from=a.example policy.dmarc=reject")
		signing.clear()
		verifying.clear()
	}
}

// Op7: the log has a client of IPv4 as such, also where the socket is one of IPv6, as that of
// SMTPLISTEN=:25.
func TestOp7ClientOfIPv4IsLoggedAsSuch(t *testing.T) {
	r := start(t, func(c *Config) { c.Listen = on(session.RoleMX, ":0") })
	r.addrs[0] = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: r.addrs[0].(*net.TCPAddr).Port}
	r.greeted().from("a@example.net").to("b@example.com").content(plain, "250")
	r.log.Await(t, "msg=accepted", "client=127.0.0.1:")
	r.only()
}
