package smtpserver

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/test/peer"
)

// RFC 8689 section 2: a message that has to go on in TLS has to come in TLS.
func TestStartTLSProtectsTheRest(t *testing.T) {
	r := startSecured(t, nil)
	p := r.dial()
	clear := p.say("EHLO c", "250")
	offers(t, clear, "STARTTLS", true)
	offers(t, clear, "REQUIRETLS", false)
	p.say("MAIL FROM:<a@example.net> REQUIRETLS", "530 5.7.10")
	p.say("STARTTLS now", "501 5.5.4")
	p.say("starttls", "220 2.0.0")
	p.secure(r.tls)
	secret := p.say("EHLO c", "250")
	offers(t, secret, "STARTTLS", false)
	offers(t, secret, "REQUIRETLS", true)
	p.say("STARTTLS", "503 5.5.1")
	p.say("MAIL FROM:<a@example.net> REQUIRETLS", "250")
	p.say("RCPT TO:<b@mx.example.org> NOTIFY=NEVER", "250")
	p.to("c@mx.example.org").content(plain, "250")
	p.say("QUIT", "221")
	p.end()
	r.only("with ESMTPS", "todsn NOTIFY=NEVER REQUIRETLS=YES\nto <b@mx.example.org>", "todsn REQUIRETLS=YES\nto <c@mx.example.org>")
}

// RFC 3207 section 4.2: what came in the clear is forgotten, whatever it was.
func TestStartTLSForgetsWhatWasSaid(t *testing.T) {
	r := startSecured(t, nil)
	p := r.greeted().from("clear@example.net").to("clear@mx.example.org")
	p.say("STARTTLS", "220")
	p.secure(r.tls)
	p.say("RCPT TO:<b@mx.example.org>", "503")
	p.say("DATA", "503")
	p.say("MAIL FROM:<a@example.net>", "503 5.5.1") // no EHLO yet
	p.say("EHLO c2", "250")
	p.say("RCPT TO:<b@mx.example.org>", "503")
	p.begin().content(plain, "250")
	if got := r.only(); strings.Contains(got, "clear@") || !strings.Contains(got, "rcvdfrom c2 ") {
		t.Errorf("got\n%s", got)
	}
}

// CVE-2011-0411: commands behind STARTTLS in the clear are never taken for the client's in
// TLS, whether they come with the command or after it.
func TestCommandsInjectedBehindStartTLSAreNotUsed(t *testing.T) {
	r := startSecured(t, nil)
	p := r.greeted()
	p.send("STARTTLS\r\nMAIL FROM:<evil@example.net>\r\nRCPT TO:<b@mx.example.org>\r\nDATA\r\nevil\r\n.\r\n")
	p.end("501 5.5.1")
	p = r.greeted()
	p.say("STARTTLS", "220")
	p.send("MAIL FROM:<evil@example.net>\r\nRCPT TO:<b@mx.example.org>\r\n")
	if b, err := io.ReadAll(p.r); bytes.Contains(b, []byte("250")) {
		t.Errorf("answered %q, %v", b, err)
	}
	// A half line before it cannot lengthen the command either.
	p = r.dial()
	p.send("EHLO c\r\nSTARTTLS\r\nRS")
	p.end("250", "501 5.5.1")
	r.nothing()
}

func TestPortsWithoutACertificate(t *testing.T) {
	r := start(t, func(c *Config) { c.Listen[session.RoleSubmission] = []string{anyPort} })
	r.log.Expect(t, 1, "msg=no-tls role=submission")
	err := Run(t.Context(), Config{PostOffice: r.dir, FS: r.disk, Ports: Ports{Listen: on(session.RoleSubmissions, anyPort)}})
	if bad := (*config.Error)(nil); !errors.As(err, &bad) {
		t.Errorf("submissions without a certificate: %v", err)
	}
}

func TestSubmissionsBeginInTLS(t *testing.T) {
	r := startSecured(t, nil)
	offers(t, r.implicit().say("EHLO c", "250"), "STARTTLS", false)
	// In the clear there is no reply.
	p := r.connect(2)
	p.send("EHLO c\r\n")
	if b, err := io.ReadAll(p.r); bytes.Contains(b, []byte("220")) {
		t.Errorf("in the clear: %q, %v", b, err)
	}
	old := r.tls.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if err := tls.Client(r.connect(2).Conn, old).Handshake(); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
}

// A handshake that does not go on keeps no other client waiting, and ends.
func TestSlowHandshakeIsEndedAndDelaysNoOtherClient(t *testing.T) {
	r := startSecured(t, func(c *Config) { c.TLSTimeout = 300 * time.Millisecond })
	var silent []*client
	for range 5 {
		silent = append(silent, r.connect(2))
	}
	r.implicit().say("NOOP", "250")
	for _, p := range silent {
		p.end()
	}
	p := r.dial()
	p.say("STARTTLS", "220")
	p.send("\x16\x03\x01")
	p.end()
	logtest.Eventually(t, "a line for the failed handshakes", func() bool { return r.log.Count("msg=tls-failed") >= 6 })
}

// Session tickets hold while the certificates do.
func TestSessionsAreResumed(t *testing.T) {
	r := startSecured(t, nil)
	c := r.tls.Clone()
	c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for _, want := range []bool{false, true} {
		p := r.connect(2)
		conn := p.secure(c)
		p.expect("220")
		assert.Equal(t, conn.ConnectionState().DidResume, want)
		p.say("QUIT", "221")
	}
}

func TestTLSASKCERTAsksForAClientCertificate(t *testing.T) {
	pair := peer.NewCA(t, "clients").Issue("client.example.net")
	for _, ask := range []bool{false, true} {
		r := startSecured(t, func(c *Config) { c.TLS.Ask = ask })
		c, asked := r.tls.Clone(), false
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &pair, nil
		}
		p := r.dial()
		p.say("STARTTLS", "220")
		p.secure(c)
		p.say("EHLO c", "250")
		assert.Equal(t, asked, ask)
	}
}
