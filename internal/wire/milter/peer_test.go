package milter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"sync"
	"testing"
	"time"
	"zmailer/internal/run/assert"

	"github.com/emersion/go-milter"
)

// peer is a filter of go-milter's on loopback. It notes what it is told; what it says is
// for the test to set.
type peer struct {
	cfg    Config
	server *milter.Server

	mu    sync.Mutex
	heard []string
	body  bytes.Buffer

	connect, helo, mail, rcpt, header, headers, chunk milter.Response
	end                                               func(*milter.Modifier) (milter.Response, error)
}

// serve starts a filter that has no objection to anything.
func serve(t testing.TB, change func(*peer)) *peer {
	t.Helper()
	p := &peer{}
	p.server = &milter.Server{NewMilter: func() milter.Milter { return p },
		Actions: milter.OptAddHeader | milter.OptChangeHeader | milter.OptChangeBody | milter.OptAddRcpt | milter.OptRemoveRcpt | milter.OptQuarantine | milter.OptChangeFrom}
	if change != nil {
		change(p)
	}
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan error, 1)
	go func() { done <- p.server.Serve(l) }()
	t.Cleanup(func() {
		// The library closes the listener twice.
		_ = l.Close()
		<-done
	})
	p.cfg = Config{Network: "tcp", Address: l.Addr().String(), Timeout: 5 * time.Second}
	return p
}

// open connects to it.
func (p *peer) open(t testing.TB) *Session {
	t.Helper()
	s := assert.Get(Open(context.Background(), p.cfg))(t)
	t.Cleanup(func() { _ = s.Close() }) // the peer may have closed it
	return s
}

func (p *peer) hear(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, fmt.Sprintf(format, args...))
}

// said is what it was told since the last time.
func (p *peer) said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.heard
	p.heard = nil
	return h
}

func or(r milter.Response) (milter.Response, error) {
	if r == nil {
		return milter.RespContinue, nil
	}
	return r, nil
}

func (p *peer) Connect(host, family string, port uint16, addr net.IP, m *milter.Modifier) (milter.Response, error) {
	p.hear("connect %s %s %d %v %s", host, family, port, addr, m.Macros["j"])
	return or(p.connect)
}

func (p *peer) Helo(name string, m *milter.Modifier) (milter.Response, error) {
	p.hear("helo %s %s", name, m.Macros["{tls_version}"])
	return or(p.helo)
}

func (p *peer) MailFrom(from string, m *milter.Modifier) (milter.Response, error) {
	p.hear("mail %s %s", from, m.Macros["{auth_authen}"])
	return or(p.mail)
}

func (p *peer) RcptTo(to string, m *milter.Modifier) (milter.Response, error) {
	p.hear("rcpt %s %s", to, m.Macros["{rcpt_addr}"])
	return or(p.rcpt)
}

func (p *peer) Header(name, value string, _ *milter.Modifier) (milter.Response, error) {
	p.hear("header %s:%s", name, value)
	return or(p.header)
}

func (p *peer) Headers(textproto.MIMEHeader, *milter.Modifier) (milter.Response, error) {
	p.hear("headers")
	return or(p.headers)
}

func (p *peer) BodyChunk(b []byte, _ *milter.Modifier) (milter.Response, error) {
	if p.server.Protocol&milter.OptNoBodyReply != 0 {
		return nil, nil
	}
	p.mu.Lock()
	p.body.Write(b)
	p.mu.Unlock()
	return or(p.chunk)
}

func (p *peer) Body(m *milter.Modifier) (milter.Response, error) {
	p.mu.Lock()
	p.heard = append(p.heard, fmt.Sprintf("body %q %s", p.body.String(), m.Macros["i"]))
	p.body.Reset()
	p.mu.Unlock()
	if p.end != nil {
		return p.end(m)
	}
	return milter.RespContinue, nil
}

func (p *peer) Abort(*milter.Modifier) error {
	p.hear("abort")
	return nil
}

// scripted is a filter that agrees to what we offer and then sends bytes, whatever
// it is told.
func scripted(t testing.TB, answer []byte, after func(net.Conn)) Config {
	t.Helper()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var conns sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				script(c, answer, after)
			})
		}
	})
	return Config{Network: "tcp", Address: l.Addr().String(), Timeout: 2 * time.Second, ContentTimeout: 2 * time.Second}
}

func script(c net.Conn, answer []byte, after func(net.Conn)) {
	offer := make([]byte, 17)
	for n := 0; n < len(offer); {
		k, err := c.Read(offer[n:])
		if err != nil {
			return
		}
		n += k
	}
	copy(offer[13:], "\x00\x00\x00\x00") // it wants all of it, and answers all
	if _, err := c.Write(append(offer, answer...)); err != nil {
		return
	}
	if after != nil {
		after(c)
	}
	rest := make([]byte, 64<<10)
	for {
		if _, err := c.Read(rest); err != nil {
			return
		}
	}
}

// packet is one of the protocol.
func packet(code byte, data string) []byte {
	n := len(data) + 1
	return append([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n), code}, data...)
}

var errStop = errors.New("stop")
