package smtpclient

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/emersion/go-smtp"

	testpeer "zmailer/test/peer"
)

// tlsHello opens a session with STARTTLS alone.
const tlsHello = `
S: 220 mx.test ESMTP
C: EHLO client.test
S: 250-mx.test
S: 250 STARTTLS
C: STARTTLS
`

// secured is a session with a go-smtp server under TLS.
func secured(t *testing.T, cfg *tls.Config) (*Conn, error) {
	t.Helper()
	ca := testpeer.NewCA(t, "test")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tlsPeer{}
	s := smtp.NewServer(p)
	s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{ca.Issue("mx.test")}}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-served
	})
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := New(nc, Config{Hostname: "client.test", Timeouts: short(patience)})
	t.Cleanup(func() { c.Close() })
	if err := c.Hello(); err != nil {
		t.Fatal(err)
	}
	if !c.Extensions().StartTLS {
		t.Fatal("no STARTTLS is offered")
	}
	if cfg.RootCAs == nil && !cfg.InsecureSkipVerify {
		cfg.RootCAs = ca.Pool()
	}
	return c, c.StartTLS(cfg)
}

// tlsPeer takes everything, and tells whether it came under TLS.
type tlsPeer struct{}

func (p *tlsPeer) NewSession(c *smtp.Conn) (smtp.Session, error) { return &tlsSession{conn: c}, nil }

type tlsSession struct{ conn *smtp.Conn }

func (s *tlsSession) Reset()                               {}
func (s *tlsSession) Logout() error                        { return nil }
func (s *tlsSession) Mail(string, *smtp.MailOptions) error { return nil }
func (s *tlsSession) Rcpt(string, *smtp.RcptOptions) error { return nil }
func (s *tlsSession) Data(r io.Reader) error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	text := "in the clear"
	if _, ok := s.conn.TLSConnectionState(); ok {
		text = "under TLS"
	}
	return &smtp.SMTPError{Code: 250, EnhancedCode: smtp.EnhancedCode{2, 0, 0}, Message: text}
}

func TestMessageUnderTLS(t *testing.T) {
	c, err := secured(t, &tls.Config{ServerName: "mx.test"})
	if err != nil {
		t.Fatal(err)
	}
	if c.TLS() == nil || c.TLS().Version != tls.VersionTLS13 {
		t.Errorf("got %+v", c.TLS())
	}
	if c.Extensions().StartTLS {
		t.Error("STARTTLS of the session in the clear is still known")
	}
	res, err := c.Send(message("a@test"))
	if err != nil || !strings.Contains(res[0].Reply.Text, "under TLS") {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestRefusedCertificateEndsTheConnection(t *testing.T) {
	c, err := secured(t, &tls.Config{ServerName: "other.test"})
	var refused *TLSError
	if !errors.As(err, &refused) || c.Usable() {
		t.Errorf("got %v, usable %v", err, c.Usable())
	}
	if got, want := err.Error(), "starting TLS: tls: failed to verify certificate: x509: certificate is valid for mx.test, not other.test"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// RFC 3207 §6: what was pipelined behind the answer came from somebody else.
func TestTextBehindTheAnswerToSTARTTLSIsNotUsed(t *testing.T) {
	nc, server := pair(t)
	done := make(chan error, 1)
	go func() {
		s := newLines(server)
		s.say("220 mx.test ESMTP")
		s.hear()
		s.say("250-mx.test\r\n250 STARTTLS")
		s.hear()
		s.say("220 go\r\n250-mx.test\r\n250 AUTH PLAIN")
		s.hear()
		done <- nil
	}()
	c := New(nc, Config{Hostname: "client.test", Timeouts: short(patience)})
	if err := c.Hello(); err != nil {
		t.Fatal(err)
	}
	err := c.StartTLS(&tls.Config{InsecureSkipVerify: true})
	if !errors.Is(err, errInjected) || c.Usable() || c.Extensions().Auth != "" {
		t.Errorf("got %v, usable %v, %+v", err, c.Usable(), c.Extensions())
	}
	<-done
}

func TestRefusedSTARTTLSLeavesTheSession(t *testing.T) {
	c, _, p := open(t, Config{}, tlsHello+"S: 454 4.7.0 no TLS today\nC: QUIT\nS: 221 bye")
	err := c.StartTLS(&tls.Config{})
	var refused *ReplyError
	if !errors.As(err, &refused) || refused.Phase != PhaseTLS || !c.Usable() {
		t.Errorf("got %v, usable %v", err, c.Usable())
	}
	if err := c.Quit(); err != nil {
		t.Error(err)
	}
	p.end(t)
}

func TestServerThatTalksNoTLS(t *testing.T) {
	c, _, p := open(t, Config{}, tlsHello+"S: 220 go\nHALFBODY\nCLOSE")
	err := c.StartTLS(&tls.Config{InsecureSkipVerify: true})
	var refused *TLSError
	if !errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
	<-p.done
}
