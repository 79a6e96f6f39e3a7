package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// awaitState waits for what another system's processes bring about.
func awaitState(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s after %v", what, patience)
		}
	}
}

// server runs another system's server until the test ends.
func server(t *testing.T, addr string, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Log(err)
		}
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("%s said:\n%s", argv[0], abbreviate(log.String()))
		}
	})
	awaitListener(t, addr)
}

// routeTo has a system send all mail that is not its own to an address.
func routeTo(t *testing.T, addr string) func(s *suite.Suite) {
	host, port := split(t, addr)
	return func(s *suite.Suite) { s.Files["routes"] = ". smtp![" + host + "]:" + port + "\n" }
}

// burst gives a system n small messages for far@sink.example, at once.
func burst(t *testing.T, s *suite.Suite, n int) {
	t.Helper()
	src := peer.Source{Addr: s.SMTPAddr, Connections: 5, Messages: n, From: "bob@mta.example",
		To:   func(int) string { return "far@sink.example" },
		Body: func(i int) []byte { return fmt.Appendf(nil, "Subject: number %d\r\n\r\n..\r\n", i) }}
	if err := src.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// numbers wants each of n messages of a burst in a set of files, once.
func numbers(t *testing.T, n int, texts [][]byte) {
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
		if got := times[fmt.Sprint(i)]; got != 1 {
			t.Errorf("message %d arrived %d times", i, got)
		}
	}
}

func readAll(t *testing.T, pattern string) (texts [][]byte) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, b)
	}
	return texts
}

// Postfix's sink in its moods: each message arrives once at a server without PIPELINING,
// without ESMTP, without 8BITMIME.
func TestSmtpSinkGetsAll(t *testing.T) {
	t.Parallel()
	need(t, "smtp-sink")
	for name, flags := range map[string][]string{
		"as it is": nil, "without PIPELINING": {"-p"}, "without ESMTP": {"-e"}, "without 8BITMIME": {"-8"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, addr := openDir(t), freeAddr(t)
			argv := append([]string{"smtp-sink"}, flags...)
			if os.Geteuid() == 0 {
				argv = append(argv, "-u", "nobody")
				if err := os.Chmod(dir, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			server(t, addr, append(argv, "-d", filepath.Join(dir, "%H%M%S."), addr, "100")...)
			s := start(t, nil, routeTo(t, addr))
			const messages = 60
			burst(t, s, messages)
			awaitEmpty(t, s)
			numbers(t, messages, readAll(t, filepath.Join(dir, "*")))
		})
	}
}

// Postfix's server offers PIPELINING and CHUNKING: each of many messages arrives once.
func TestWeDeliverToPostfix(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	p := startPostfix(t, sink.RouteHost())
	s := start(t, nil, routeTo(t, p.Listen))
	const messages = 200
	burst(t, s, messages)
	submit(t, s, letter, "-f", "bob@mta.example", "far@sink.example")
	awaitEmpty(t, s)
	if err := sink.Wait(messages+1, patience); err != nil {
		t.Fatal(err)
	}
	var texts [][]byte
	_, body, _ := strings.Cut(letter, "\n\n")
	whole := 0
	for _, m := range sink.Messages() {
		texts = append(texts, m.Data)
		if strings.HasSuffix(string(m.Data), "\r\n\r\n"+wire(body)) {
			whole++
		}
	}
	numbers(t, messages, texts)
	if whole != 1 {
		t.Errorf("the letter arrived whole %d times", whole)
	}
}

// Postfix's server takes mail in TLS alone, and has to show the right name.
func TestWeDeliverToPostfixInTLS(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	cert, err := peer.NewCertificate(openDir(t), "mx.sink.example")
	if err != nil {
		t.Fatal(err)
	}
	p := startPostfix(t, sink.RouteHost(), "smtpd_tls_security_level = encrypt", "smtpd_tls_received_header = yes",
		"smtpd_tls_cert_file = "+cert.CertFile, "smtpd_tls_key_file = "+cert.KeyFile)
	s := start(t, nil, func(s *suite.Suite) {
		routeTo(t, p.Listen)(s)
		s.Files["tls"] = "* verify match=mx.sink.example ca=" + cert.CertFile + "\n"
	})
	const messages = 50
	burst(t, s, messages)
	awaitEmpty(t, s)
	if err := sink.Wait(messages, patience); err != nil {
		t.Fatal(err)
	}
	var texts [][]byte
	for _, m := range sink.Messages() {
		texts = append(texts, m.Data)
		if !strings.Contains(string(m.Data), "(using TLSv1.3 with cipher") {
			t.Errorf("Postfix did not get this in TLS: %q", abbreviate(string(m.Data)))
		}
	}
	numbers(t, messages, texts)
}

// Python's aiosmtpd answers one command after the other.
func TestWeDeliverToAiosmtpd(t *testing.T) {
	t.Parallel()
	need(t, python)
	if out, err := exec.Command(python, "-c", "import aiosmtpd").CombinedOutput(); err != nil {
		t.Skipf("aiosmtpd is not installed: %s", out)
	}
	dir, addr := filepath.Join(t.TempDir(), "box"), freeAddr(t)
	server(t, addr, python, "-m", "aiosmtpd", "-n", "-u", "-l", addr, "-c", "aiosmtpd.handlers.Mailbox", dir)
	s := start(t, nil, routeTo(t, addr))
	const messages = 50
	burst(t, s, messages)
	awaitEmpty(t, s)
	numbers(t, messages, readAll(t, filepath.Join(dir, "new", "*")))
}
