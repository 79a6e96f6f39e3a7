package e2e

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// python is the interpreter of the system, which has the distribution's packages.
const python = "/usr/bin/python3"

// execute runs another system's program, which must succeed.
func execute(t *testing.T, stdin string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

// letter is a message with what clients and servers get wrong: dots, 8-bit octets, long
// and empty lines.
const letter = "From: bob@mta.example\nTo: alice@mta.example\nSubject: caf\xc3\xa9\nMIME-Version: 1.0\n" +
	"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n" +
	".\n..\n.dot\n\nna\xc3\xafve \xe2\x82\xac\nFrom here\n>From there\n" +
	"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\n"

// awaitLetters wants n messages of alice's, each with the letter's body.
func awaitLetters(t *testing.T, s *suite.Suite, n int) {
	t.Helper()
	_, body, _ := strings.Cut(letter, "\n\n")
	for _, m := range awaitMail(t, s, "alice", n) {
		if !bytes.HasSuffix(m, []byte("\n\n"+body)) {
			t.Errorf("alice got %q", abbreviate(string(m)))
		}
	}
}

const secret = "correct horse"

// secured is a system whose users log in on ports of their own, under TLS.
type secured struct {
	*suite.Suite
	peer.Certificate
	submission, submissions string // host:port
	lmtp                    string // path
}

// startSecured runs such a system; alice's and bob's password is secret.
func startSecured(t *testing.T, change func(x *suite.Suite)) *secured {
	t.Helper()
	cert := assert.Get(peer.NewCertificate(openDir(t), "mta.example"))(t)
	s := &secured{Certificate: cert, submission: freeAddr(t), submissions: freeAddr(t), lmtp: filepath.Join(openDir(t), "lmtp")}
	s.Suite = prepare(t, nil, func(x *suite.Suite) {
		x.Settings = map[string]string{
			"TLSCERT": cert.CertFile, "TLSKEY": cert.KeyFile, "SUBMISSIONLISTEN": s.submission, "SUBMISSIONSLISTEN": s.submissions,
			"LMTPLISTEN": s.lmtp, "AUTH": "file:" + filepath.Join(x.Dir, "conf", "passwords"), "LIMITSEXEMPT": "none",
		}
		if change != nil {
			change(x)
		}
	})
	for _, flags := range [][]string{{"alice"}, {"--scram", "bob"}} {
		cmd := s.Command("zmctl", append([]string{"--config", s.Config(), "passwd"}, flags...)...)
		cmd.Stdin = strings.NewReader(secret + "\n")
		if out, code := run(t, cmd); code != 0 {
			t.Fatalf("zmctl passwd %q: exit code %d\n%s", flags, code, out)
		}
	}
	begin(t, s.Suite)
	event(t, s.Suite, "listening", "role", "lmtp")
	return s
}

// Other systems' clients send a message each: swaks, msmtp, Python's smtplib, in the clear,
// by STARTTLS and TLS, with each mechanism of AUTH, by LMTP; and are rejected without the right
// password.
func TestOtherClientsDeliver(t *testing.T) {
	t.Parallel()
	s := startSecured(t, nil)
	dir := openDir(t)
	file := filepath.Join(dir, "letter")
	write(t, file, strings.TrimSuffix(letter, "\n")) // swaks ends it with a line end of its own
	write(t, file+".wire", wire(letter))
	swaks := func(server string, flags ...string) []string {
		return append([]string{"swaks", "--from", "alice@mta.example", "--to", "alice@mta.example", "--data", "@" + file, "--suppress-data", "--server", server}, flags...)
	}
	auth := func(user, password, mechanism string) []string {
		return []string{"--tls", "--auth", mechanism, "--auth-user", user, "--auth-password", password}
	}
	atOnce := append(auth("alice", secret, "PLAIN")[1:], "--tls-on-connect")
	msmtp := func(server string, flags ...string) []string {
		host, port := split(t, server)
		return append(append([]string{"msmtp", "--host=" + host, "--port=" + port, "--from=bob@mta.example"}, flags...), "alice@mta.example")
	}
	login := func(mechanism string) []string {
		return []string{"--auth=" + mechanism, "--user=bob", "--passwordeval=echo " + secret, "--tls=on", "--tls-starttls=on", "--tls-trust-file=" + s.CertFile}
	}
	host, port := split(t, s.submission)
	n := 0
	for name, argv := range map[string][]string{
		"swaks":                       swaks(s.SMTPAddr),
		"swaks, HELO":                 swaks(s.SMTPAddr, "--protocol", "SMTP"),
		"swaks, pipelining":           swaks(s.SMTPAddr, "--pipeline"),
		"swaks, STARTTLS, no login":   swaks(s.SMTPAddr, "--tls"),
		"swaks, STARTTLS, PLAIN":      swaks(s.submission, auth("alice", secret, "PLAIN")...),
		"swaks, STARTTLS, LOGIN":      swaks(s.submission, auth("alice", secret, "LOGIN")...),
		"swaks, TLS at once":          swaks(s.submissions, atOnce...),
		"swaks, TLS 1.2, verified":    swaks(s.submissions, append(atOnce, "--tls-protocol", "tlsv1_2", "--tls-verify", "--tls-ca-path", s.CertFile)...),
		"msmtp":                       msmtp(s.SMTPAddr, "--auth=off", "--tls=off"),
		"msmtp, STARTTLS, PLAIN":      msmtp(s.submission, login("plain")...),
		"msmtp, STARTTLS, LOGIN":      msmtp(s.submission, login("login")...),
		"msmtp, STARTTLS, SCRAM":      msmtp(s.submission, login("scram-sha-256")...),
		"smtplib, STARTTLS, and LMTP": {python, "-c", smtplib, host, port, file + ".wire", s.CertFile, s.lmtp},
	} {
		t.Run(name, func(t *testing.T) {
			need(t, argv[0])
			if strings.HasSuffix(name, "SCRAM") && !strings.Contains(strings.ToLower(execute(t, "", "msmtp", "--version")), "scram-sha-256") {
				t.Skip("this msmtp does not support SCRAM-SHA-256")
			}
			execute(t, letter, argv...)
			n++
			if argv[0] == python {
				n += 2
				awaitMail(t, s.Suite, "bob", 1)
			}
			awaitLetters(t, s.Suite, n)
		})
	}
	for name, tt := range map[string]struct {
		want string
		argv []string
	}{
		"wrong password": {"535 5.7.8", swaks(s.submission, auth("alice", "wrong", "PLAIN")...)},
		"unknown user":   {"535 5.7.8", swaks(s.submission, auth("mallory", secret, "PLAIN")...)},
		"no login":       {"530 5.7.0", swaks(s.submission, "--tls")},
		"TLS 1.1":        {"TLS", swaks(s.submissions, "--tls-on-connect", "--tls-protocol", "tlsv1_1")},
	} {
		t.Run(name, func(t *testing.T) {
			need(t, "swaks")
			if out, err := exec.Command(tt.argv[0], tt.argv[1:]...).CombinedOutput(); err == nil || !strings.Contains(string(out), tt.want) {
				t.Errorf("got %v, want %q in\n%s", err, tt.want, out)
			}
		})
	}
	awaitEmpty(t, s.Suite)
}

const smtplib = `import smtplib, ssl, sys
host, port, path, ca, sock = sys.argv[1:]
text = open(path, "rb").read()
s = smtplib.SMTP(host, int(port))
s.starttls(context=ssl.create_default_context(cafile=ca))
s.login("alice", "` + secret + `")
s.sendmail("alice@mta.example", ["alice@mta.example"], text, mail_options=["BODY=8BITMIME"])
s.rset(); s.noop()
s.sendmail("alice@mta.example", ["alice@mta.example"], text)
s.quit()
s = smtplib.LMTP(sock)
refused = s.sendmail("alice@mta.example", ["alice@mta.example", "bob@mta.example"], text)
assert not refused, refused
s.quit()
`

// OpenSSL's client, through which the test speaks SMTP.
func TestOpenSSLsClientIsServed(t *testing.T) {
	t.Parallel()
	need(t, "openssl")
	s := startSecured(t, nil)
	n := 0
	for name, flags := range map[string][]string{
		"STARTTLS":    {"-connect", s.submission, "-starttls", "smtp"},
		"TLS at once": {"-connect", s.submissions},
		"TLS 1.2":     {"-connect", s.submissions, "-tls1_2"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "openssl", append([]string{"s_client", "-quiet", "-verify_return_error", "-CAfile", s.CertFile}, flags...)...)
			in, err := cmd.StdinPipe()
			assert.Must(t, err)
			out, err := cmd.StdoutPipe()
			assert.Must(t, err)
			assert.Must(t, cmd.Start())
			k := &session{t, in, bufio.NewReader(out)}
			if name != "STARTTLS" { // s_client reads what comes before it
				k.expect("", "220")
			}
			k.say("EHLO client.example", "250")
			k.say("AUTH PLAIN AGFsaWNlAGNvcnJlY3QgaG9yc2U=", "235")
			k.send("alice@mta.example", string(stuffed(letter)), "250", "alice@mta.example")
			k.say("QUIT", "221")
			assert.Must(t, in.Close())
			_, err = io.Copy(io.Discard, k.r)
			assert.Must(t, err)
			assert.Must(t, cmd.Wait())
			n++
			awaitLetters(t, s.Suite, n)
		})
	}
}

// Postfix's generator of load: every message that was accepted is there, once.
func TestSmtpSourceDeliversAll(t *testing.T) {
	t.Parallel()
	need(t, "smtp-source")
	s := start(t, nil, nil)
	const messages = 300
	execute(t, "", "smtp-source", "-s", "10", "-m", strconv.Itoa(messages), "-l", "3000", "-f", "bob@mta.example", "-t", "alice@mta.example", s.SMTPAddr)
	awaitMail(t, s, "alice", messages)
	awaitEmpty(t, s)
	assert.Equal(t, len(awaitMail(t, s, "alice", messages)), messages)
}

// Postfix's client delivers by SMTP, by SMTP under TLS with our certificate verified, and by
// LMTP at a Unix socket that its group may use.
func TestPostfixDeliversToUs(t *testing.T) {
	t.Parallel()
	s := startSecured(t, nil)
	host, port := split(t, s.SMTPAddr)
	trust := filepath.Join(openDir(t), "ca.pem") // Postfix is another user
	write(t, trust, read(t, s.CertFile))
	for n, tt := range []struct {
		with, relay string
		settings    []string
	}{
		{"with UTF8SMTP\n", "[" + host + "]:" + port, []string{"smtp_tls_security_level = none"}},
		{"with UTF8SMTPS\n", "[" + host + "]:" + port, []string{"smtp_tls_security_level = secure", "smtp_tls_secure_cert_match = mta.example", "smtp_tls_CAfile = " + trust}},
		{"with UTF8LMTP\n", "", []string{"default_transport = lmtp:unix:" + s.lmtp, "lmtp_destination_recipient_limit = 50"}},
	} {
		p := startPostfix(t, tt.relay, tt.settings...)
		group := assert.Get(user.LookupGroup("postfix"))(t)
		gid := assert.Get(strconv.Atoi(group.Gid))(t)
		assert.Must(t, os.Chown(s.lmtp, -1, gid))
		const more = 20
		execute(t, "", "smtp-source", "-s", "5", "-m", strconv.Itoa(more), "-f", "bob@mta.example", "-t", "bob@mta.example", p.Listen)
		execute(t, letter, "/usr/sbin/sendmail", "-C", p.Config(), "-i", "-f", "bob@mta.example", "alice@mta.example")
		awaitLetters(t, s.Suite, n+1)
		if all := bytes.Join(awaitMail(t, s.Suite, "alice", n+1), nil); !bytes.Contains(all, []byte(tt.with)) {
			t.Errorf("no message came %s", tt.with)
		}
		awaitMail(t, s.Suite, "bob", more*(n+1))
	}
	awaitEmpty(t, s.Suite)
}
