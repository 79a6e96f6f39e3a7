package e2e

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// secured is a system whose users log in on addresses of their own, under TLS.
type secured struct {
	*suite.Suite
	peer.Certificate
	submission, submissions string // host:port
	lmtp                    string // path
}

const secret = "correct horse"

// startSecured runs such a system; alice's password is secret.
func startSecured(t *testing.T) *secured {
	t.Helper()
	cert, err := peer.NewCertificate(openDir(t), "mta.example")
	if err != nil {
		t.Fatal(err)
	}
	s := &secured{Certificate: cert, submission: freeAddr(t), submissions: freeAddr(t), lmtp: filepath.Join(openDir(t), "lmtp")}
	s.Suite = prepare(t, nil, func(x *suite.Suite) {
		x.Settings = map[string]string{
			"TLSCERT": cert.CertFile, "TLSKEY": cert.KeyFile, "SUBMISSIONLISTEN": s.submission, "SUBMISSIONSLISTEN": s.submissions,
			"LMTPLISTEN": s.lmtp, "AUTH": "file:" + filepath.Join(x.Dir, "conf", "passwords"), "LIMITSEXEMPT": "none",
		}
	})
	for _, flags := range [][]string{{"alice"}, {"--scram", "bob"}} {
		cmd := s.Command("zmctl", append([]string{"--config", s.Config(), "passwd"}, flags...)...)
		cmd.Stdin = strings.NewReader(secret + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("zmctl passwd %q: %v\n%s", flags, err, out)
		}
	}
	begin(t, s.Suite)
	return s
}

// swaks by STARTTLS and in TLS from the start, by each way to log in; and refused with a
// wrong password, or without one.
func TestSwaksLogsIn(t *testing.T) {
	t.Parallel()
	need(t, "swaks")
	s := startSecured(t)
	path := letterFile(t, strings.TrimSuffix(letter, "\n"))
	swaks := func(flags ...string) (string, error) {
		argv := append([]string{"--from", "alice@mta.example", "--to", "alice@mta.example", "--data", "@" + path, "--suppress-data"}, flags...)
		out, err := exec.Command("swaks", argv...).CombinedOutput()
		return string(out), err
	}
	auth := []string{"--auth-user", "alice", "--auth-password", secret}
	n := 0
	for name, flags := range map[string][]string{
		"STARTTLS, PLAIN":        {"--server", s.submission, "--tls", "--auth", "PLAIN"},
		"STARTTLS, LOGIN":        {"--server", s.submission, "--tls", "--auth", "LOGIN"},
		"TLS at once, PLAIN":     {"--server", s.submissions, "--tls-on-connect", "--auth", "PLAIN"},
		"TLS 1.2, verified":      {"--server", s.submissions, "--tls-on-connect", "--auth", "PLAIN", "--tls-protocol", "tlsv1_2", "--tls-verify", "--tls-ca-path", s.CertFile},
		"STARTTLS by a stranger": {"--server", s.SMTPAddr, "--tls"},
	} {
		if !strings.Contains(name, "stranger") {
			flags = append(flags, auth...)
		}
		if out, err := swaks(flags...); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
			continue
		}
		n++
		awaitLetters(t, s.Suite, n)
	}
	for name, tt := range map[string]struct {
		want  string
		flags []string
	}{
		"wrong password": {"535 5.7.8", []string{"--server", s.submission, "--tls", "--auth", "PLAIN", "--auth-user", "alice", "--auth-password", "wrong"}},
		"nobody":         {"535 5.7.8", []string{"--server", s.submission, "--tls", "--auth", "PLAIN", "--auth-user", "mallory", "--auth-password", secret}},
		"no login":       {"530 5.7.0", []string{"--server", s.submission, "--tls"}},
		"an old TLS":     {"TLS", []string{"--server", s.submissions, "--tls-on-connect", "--tls-protocol", "tlsv1_1"}},
	} {
		if out, err := swaks(tt.flags...); err == nil || !strings.Contains(out, tt.want) {
			t.Errorf("%s: got %v, want %q in\n%s", name, err, tt.want, out)
		}
	}
	awaitEmpty(t, s.Suite)
}

// msmtp verifies our certificate, and knows SCRAM-SHA-256 where it was built so.
func TestMsmtpLogsIn(t *testing.T) {
	t.Parallel()
	need(t, "msmtp")
	s := startSecured(t)
	host, port := split(t, s.submission)
	argv := []string{"msmtp", "--host=" + host, "--port=" + port, "--from=bob@mta.example", "--user=bob", "--passwordeval=echo " + secret,
		"--tls=on", "--tls-starttls=on", "--tls-trust-file=" + s.CertFile}
	n := 0
	for _, mechanism := range []string{"plain", "login", "scram-sha-256"} {
		out, err := exec.Command("msmtp", "--version").CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.ToLower(string(out)), mechanism) {
			t.Logf("this msmtp does not know %s", mechanism)
			continue
		}
		program(t, letter, append(argv, "--auth="+mechanism, "alice@mta.example")...)
		n++
		awaitLetters(t, s.Suite, n)
	}
}

func TestPythonsSmtplibLogsInAndSpeaksLMTP(t *testing.T) {
	t.Parallel()
	need(t, python)
	s := startSecured(t)
	path := letterFile(t, wire(letter))
	host, port := split(t, s.submission)
	const script = `import smtplib, ssl, sys
host, port, path, ca, sock = sys.argv[1:]
text = open(path, "rb").read()
s = smtplib.SMTP(host, int(port))
s.starttls(context=ssl.create_default_context(cafile=ca))
s.login("alice", "` + secret + `")
s.sendmail("alice@mta.example", ["alice@mta.example"], text)
s.rset(); s.noop()
s.sendmail("alice@mta.example", ["alice@mta.example"], text)
s.quit()
s = smtplib.LMTP(sock)
refused = s.sendmail("alice@mta.example", ["alice@mta.example", "bob@mta.example"], text)
assert not refused, refused
s.quit()
`
	program(t, "", python, "-c", script, host, port, path, s.CertFile, s.lmtp)
	awaitLetters(t, s.Suite, 3)
	awaitMail(t, s.Suite, "bob", 1)
	awaitEmpty(t, s.Suite)
}

// OpenSSL's client, in whose stream we speak SMTP ourselves.
func TestOpenSSLsClientIsServed(t *testing.T) {
	t.Parallel()
	need(t, "openssl")
	s := startSecured(t)
	n := 0
	for name, flags := range map[string][]string{
		"STARTTLS":    {"-connect", s.submission, "-starttls", "smtp"},
		"TLS at once": {"-connect", s.submissions},
		"TLS 1.2":     {"-connect", s.submissions, "-tls1_2"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "openssl", append([]string{"s_client", "-quiet", "-crlf", "-verify_return_error", "-CAfile", s.CertFile}, flags...)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var trouble bytes.Buffer
		cmd.Stderr = &trouble
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(out)
		answer := func(want string) bool {
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					t.Errorf("%s: no %s: %v\n%s", name, want, err, &trouble)
					return false
				}
				if strings.HasPrefix(line, want+" ") {
					return true
				}
				if !strings.HasPrefix(line, want+"-") {
					t.Errorf("%s: got %q, want %s", name, line, want)
					return false
				}
			}
		}
		// What goes before STARTTLS is s_client's own.
		good := name == "STARTTLS" || answer("220")
		for _, step := range []struct{ say, want string }{
			{"EHLO client.example", "250"},
			{"AUTH PLAIN AGFsaWNlAGNvcnJlY3QgaG9yc2U=", "235"},
			{"MAIL FROM:<alice@mta.example>", "250"}, {"RCPT TO:<alice@mta.example>", "250"}, {"DATA", "354"},
			{strings.ReplaceAll(strings.TrimSuffix(letter, "\n"), "\n.", "\n..") + "\n.", "250"}, {"NOOP", "250"}, {"QUIT", "221"},
		} {
			if !good {
				break
			}
			if _, err := io.WriteString(in, step.say+"\n"); err != nil {
				t.Fatal(err)
			}
			good = answer(step.want)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, &trouble)
		}
		if good {
			n++
			awaitLetters(t, s.Suite, n)
		}
	}
}
