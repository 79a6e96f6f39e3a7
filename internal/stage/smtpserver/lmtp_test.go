package smtpserver

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
)

// lmtp serves LMTP at a Unix socket beside SMTP, and gives a client of it.
func lmtp(t *testing.T, change func(*Config)) (*running, func() *peer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lmtp")
	r := start(t, func(c *Config) {
		c.LMTPListen = []string{path}
		if change != nil {
			change(c)
		}
	})
	return r, func() *peer {
		p := r.connectTo("unix", path)
		p.expect("220 mx.example.org LMTP")
		return p
	}
}

// RFC 2033 §4.2: one message file, and a reply for each recipient, by DATA and by BDAT.
func TestLMTPAnswersEachRecipient(t *testing.T) {
	for name, content := range map[string]string{
		"DATA": "DATA\r\nSubject: x\r\n\r\nbody\r\n.\r\n",
		"BDAT": "BDAT 14\r\nSubject: x\r\n\r\nBDAT 6 LAST\r\nbody\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			r, dial := lmtp(t, nil)
			p := dial()
			p.say("EHLO c", "500 5.5.1")
			if got := p.say("LHLO c", "250-mx.example.org"); !strings.Contains(got, "PIPELINING") {
				t.Errorf("LHLO: %q", got)
			}
			p.say("MAIL FROM:<a@example.net>", "250")
			p.say("RCPT TO:<b@mx.example.org>", "250")
			p.say("RCPT TO:<c@elsewhere.example>", "550 5.7.1")
			p.say("RCPT TO:<d@mx.example.org>", "250")
			p.say("RCPT TO:<b@mx.example.org>", "250")
			p.send(content)
			if name == "DATA" {
				p.expect("354")
			} else {
				p.expect("250 2.0.0")
			}
			p.expect("250 2.0.0", "250 2.0.0", "250 2.0.0")
			p.say("QUIT", "221")
			got := r.only()
			for _, want := range []string{"with LMTP\n", "rcvdfrom c (local)\n", "to <b@mx.example.org>\n", "to <d@mx.example.org>\n", "Subject: x\n\nbody\n"} {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
		})
	}
}

// RFC 2033 §4.2: with no valid recipient there is one reply, and no data.
func TestLMTPWithoutRecipientsTakesNoData(t *testing.T) {
	_, dial := lmtp(t, nil)
	p := dial()
	p.say("LHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("DATA", "50")
	p.say("NOOP", "250")
}

// A message that is given up between chunks gets no reply of its own, however many
// recipients it had.
func TestLMTPMessageGivenUpIsNotAnswered(t *testing.T) {
	r, dial := lmtp(t, nil)
	p := dial()
	p.say("LHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<b@mx.example.org>", "250")
	p.say("RCPT TO:<d@mx.example.org>", "250")
	p.send("BDAT 3\r\nab\nRSET\r\nNOOP\r\n")
	p.expect("250 2.0.0", "250 2.0.0", "250 2.0.0")
	r.nothing()
}

// A fault of ours is each recipient's deferral.
func TestLMTPFullDiskIsToldToEach(t *testing.T) {
	r, dial := lmtp(t, func(c *Config) { c.MaxSize = 10 })
	p := dial()
	p.say("LHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<b@mx.example.org>", "250")
	p.say("RCPT TO:<d@mx.example.org>", "250")
	p.say("DATA", "354")
	p.send("more than ten\r\n.\r\n")
	p.expect("552 5.3.4", "552 5.3.4")
	p.say("NOOP", "250")
	r.nothing()
}

// A17 for Unix sockets: a stop lets the transaction finish.
func TestStopLetsLMTPFinish(t *testing.T) {
	r, dial := lmtp(t, nil)
	idle, data := dial(), dial()
	data.say("LHLO c", "250")
	data.say("MAIL FROM:<a@example.net>", "250")
	data.say("RCPT TO:<b@mx.example.org>", "250")
	data.say("DATA", "354")
	r.stop()
	idle.expect("421 4.3.2")
	idle.end()
	data.say("x\r\n.", "250")
	data.expect("421 4.3.2")
	data.end()
	if err := r.ended(); err != nil {
		t.Error(err)
	}
	r.only()
}

// The mode, and that a socket of a dead server is replaced, one of a live one is not.
func TestUnixSocketIsReplacedIfNoServerAnswers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lmtp")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	r := start(t, func(c *Config) { c.LMTPListen = []string{path} })
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	second := Config{PostOffice: r.dir, FS: r.disk, Hostname: "mx.example.org", LMTPListen: []string{path}}
	if err := Run(t.Context(), second); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("a second server: %v", err)
	}
	r.stop()
	if err := r.ended(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), second); err == nil {
		t.Errorf("in place of a file: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file: %q, %v", b, err)
	}
	if err := Run(t.Context(), Config{PostOffice: filepath.Join(dir, "none"), LMTPListen: []string{path}}); errors.Is(err, postoffice.ErrCrossDevice) || err == nil {
		t.Errorf("no postoffice: %v", err)
	}
}

func TestHelpNamesTheCommands(t *testing.T) {
	p := start(t, nil).dial()
	p.say("HELP", "214 2.0.0")
	p.say("help me", "214 2.0.0")
	p.say("HELPX", "501")
	p.say("EHLO c", "250-mx.example.org greets c\r\n250-PIPELINING\r\n")
}
