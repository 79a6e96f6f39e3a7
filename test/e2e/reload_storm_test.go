package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pipeline "zmailer/internal/admin/service"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/socketmap"
	"zmailer/test/suite"
)

// restartingTable is a server of aliases that ends with all its connections again and again.
func restartingTable(t *testing.T, path string, end <-chan struct{}) *sync.WaitGroup {
	var running sync.WaitGroup
	running.Go(func() {
		for {
			_ = os.Remove(path)
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			_ = os.Chmod(path, 0o777)
			var conns []net.Conn
			accepted := make(chan struct{})
			go func() {
				defer close(accepted)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					conns = append(conns, c)
					go socketmap.Serve(c, c, func(_, key string) socketmap.Reply {
						if key == "sales" {
							return socketmap.Reply{Status: socketmap.OK, Text: "alice"}
						}
						return socketmap.Reply{Status: socketmap.NotFound}
					})
				}
			}()
			var over bool
			select {
			case <-end:
				over = true
			case <-time.After(30 * time.Millisecond):
			}
			if over {
				return // it stays for what waits in deferred/
			}
			_ = l.Close()
			<-accepted
			for _, c := range conns {
				_ = c.Close()
			}
		}
	})
	return &running
}

// A client is in the middle of DATA, of BDAT, of AUTH or of a TLS handshake while the daemons read
// their configuration a hundred times a second and the server of a table restarts in between: no
// session ends, and each message arrives once.
func TestReloadsAtAnyMomentEndNoSession(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(openDir(t), "map")
	s := startSecured(t, func(x *suite.Suite) {
		x.Settings["ALIASES"] = "socket:unix:" + socket + ":aliases"
		x.Settings["RCPTCHECK"], x.Settings["RESUBMIT"] = "yes", "1s,1s"
	})
	daemons := map[string]int{}
	for _, d := range pipeline.Daemons() {
		daemons[d] = oneOf(t, s.Suite, d).Pid
	}
	end := make(chan struct{})
	storm := restartingTable(t, socket, end)
	storm.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			for d, pid := range daemons {
				if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
					t.Errorf("%s: %v", d, err)
				}
			}
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	})
	// reloaded waits for one more reload, as every client does in the middle of what it says.
	reloaded := func(k *session) {
		k.t.Helper()
		n := s.Count("conf-read", "program", "smtpserver")
		awaitState(t, "a reload", func() bool { return s.Count("conf-read", "program", "smtpserver") > n })
	}
	// rcpt names a recipient until its table answers.
	rcpt := func(k *session) {
		k.t.Helper()
		for deadline := time.Now().Add(patience); ; {
			k.write("RCPT TO:<sales@mta.example>\r\n")
			if reply := k.expect("RCPT", ""); strings.HasPrefix(reply, "250") {
				return
			} else if !strings.HasPrefix(reply, "4") || time.Now().After(deadline) {
				k.t.Fatalf("got %q", reply)
			}
		}
	}
	log := func(k *session) {
		k.say("AUTH LOGIN "+base64.StdEncoding.EncodeToString([]byte("alice")), "334")
		reloaded(k)
		k.say(base64.StdEncoding.EncodeToString([]byte(secret)), "235")
	}
	secure := func(k *session) *session {
		k.say("STARTTLS", "220")
		reloaded(k) // the handshake comes after it
		c := tls.Client(k.c.(net.Conn), &tls.Config{InsecureSkipVerify: true})
		assert.Must(t, c.Handshake())
		n := &session{t, c, bufio.NewReader(c)}
		n.say("EHLO client.example.net", "250")
		return n
	}
	const rounds = 3
	sent := 0
	for i := range rounds {
		for name, say := range map[string]func(subject string){
			"DATA": func(subject string) {
				k := connect(t, s.SMTPAddr)
				k.say("MAIL FROM:<a@client.example>", "250")
				rcpt(k)
				k.say("DATA", "354")
				k.write("Subject: " + subject + "\r\n\r\none\r\n")
				reloaded(k)
				k.say("two\r\n.", "250")
				k.say("QUIT", "221")
			},
			"BDAT": func(subject string) {
				k := connect(t, s.SMTPAddr)
				k.say("MAIL FROM:<a@client.example>", "250")
				rcpt(k)
				head := "Subject: " + subject + "\r\n\r\n"
				k.write(fmt.Sprintf("BDAT %d\r\n%s", len(head), head[:5]))
				reloaded(k)
				k.write(head[5:])
				k.expect("BDAT", "250")
				reloaded(k)
				k.write("BDAT 5 LAST\r\none\r\n")
				k.expect("BDAT LAST", "250")
				k.say("QUIT", "221")
			},
			"TLS and AUTH": func(subject string) {
				k := secure(connect(t, s.submission))
				log(k)
				k.say("MAIL FROM:<alice@mta.example>", "250")
				rcpt(k)
				reloaded(k)
				k.say("DATA", "354")
				k.say("Subject: "+subject+"\r\n\r\none\r\n.", "250")
				k.say("QUIT", "221")
			},
		} {
			subject := fmt.Sprintf("%s, %d", name, i)
			say(subject)
			sent++
		}
	}
	close(end)
	storm.Wait()
	mail := awaitMail(t, s.Suite, "alice", sent)
	awaitEmpty(t, s.Suite)
	assert.Equal(t, len(mail), sent)
	for d, pid := range daemons {
		assert.Equal(t, oneOf(t, s.Suite, d).Pid, pid, d)
		fds := assert.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))(t)
		t.Logf("%s: %d descriptors, %d reloads", d, len(fds), s.Count("conf-read", "program", d))
	}
	t.Logf("%d verifiers", len(verifiers(t, s.Suite)))
	balance(t, s.Suite)
}
