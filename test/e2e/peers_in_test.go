package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// python is the interpreter of the system, which has the distribution's packages.
const python = "/usr/bin/python3"

// program runs another system's client to its end and wants it content.
func program(t *testing.T, stdin string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

// letter is a message with what clients and servers get wrong: dots, 8-bit octets, long
// and empty lines.
const letter = "From: bob@mta.example\nTo: alice@mta.example\nSubject: caf\xc3\xa9\nMIME-Version: 1.0\n" +
	"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n" +
	".\n..\n.dot\n\nna\xc3\xafve \xe2\x82\xac\nFrom here\n>From there\n" +
	"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\n"

// awaitLetters wants n messages of alice's, each with the letter's body.
func awaitLetters(t *testing.T, s *suite.Suite, n int) {
	t.Helper()
	_, body, _ := strings.Cut(letter, "\n\n")
	for _, m := range awaitMail(t, s, "alice", n) {
		if !bytes.HasSuffix(m, []byte("\n\n"+body)) {
			t.Errorf("alice got %q", abbreviate(string(m)))
		}
	}
}

// letterFile is a file for a client to send.
func letterFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "letter")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Postfix's generator of load: all that it was told is taken is there, once each.
func TestSmtpSourceDeliversAll(t *testing.T) {
	t.Parallel()
	need(t, "smtp-source")
	s := start(t, nil, nil)
	const messages = 300
	program(t, "", "smtp-source", "-s", "10", "-m", strconv.Itoa(messages), "-l", "3000",
		"-f", "bob@mta.example", "-t", "alice@mta.example", s.SMTPAddr)
	awaitMail(t, s, "alice", messages)
	awaitEmpty(t, s)
	if mail := awaitMail(t, s, "alice", messages); len(mail) != messages {
		t.Errorf("alice has %d messages, want %d", len(mail), messages)
	}
}

func TestSwaksDelivers(t *testing.T) {
	t.Parallel()
	need(t, "swaks")
	s := start(t, nil, nil)
	// It ends what it sends with a line end of its own.
	path := letterFile(t, strings.TrimSuffix(letter, "\n"))
	for n, flags := range [][]string{{}, {"--protocol", "SMTP"}, {"--pipeline"}} {
		program(t, "", append([]string{"swaks", "--server", s.SMTPAddr, "--from", "bob@mta.example",
			"--to", "alice@mta.example", "--data", "@" + path, "--suppress-data"}, flags...)...)
		awaitLetters(t, s, n+1)
	}
	awaitEmpty(t, s)
}

func TestMsmtpDelivers(t *testing.T) {
	t.Parallel()
	need(t, "msmtp")
	s := start(t, nil, nil)
	host, port := split(t, s.SMTPAddr)
	program(t, letter, "msmtp", "--host="+host, "--port="+port, "--from=bob@mta.example", "--auth=off", "--tls=off", "alice@mta.example")
	awaitLetters(t, s, 1)
}

func split(t *testing.T, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// smtplib sends octets by the file's path, its server's address and what to do before.
const smtplib = `import smtplib, sys
s = smtplib.SMTP(sys.argv[1], int(sys.argv[2]))
%s
text = open(sys.argv[3], "rb").read()
refused = s.sendmail("bob@mta.example", ["alice@mta.example", "nobody@mta.example"], text, mail_options=["BODY=8BITMIME"])
assert not refused, refused
s.quit()
`

func TestPythonsSmtplibDelivers(t *testing.T) {
	t.Parallel()
	need(t, python)
	s := start(t, nil, func(s *suite.Suite) { s.Files["aliases"] = "nobody: /dev/null\n" })
	path := letterFile(t, wire(letter))
	host, port := split(t, s.SMTPAddr)
	program(t, "", python, "-c", fmt.Sprintf(smtplib, "s.ehlo()"), host, port, path)
	awaitLetters(t, s, 1)
	awaitEmpty(t, s)
}

// startPostfix runs a Postfix that relays all mail to a host.
func startPostfix(t *testing.T, relayHost string, settings ...string) *peer.Postfix {
	t.Helper()
	if _, err := os.Stat(peer.PostfixMaster); err != nil {
		t.Skip("postfix is not installed")
	}
	if os.Geteuid() != 0 {
		t.Skip("Postfix's master wants to be root")
	}
	p := &peer.Postfix{Dir: filepath.Join(openDir(t), "postfix"), Listen: freeAddr(t), RelayHost: relayHost, Settings: settings}
	cmd, err := p.Command()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("/usr/sbin/postfix", "-c", p.Config(), "stop").CombinedOutput(); err != nil {
			t.Logf("postfix stop: %v %s", err, out)
		}
		if err := cmd.Wait(); err != nil {
			t.Logf("postfix: %v", err)
		}
		if t.Failed() {
			t.Logf("Postfix's log:\n%s", abbreviate(log.String()))
		}
	})
	awaitListener(t, p.Listen)
	return p
}

// freeAddr is an address of loopback that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := peer.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func awaitListener(t *testing.T, addr string) {
	t.Helper()
	if err := peer.AwaitListener(addr, 20*time.Second); err != nil {
		t.Fatal(err)
	}
}

// Postfix's client is a client of ours.
func TestPostfixDeliversToUs(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	host, port := split(t, s.SMTPAddr)
	p := startPostfix(t, "["+host+"]:"+port)
	const messages = 50
	program(t, "", "smtp-source", "-s", "5", "-m", strconv.Itoa(messages-1), "-f", "bob@mta.example", "-t", "bob@mta.example", p.Listen)
	program(t, letter, "/usr/sbin/sendmail", "-C", p.Config(), "-i", "-f", "bob@mta.example", "alice@mta.example")
	awaitLetters(t, s, 1)
	awaitMail(t, s, "bob", messages-1)
	awaitEmpty(t, s)
}
