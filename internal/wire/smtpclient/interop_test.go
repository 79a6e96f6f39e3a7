package smtpclient

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-smtp"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
)

// peer is go-smtp's server, an implementation that is not ours.
type peer struct {
	mu   sync.Mutex
	seen []string // one line per event
	data []string
	tls  int // messages that came under TLS
}

func (p *peer) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, fmt.Sprintf(format, args...))
}

func (p *peer) message(i int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data[i]
}

// peerSession answers by the recipient's name.
type peerSession struct {
	*peer
	conn *smtp.Conn
}

func (s peerSession) Reset()        {}
func (s peerSession) Logout() error { return nil }

func (s peerSession) Mail(from string, o *smtp.MailOptions) error {
	s.note("MAIL %s body=%s utf8=%v ret=%s envid=%s", from, o.Body, o.UTF8, o.Return, o.EnvelopeID)
	return nil
}

func (s peerSession) Rcpt(to string, o *smtp.RcptOptions) error {
	s.note("RCPT %s notify=%v orcpt=%s", to, o.Notify, o.OriginalRecipient)
	if strings.HasPrefix(to, "no") {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such user"}
	}
	return nil
}

func (s peerSession) Data(r io.Reader) error {
	b, err := io.ReadAll(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append(s.data, string(b))
	if _, ok := s.conn.TLSConnectionState(); ok {
		s.tls++
	}
	return err
}

func (s peerSession) LMTPData(r io.Reader, c smtp.StatusCollector) error {
	c.SetStatus("full@test", &smtp.SMTPError{Code: 452, EnhancedCode: smtp.EnhancedCode{4, 2, 2}, Message: "full"})
	return s.Data(r)
}

// servePeer serves one go-smtp server, which offers TLS if it is given, until the test ends.
func servePeer(t *testing.T, lmtp bool, secure *tls.Config) (*peer, *Conn) {
	t.Helper()
	p := &peer{}
	srv := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return peerSession{p, c}, nil }))
	srv.TLSConfig = secure
	srv.Domain, srv.LMTP, srv.EnableDSN, srv.EnableSMTPUTF8 = "peer.test", lmtp, true, true
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	nc, err := net.Dial("tcp", l.Addr().String())
	assert.Must(t, err)
	c := New(nc, Config{Hostname: "client.test", LMTP: lmtp, Timeouts: short(patience)})
	t.Cleanup(func() {
		c.Quit()
		srv.Close()
		<-ended
	})
	assert.Must(t, c.Hello())
	return p, c
}

// Another implementation understands us: parameters, pipelining, bytes, several
// messages on one connection.
func TestAnotherServerUnderstandsUs(t *testing.T) {
	p, c := servePeer(t, false, nil)
	bodies := []string{"\nplain\n", "\n.\n..\nno newline", "\n", "\n" + strings.Repeat("line\n.\n", 50000)}
	for i, body := range bodies {
		m := message("ok@test", "no@test", "grüße@test")
		m.Body, m.Ret, m.EnvID = strings.NewReader(body), "HDRS", "QQ314159"
		m.Recipients[0].Notify, m.Recipients[0].ORcpt = "SUCCESS,FAILURE", "rfc822;Orig+2BUser@test"
		res, err := c.Send(m)
		assert.Must(t, err)
		got := []status.Outcome{res[0].Outcome, res[1].Outcome, res[2].Outcome}
		assert.Same(t, got, []status.Outcome{status.Delivered, status.Failed, status.Delivered}, "message %d", i)
		assert.Equal(t, res[1].Reply.String(), "550 5.1.1 no such user")
		want := "Subject: x\r\n" + strings.ReplaceAll(body, "\n", "\r\n")
		if !strings.HasSuffix(want, "\r\n") {
			want += "\r\n"
		}
		if got := p.message(i); got != want {
			t.Errorf("message %d: got %d bytes, want %d", i, len(got), len(want))
		}
	}
	want := []string{
		"MAIL sender@client.test body=8BITMIME utf8=true ret=HDRS envid=QQ314159",
		"RCPT ok@test notify=[SUCCESS FAILURE] orcpt=Orig+User@test",
		"RCPT no@test notify=[] orcpt=",
		"RCPT grüße@test notify=[] orcpt=",
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.Same(t, p.seen[:4], want)
}

func TestAnotherLMTPServerUnderstandsUs(t *testing.T) {
	_, c := servePeer(t, true, nil)
	for range 3 {
		res, err := c.Send(message("a@test", "no@test", "full@test", "b@test"))
		assert.Must(t, err)
		var got []string
		for _, r := range res {
			got = append(got, r.Outcome.String()+" "+r.Code.String())
		}
		assert.Same(t, got, []string{"delivered 2.0.0", "failed 5.1.1", "deferred 4.2.2", "delivered 2.0.0"})
	}
}
