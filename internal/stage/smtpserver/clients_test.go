package smtpserver

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// program is one that others have written, or the test is skipped.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("skipped: %s is not installed", name)
	}
	return path
}

// OpenSSL's client speaks with STARTTLS, with implicit TLS, and verifies the name.
func TestOpenSSLClient(t *testing.T) {
	openssl := program(t, "openssl")
	s := startSecured(t, nil)
	for name, args := range map[string][]string{
		"STARTTLS": {"-starttls", "smtp", "-connect", s.addr},
		"implicit": {"-connect", s.addrs[2].String()},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), openssl, append([]string{"s_client", "-crlf", "-ign_eof", "-servername", "mx.example.org",
				"-verify_hostname", "mx.example.org", "-verify_return_error", "-CAfile", s.cert}, args...)...)
			cmd.Stdin = strings.NewReader("EHLO c\nQUIT\n")
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("250-mx.example.org")) || !bytes.Contains(out, []byte("221 2.0.0")) {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

// swaks sends by each of our roles.
func TestSwaksSends(t *testing.T) {
	swaks := program(t, "swaks")
	for name, test := range map[string]struct {
		args func(*secured) []string
		with string
	}{
		"in the clear": {func(s *secured) []string { return []string{"--server", s.addr} }, "ESMTP"},
		"STARTTLS": {func(s *secured) []string {
			return []string{"--server", s.addr, "-tls", "--tls-sni", "mx.example.org"}
		}, "ESMTPS"},
		"LMTP":       {func(s *secured) []string { return []string{"--protocol", "LMTP", "--socket", s.addrs[3].String()} }, "LMTP"},
		"by a proxy": {func(s *secured) []string { return []string{"--server", s.addrs[4].String(), "--protocol", "LMTP"} }, "LMTP"},
		"XCLIENT": {func(s *secured) []string {
			return []string{"--server", s.addr, "--xclient", "ADDR=203.0.113.9 NAME=mail.example.net"}
		}, "ESMTP"},
		"HELO, no EHLO": {func(s *secured) []string { return []string{"--server", s.addr, "--protocol", "SMTP"} }, "SMTP"},
		"LMTP, TCP, TLS": {func(s *secured) []string {
			return []string{"--server", s.addrs[4].String(), "--protocol", "LMTP", "-tls"}
		}, "LMTPS"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSecured(t, func(c *Config) {
				c.LMTPListen = []string{t.TempDir() + "/lmtp", "127.0.0.1:0"}
				c.XClientNets = loopback
			})
			cmd := exec.CommandContext(t.Context(), swaks, append([]string{"--from", "a@example.net", "--to", "b@mx.example.org,c@mx.example.org",
				"--header", "Subject: hello", "--body", "by swaks", "--timeout", "20"}, test.args(s)...)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			got := s.only()
			if !strings.Contains(got, "with "+test.with+"\n") || !strings.Contains(got, "Subject: hello\n") || !strings.Contains(got, "by swaks\n") {
				t.Errorf("want with %s:\n%s", test.with, got)
			}
			if name == "XCLIENT" && !strings.Contains(got, "(mail.example.net [203.0.113.9])\n") {
				t.Errorf("got\n%s", got)
			}
		})
	}
}

// msmtp verifies our certificate by the name in it.
func TestMsmtpSends(t *testing.T) {
	msmtp := program(t, "msmtp")
	s := startSecured(t, nil)
	_, port, _ := strings.Cut(s.addr, ":")
	cmd := exec.CommandContext(t.Context(), msmtp, "--file=/dev/null", "--host=127.0.0.1", "--port="+port, "--tls=on", "--tls-starttls=on",
		"--tls-trust-file="+s.cert, "--tls-host-override=mx.example.org", "--from=a@example.net", "b@mx.example.org")
	cmd.Stdin = strings.NewReader("Subject: hello\n\nby msmtp\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if got := s.only(); !strings.Contains(got, "with ESMTPS\n") || !strings.Contains(got, "by msmtp\n") {
		t.Errorf("got\n%s", got)
	}
}
