package ecosystem

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/smtp"
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

// dovecot is a running Dovecot with the configuration of docs/dovecot.md.
type dovecot struct {
	page                  // the page, with this Dovecot's paths
	dir, imap, submission string
	vmail                 string
	ca                    *peer.CA
}

// debianServices has the listeners that Dovecot has on Debian without any configuration.
const debianServices = "/usr/share/dovecot/conf.d/10-master.conf"

func startDovecot(t *testing.T) *dovecot {
	t.Helper()
	rig.Needs(t, "/usr/sbin/dovecot", "/usr/lib/dovecot/lmtp", "/usr/lib/dovecot/imap")
	d := &dovecot{dir: rig.ShortDir(t), ca: peer.NewCA(t, "ca")}
	d.vmail = filepath.Join(d.dir, "vmail")
	assert.Must(t, errors.Join(os.Mkdir(d.vmail, 0o750), os.Chown(d.vmail, 5000, 5000)))
	var port string
	d.imap, port = freePort(t)
	d.submission, _ = freePort(t)
	cert, key := d.ca.Pair("mx.shop.example")
	pair := append(assert.Get(os.ReadFile(key))(t), assert.Get(os.ReadFile(cert))(t)...)
	d.page = readPage(t, "dovecot.md", "/var/vmail", d.vmail, "/run/dovecot/lmtp", d.dir+"/run/lmtp", "/run/zmailer/auth", d.dir+"/auth",
		"/etc/dovecot/users", d.dir+"/users", "group = zmailer", "group = root", "0.0.0.0:587", d.submission,
		"/etc/zmailer/certs/mx.shop.example.pem", write(t, d.dir+"/tls.pem", string(pair), 0o640))
	var users strings.Builder
	for _, user := range []string{"alice"} {
		hash := assert.Get(exec.Command("/usr/bin/doveadm", "-c", os.DevNull, "-O", "pw", "-s", "SHA512-CRYPT", "-p", "secret").Output())(t)
		fmt.Fprintf(&users, "%s@shop.example:%s\n", user, strings.TrimSpace(string(hash)))
	}
	write(t, d.dir+"/users", users.String(), 0o644)
	// Debian's own file comes first, as where the page's file is read.
	conf := "!include_try " + debianServices + "\n" + d.get(t, "/etc/dovecot/local.conf") + strings.ReplaceAll(`
base_dir = DIR/run
state_dir = DIR/state
log_path = DIR/log
ssl = no
listen = 127.0.0.1
auth_failure_delay = 0
service imap-login {
  inet_listener imap {
    port = `+port+`
  }
  inet_listener imaps {
    port = 0
  }
}
`, "DIR", d.dir)
	write(t, d.dir+"/dovecot.conf", conf, 0o644)
	t.Cleanup(func() {
		if text, err := os.ReadFile(d.dir + "/log"); t.Failed() {
			t.Logf("Dovecot's log: %s %v", text, err)
		}
	})
	rig.Daemon(t, d.imap, exec.Command("/usr/sbin/dovecot", "-F", "-c", d.dir+"/dovecot.conf"))
	return d
}

// read returns the message of a user that IMAP has, once there is one.
func (d *dovecot) read(t *testing.T, user string) string {
	t.Helper()
	c := assert.Get(net.Dial("tcp", d.imap))(t)
	defer c.Close()
	assert.Must(t, c.SetDeadline(time.Now().Add(2*rig.Patience)))
	r := bufio.NewReader(c)
	say := func(command string) string {
		_, err := fmt.Fprintf(c, "x %s\r\n", command)
		assert.Must(t, err)
		var all strings.Builder
		for {
			line := assert.Get(r.ReadString('\n'))(t)
			if rest, ok := strings.CutPrefix(line, "x "); ok {
				if !strings.HasPrefix(rest, "OK") {
					t.Fatalf("%s: %s", command, line)
				}
				return all.String()
			}
			all.WriteString(line)
		}
	}
	say("LOGIN " + user + " secret")
	say("SELECT INBOX")
	rig.Await(t, "mail in IMAP", func() bool { return strings.Contains(say("SEARCH ALL"), " 1") })
	return strings.ReplaceAll(say("FETCH 1 BODY.PEEK[]"), "\r\n", "\n")
}

const dotted = "From: ann@far.example\nSubject: hello\n\nHello.\n..dot\n"

// Dovecot takes the mail of its users by LMTP, and IMAP shows it. Those that the table lacks are
// refused at RCPT, one that only Dovecot lacks is reported.
func TestDovecotDeliversVirtualMailboxesByLMTP(t *testing.T) {
	t.Parallel()
	d := startDovecot(t)
	s := d.start(t, "/etc/zmailer/zmailer.conf", func(s *suite.Suite) { s.Settings["RELAYNETS"] = "192.0.2.1" })
	send(t, s, "ann@far.example", "alice@shop.example", dotted)
	rig.Event(t, s, "delivered", "rcpt", "alice@shop.example", "channel", "lmtp")
	text := d.read(t, "alice@shop.example")
	assert.Contains(t, text, "\nSubject: hello\n\nHello.\n.dot\n")
	assert.Contains(t, text, "Return-Path: <ann@far.example>\n")
	send(t, s, "ann@far.example", "bob@shop.example", dotted)
	rig.Event(t, s, "failed", "rcpt", "bob@shop.example", "status", "5.1.1")
	assert.Equal(t, accepts(t, s, "eve@shop.example"), false, "an unknown user")
}

// Users send with their passwords in Dovecot, after STARTTLS.
func TestDovecotAuthenticatesSubmission(t *testing.T) {
	t.Parallel()
	d := startDovecot(t)
	s := d.start(t, "/etc/zmailer/zmailer.conf", func(*suite.Suite) {})
	for password, want := range map[string]string{"secret": "", "wrong": "535"} {
		c := assert.Get(smtp.Dial(d.submission))(t)
		assert.Must(t, c.StartTLS(&tls.Config{ServerName: "mx.shop.example", RootCAs: d.ca.Pool()}))
		err := c.Auth(smtp.PlainAuth("", "alice@shop.example", password, "127.0.0.1"))
		if want == "" {
			assert.Must(t, err)
			assert.Must(t, c.Mail("alice@shop.example"), c.Rcpt("alice@shop.example"))
			w := assert.Get(c.Data())(t)
			_, err = w.Write([]byte("From: alice@shop.example\r\nSubject: sent\r\n\r\nx\r\n"))
			assert.Must(t, err, w.Close(), c.Quit())
		} else if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("AUTH with %q: %v", password, err)
		}
		c.Close()
	}
	rig.Event(t, s, "authenticated", "user", "alice@shop.example")
	rig.Event(t, s, "delivered", "rcpt", "alice@shop.example", "channel", "lmtp")
	assert.Contains(t, d.read(t, "alice@shop.example"), "SMTPSA\n")
}

// IMAP shows what ta-mailbox has written to the Maildirs of virtual mailboxes.
func TestDovecotReadsMaildirsOfVirtualMailboxes(t *testing.T) {
	t.Parallel()
	d := startDovecot(t)
	s := d.start(t, "/etc/zmailer/zmailer.conf, without LMTP", func(*suite.Suite) {})
	send(t, s, "ann@far.example", "alice@shop.example", dotted)
	rig.Event(t, s, "delivered", "channel", "virtual")
	text := d.read(t, "alice@shop.example")
	assert.Contains(t, text, "\nSubject: hello\n\nHello.\n.dot\n")
	assert.Contains(t, text, "Delivered-To: alice@shop.example\n")
}
