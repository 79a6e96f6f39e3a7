package smtpserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/session"

	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
)

// writePair makes a certificate that signs itself, and its key, as PREFIX.pem and
// PREFIX.key.
func writePair(t testing.TB, prefix, name string, until time.Time) *x509.Certificate {
	t.Helper()
	key := assert.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	serial := assert.Get(rand.Int(rand.Reader, big.NewInt(1<<62)))(t)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: until.AddDate(-2, 0, 0), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der := assert.Get(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	private := assert.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	writeFile(t, prefix+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
	writeFile(t, prefix+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)
	cert := assert.Get(x509.ParseCertificate(der))(t)
	return cert
}

// nextYear is when the tests' certificates end.
func nextYear() time.Time { return time.Now().AddDate(1, 0, 0) }

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
	var silent []*peer
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
		if got := conn.ConnectionState().DidResume; got != want {
			t.Errorf("resumed: %v, want %v", got, want)
		}
		p.say("QUIT", "221")
	}
}

func TestTLSASKCERTAsksForAClientCertificate(t *testing.T) {
	mine := filepath.Join(t.TempDir(), "client")
	writePair(t, mine, "client.example.net", nextYear())
	pair := assert.Get(tls.LoadX509KeyPair(mine+".pem", mine+".key"))(t)
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
		if asked != ask {
			t.Errorf("asked: %v, want %v", asked, ask)
		}
	}
}

// shown is the certificate that a handshake for a name gets.
func shown(t *testing.T, c *listen.Certificates, name string) string {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	go func() { _ = tls.Server(theirs, c.Config()).Handshake() }()
	client := tls.Client(ours, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	assert.Must(t, client.Handshake())
	return client.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestNameDecidesBetweenCertificates(t *testing.T) {
	dir := t.TempDir()
	one := writePair(t, filepath.Join(dir, "one"), "one.example", nextYear())
	two := writePair(t, filepath.Join(dir, "two"), "two.example", nextYear())
	c, err := listen.OpenCertificates(listen.CertificateFiles{
		Certs: []string{filepath.Join(dir, "one.pem"), filepath.Join(dir, "two.pem")},
		Keys:  []string{filepath.Join(dir, "one.key"), filepath.Join(dir, "two.key")},
	}, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]*x509.Certificate{"one.example": one, "two.example": two, "three.example": one} {
		if got := shown(t, c, name); got != want.SerialNumber.String() {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

func TestCertificatesAreReadAgainWhenTheyChange(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "mx")
	now := time.Now()
	log := &logtest.Buffer{}
	first := writePair(t, prefix, "mx.example.org", nextYear())
	c, err := listen.OpenCertificates(listen.CertificateFiles{Certs: []string{prefix + ".pem"}, Keys: []string{prefix + ".key"}},
		func() time.Time { return now }, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	check := func(step string, want *x509.Certificate) {
		t.Helper()
		if got := shown(t, c, "mx.example.org"); got != want.SerialNumber.String() {
			t.Errorf("%s: got %s, want %s\n%s", step, got, want.SerialNumber, log.String())
		}
	}
	check("at the start", first)
	same := c.Config()
	now = now.Add(time.Minute)
	if c.Config() != same {
		t.Error("nothing has changed, but tickets are invalid")
	}
	second := writePair(t, prefix, "mx.example.org", nextYear())
	now = now.Add(time.Second / 2)
	check("within the period", first)
	now = now.Add(time.Minute)
	check("changed", second)
	key := assert.Get(os.ReadFile(prefix + ".key"))(t)
	for name, change := range map[string]func(){
		"key of another": func() { writePair(t, prefix, "mx.example.org", nextYear()); writeFile(t, prefix+".key", key, 0o600) },
		"no PEM":         func() { writeFile(t, prefix+".pem", []byte("nonsense"), 0o644) },
		"gone":           func() { os.Remove(prefix + ".pem") },
		"open to all":    func() { writePair(t, prefix, "mx.example.org", nextYear()); os.Chmod(prefix+".key", 0o644) },
	} {
		change()
		before := log.Count("tls-refused")
		for range 3 {
			now = now.Add(time.Minute)
			check(name, second)
		}
		if got := log.Count("tls-refused") - before; got != 1 {
			t.Errorf("%s: complained of %d times\n%s", name, got, log.String())
		}
	}
	third := writePair(t, prefix, "mx.example.org", now.Add(24*time.Hour))
	now = now.Add(time.Minute)
	check("mended", third)
	if log.Count("level=WARN msg=tls-certificate") == 0 {
		t.Error("that it ends tomorrow is not said")
	}
}

func TestBadCertificateAtTheStartIsNamed(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "mx")
	writePair(t, prefix, "mx.example.org", nextYear())
	both := append(read(t, prefix+".pem"), read(t, prefix+".key")...)
	writeFile(t, filepath.Join(dir, "both.pem"), both, 0o600)
	writeFile(t, filepath.Join(dir, "open.pem"), both, 0o644)
	for name, test := range map[string]struct {
		files listen.CertificateFiles
		bad   string // the file in the error; "": none
	}{
		"key in the same file": {listen.CertificateFiles{Certs: []string{filepath.Join(dir, "both.pem")}}, ""},
		"not there":            {listen.CertificateFiles{Certs: []string{filepath.Join(dir, "none")}}, filepath.Join(dir, "none")},
		"open to all users":    {listen.CertificateFiles{Certs: []string{filepath.Join(dir, "open.pem")}}, filepath.Join(dir, "open.pem")},
		"a directory":          {listen.CertificateFiles{Certs: []string{dir}}, dir},
		"no key":               {listen.CertificateFiles{Certs: []string{prefix + ".key"}}, prefix + ".key"},
		"one key too few":      {listen.CertificateFiles{Certs: []string{prefix + ".pem", prefix + ".pem"}, Keys: []string{prefix + ".key"}}, "TLSKEY"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Ports: Ports{TLS: test.files}, Log: slog.New(slog.DiscardHandler)}
			_, err := c.openTLS()
			if bad := (*config.Error)(nil); test.bad == "" && err != nil || test.bad != "" && (!errors.As(err, &bad) || bad.File != test.bad) {
				t.Errorf("got %v, want an error of %q", err, test.bad)
			}
		})
	}
}
