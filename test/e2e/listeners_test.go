package e2e

import (
	"bytes"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Postfix's client verifies our certificate and sends in TLS.
func TestPostfixDeliversToUsInTLS(t *testing.T) {
	t.Parallel()
	cert, err := peer.NewCertificate(t.TempDir(), "mta.example")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"TLSCERT": cert.CertFile, "TLSKEY": cert.KeyFile}
	})
	trust := filepath.Join(openDir(t), "ca.pem") // Postfix is another user
	text, err := os.ReadFile(cert.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(trust, text, 0o644); err != nil {
		t.Fatal(err)
	}
	host, port := split(t, s.SMTPAddr)
	p := startPostfix(t, "["+host+"]:"+port, "smtp_tls_security_level = secure",
		"smtp_tls_secure_cert_match = mta.example", "smtp_tls_CAfile = "+trust, "smtp_tls_loglevel = 1")
	program(t, letter, "/usr/sbin/sendmail", "-C", p.Config(), "-i", "-f", "bob@mta.example", "alice@mta.example")
	awaitLetters(t, s, 1)
	if got := awaitMail(t, s, "alice", 1)[0]; !bytes.Contains(got, []byte("with UTF8SMTPS\n")) {
		t.Errorf("alice got %q", abbreviate(string(got)))
	}
	awaitEmpty(t, s)
}

// Postfix hands mail over by LMTP, at a Unix socket that its group may use.
func TestPostfixDeliversToUsByLMTP(t *testing.T) {
	t.Parallel()
	var socket string
	s := start(t, nil, func(s *suite.Suite) {
		socket = filepath.Join(s.Dir, "lmtp")
		s.Settings = map[string]string{"LMTPLISTEN": socket}
	})
	awaitListening(t, s, "lmtp")
	p := startPostfix(t, "", "default_transport = lmtp:unix:"+socket, "lmtp_destination_recipient_limit = 50")
	group, err := user.LookupGroup("postfix")
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(socket, -1, gid); err != nil {
		t.Fatal(err)
	}
	program(t, letter, "/usr/sbin/sendmail", "-C", p.Config(), "-i", "-f", "bob@mta.example", "alice@mta.example", "bob@mta.example")
	awaitLetters(t, s, 1)
	for _, who := range []string{"alice", "bob"} {
		if got := awaitMail(t, s, who, 1)[0]; !bytes.Contains(got, []byte("with UTF8LMTP\n")) {
			t.Errorf("%s got %q", who, abbreviate(string(got)))
		}
	}
	awaitEmpty(t, s)
}

// awaitListening waits until a role of smtpserver has its socket.
func awaitListening(t *testing.T, s *suite.Suite, role string) {
	t.Helper()
	awaitState(t, role+" listens", func() bool {
		for _, e := range s.Events() {
			if e.Word == "listening" && e.Get("role") == role {
				return true
			}
		}
		return false
	})
}
