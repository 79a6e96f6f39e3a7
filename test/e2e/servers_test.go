package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

func split(t *testing.T, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	assert.Must(t, err)
	return host, port
}

// freeAddr returns an address of loopback that no process listens on.
func freeAddr(t *testing.T) string { return rig.FreeAddr(t) }

// startPostfix runs a Postfix that relays all mail to a host.
func startPostfix(t *testing.T, relayHost string, settings ...string) *peer.Postfix {
	t.Helper()
	rig.Needs(t, peer.PostfixMaster)
	p := &peer.Postfix{Dir: filepath.Join(openDir(t), "postfix"), Listen: freeAddr(t), RelayHost: relayHost, Settings: settings}
	rig.Postfix(t, p, nil)
	return p
}

// routeTo has a system send all mail that is not its own to an address.
func routeTo(t *testing.T, addr string) func(s *suite.Suite) {
	host, port := split(t, addr)
	return func(s *suite.Suite) { s.Files["routes"] = ". smtp![" + host + "]:" + port + "\n" }
}

// burst sends a system n small messages at once, with a number each.
func burst(t *testing.T, s *suite.Suite, n int, to func(i int) string) {
	t.Helper()
	src := peer.Source{Addr: s.SMTPAddr, Connections: 10, Messages: n, From: "bob@mta.example", To: to,
		Body: func(i int) []byte { return fmt.Appendf(nil, "Subject: number %d\r\n\r\n..\r\n", i) }}
	assert.Must(t, src.Run(context.Background()))
}

func toSink(int) string { return "far@sink.example" }

// numbers wants each of n messages of a burst once, except those that were to be refused.
func numbers(t *testing.T, n int, texts [][]byte, refused func(i int) bool) {
	t.Helper()
	times := map[string]int{}
	for _, text := range texts {
		for line := range strings.Lines(string(text)) {
			if number, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "Subject: number "); ok {
				times[number]++
			}
		}
	}
	for i := range n {
		want := 1
		if refused != nil && refused(i) {
			want = 0
		}
		assert.Equal(t, times[fmt.Sprint(i)], want, i)
	}
}

// contentOf returns the messages of a sink as texts.
func contentOf(sink *peer.Sink) (texts [][]byte) {
	for _, m := range sink.Messages() {
		texts = append(texts, m.Data)
	}
	return texts
}

// readAll reads the files that match a pattern.
func readAll(t *testing.T, pattern string) (texts [][]byte) {
	t.Helper()
	names := assert.Get(filepath.Glob(pattern))(t)
	for _, name := range names {
		texts = append(texts, []byte(read(t, name)))
	}
	return texts
}

// Postfix's sink: each message arrives once at a server without PIPELINING, without ESMTP,
// without 8BITMIME. Python's aiosmtpd answers one command after the other.
func TestSimpleServersGetAll(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"as it is": nil, "without PIPELINING": {"-p"}, "without ESMTP": {"-e"}, "without 8BITMIME": {"-8"}, "aiosmtpd": nil,
	} {
		t.Run(name, func(t *testing.T) {
			dir, addr := openDir(t), freeAddr(t)
			assert.Must(t, os.Chmod(dir, 0o777))
			argv, pattern := append([]string{"smtp-sink"}, flags...), "*"
			if os.Geteuid() == 0 {
				argv = append(argv, "-u", "nobody")
			}
			argv = append(argv, "-d", filepath.Join(dir, "%H%M%S."), addr, "100")
			if name == "aiosmtpd" {
				if exec.Command(python, "-c", "import aiosmtpd").Run() != nil {
					t.Skip("aiosmtpd is not installed")
				}
				argv, pattern = []string{python, "-m", "aiosmtpd", "-n", "-u", "-l", addr, "-c", "aiosmtpd.handlers.Mailbox", filepath.Join(dir, "box")}, "box/new/*"
			}
			need(t, argv[0])
			rig.Daemon(t, addr, exec.Command(argv[0], argv[1:]...))
			s := start(t, nil, routeTo(t, addr))
			const messages = 50
			burst(t, s, messages, toSink)
			awaitEmpty(t, s)
			numbers(t, messages, readAll(t, filepath.Join(dir, pattern)), nil)
		})
	}
}

// Postfix's server offers PIPELINING and CHUNKING: each of many messages arrives once, also when
// it requires TLS and has to show the right name.
func TestWeDeliverToPostfix(t *testing.T) {
	t.Parallel()
	cert := assert.Get(peer.NewCertificate(openDir(t), "mx.sink.example"))(t)
	for name, settings := range map[string][]string{"clear": nil, "TLS": {
		"smtpd_tls_security_level = encrypt", "smtpd_tls_received_header = yes", "smtpd_tls_cert_file = " + cert.CertFile, "smtpd_tls_key_file = " + cert.KeyFile,
	}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := newSink(t, &peer.Sink{})
			p := startPostfix(t, sink.RouteHost(), settings...)
			s := start(t, nil, func(s *suite.Suite) {
				routeTo(t, p.Listen)(s)
				if settings != nil {
					s.Files["tls"] = "* verify match=mx.sink.example ca=" + cert.CertFile + "\n"
				}
			})
			const messages = 100
			burst(t, s, messages, toSink)
			submit(t, s, letter, "-f", "bob@mta.example", "far@sink.example")
			awaitEmpty(t, s)
			assert.Must(t, sink.Wait(messages+1, patience))
			numbers(t, messages, contentOf(sink), nil)
			_, body, _ := strings.Cut(letter, "\n\n")
			whole := 0
			for _, text := range contentOf(sink) {
				if bytes.HasSuffix(text, []byte("\r\n\r\n"+wire(body))) {
					whole++
				}
				if settings != nil && !bytes.Contains(text, []byte("(using TLSv1.3 with cipher")) {
					t.Errorf("Postfix did not get this under TLS: %q", abbreviate(string(text)))
				}
			}
			assert.Equal(t, whole, 1)
		})
	}
}

// farFrom puts a delay of 20 ms in each direction before a server.
func farFrom(t *testing.T, addr string) *peer.Far {
	t.Helper()
	far := &peer.Far{To: addr, Way: 20 * time.Millisecond}
	assert.Must(t, far.Start())
	t.Cleanup(far.Close)
	return far
}

// RFC 3030 section 4.2: several messages are on their way to a distant Postfix at once, among
// them some that it refuses; each of the others arrives once.
func TestPostfixFarAwayGetsAll(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	p := startPostfix(t, sink.RouteHost(),
		"smtpd_recipient_restrictions = check_recipient_access inline:{ { nobody@sink.example = 550 5.1.1 no such user } }, permit_mynetworks, reject")
	s := start(t, nil, routeTo(t, farFrom(t, p.Listen).Addr()))
	const messages = 150
	refused := func(i int) bool { return i%5 == 0 }
	burst(t, s, messages, func(i int) string {
		if refused(i) {
			return "nobody@sink.example"
		}
		return "alice@sink.example"
	})
	assert.Must(t, sink.Wait(messages*4/5, patience))
	awaitMail(t, s, "bob", messages/5)
	awaitEmpty(t, s)
	numbers(t, messages, contentOf(sink), refused)
}

// The same with a server of ours.
func TestOurServerFarAwayGetsAll(t *testing.T) {
	t.Parallel()
	far := start(t, nil, nil)
	s := start(t, nil, func(s *suite.Suite) {
		routeTo(t, farFrom(t, far.SMTPAddr).Addr())(s)
		s.Hostname = "here.example"
	})
	const messages = 100
	burst(t, s, messages, func(int) string { return "alice@mta.example" })
	numbers(t, messages, awaitMail(t, far, "alice", messages), nil)
	awaitEmpty(t, s)
	awaitEmpty(t, far)
}
