package attack

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Addresses of clients, apart from the attacker's.
const (
	exemptAddr   = "127.0.0.2" // in LIMITSEXEMPT
	strangerAddr = "127.0.0.3"
	userAddr     = "127.0.0.4"
)

// session is a client's SMTP session from an address.
type smtpSession struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialFrom(from, to string) (*smtpSession, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	c, err := d.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	return &smtpSession{c, bufio.NewReader(c)}, nil
}

// expect reads a reply that begins with a code.
func (s *smtpSession) expect(code string) error {
	_ = s.conn.SetDeadline(time.Now().Add(patience))
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return err
		}
		if !strings.HasPrefix(line, code) {
			return fmt.Errorf("reply %q, want %s", strings.TrimSpace(line), code)
		}
		if line[3] == ' ' {
			return nil
		}
	}
}

func (s *smtpSession) say(line, code string) error {
	if _, err := fmt.Fprint(s.conn, line, "\r\n"); err != nil {
		return err
	}
	return s.expect(code)
}

// mail sends a message from an address, of a user if login is not "".
func mail(from, to, login, rcpt string) error {
	s, err := dialFrom(from, to)
	if err != nil {
		return err
	}
	defer s.conn.Close()
	if err := s.expect("220"); err != nil {
		return err
	}
	steps := [][2]string{{"EHLO client.example", "250"}, {"AUTH PLAIN " + login, "235"}, {"MAIL FROM:<x@far.example>", "250"},
		{"RCPT TO:<" + rcpt + ">", "250"}, {"DATA", "354"}, {"Subject: x\r\n\r\nx\r\n.", "250"}, {"QUIT", "221"}}
	for i, step := range steps {
		if i == 1 && login == "" {
			continue
		}
		if err := s.say(step[0], step[1]); err != nil {
			return fmt.Errorf("%.20s: %w", step[0], err)
		}
	}
	return nil
}

// crowdOf keeps connections open from addresses of the attacker's until ctx is done; one that
// is closed is opened again. keep is sent on each now and then.
type crowdOf struct {
	greeted, ended atomic.Int64
	running        sync.WaitGroup
}

func (c *crowdOf) start(ctx context.Context, to string, addrs, each int, keep func(turn int) string) {
	for i := range addrs * each {
		from := fmt.Sprintf("127.77.%d.%d", i/each/200, i/each%200+1)
		c.running.Go(func() {
			for ctx.Err() == nil {
				// The attacker's hosts do not keep time with each other.
				select {
				case <-ctx.Done():
				case <-time.After(rand.N(3 * time.Second)):
					c.once(ctx, from, to, keep)
				}
			}
		})
	}
}

func (c *crowdOf) once(ctx context.Context, from, to string, keep func(turn int) string) {
	s, err := dialFrom(from, to)
	if err != nil {
		return
	}
	defer s.conn.Close()
	defer context.AfterFunc(ctx, func() { s.conn.Close() })()
	if s.expect("220") != nil {
		return
	}
	c.greeted.Add(1)
	defer c.ended.Add(1)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = s.conn.SetReadDeadline(time.Time{})
		_, _ = s.in.WriteTo(nowhere{})
	}()
	for turn := 0; ; turn++ {
		if _, err := fmt.Fprint(s.conn, keep(turn)); err != nil {
			return
		}
		select {
		case <-gone:
			return
		case <-time.After(time.Second):
		}
	}
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// calm is how long an exchange takes without an attack: the slowest of some. How long one may
// take under attack is a multiple of that on a busy machine, see longest.
func (w *world) calm(exchange func() error) (slowest time.Duration) {
	w.Helper()
	for range 20 {
		began := time.Now()
		w.must(exchange())
		slowest = max(slowest, time.Since(began))
	}
	return slowest
}

// What an exchange may take under attack on a machine that has other things to do as well: it
// takes much less when it has not, and without protection own clients wait until the places of
// idle ones end, strangers for minutes.
const (
	ownLimit       = 5 * time.Second
	strangersLimit = 30 * time.Second
)

// longest is how long an exchange may take under attack, if that is usual otherwise.
func longest(usual, calm time.Duration) time.Duration { return max(usual, 10*calm) }

// Atk4: very many connections of an attacker, idle or slow, on any port: own mail is answered
// soon, and other hosts' in a short time.
func TestAtk4ManyConnections(t *testing.T) {
	need(t)
	for name, tt := range map[string]struct {
		addrs int
		port  string
		keep  func(turn int) string
	}{
		"idle with NOOP": {8, "SMTPLISTEN", func(turn int) string {
			return []string{"EHLO x.example\r\n", "NOOP\r\n"}[min(turn, 1)]
		}},
		"in transactions": {8, "SMTPLISTEN", func(turn int) string {
			return []string{"EHLO x.example\r\nMAIL FROM:<x@x.example>\r\n", "NOOP\r\n"}[min(turn, 1)]
		}},
		"dribbling":         {100, "SMTPLISTEN", func(int) string { return "N" }},
		"on the submission": {8, "SUBMISSIONLISTEN", func(int) string { return "NOOP\r\n" }},
	} {
		t.Run(name, func(t *testing.T) {
			var submission string
			w := prepare(t, asDaemon, func(w *world) { submission = w.crowded() })
			w.start()
			rcpt := w.bob.name + "@mta.example"
			own := func() error { return mail(exemptAddr, w.s.SMTPAddr, "", rcpt) }
			calm := w.calm(own)
			ctx, cancel := context.WithCancel(t.Context())
			var crowd crowdOf
			defer crowd.running.Wait()
			defer cancel()
			ports := map[string]string{"SMTPLISTEN": w.s.SMTPAddr, "SUBMISSIONLISTEN": submission}
			crowd.start(ctx, ports[tt.port], tt.addrs, 50, tt.keep)
			w.event("connections-scarce")
			w.await("the attacker's connections", func() bool { return crowd.greeted.Load() >= 390 })

			login := base64.StdEncoding.EncodeToString([]byte("\x00" + aliceName + "\x00secret"))
			var slowest [3]time.Duration
			var tries [3]int
			var all sync.WaitGroup
			until := time.Now().Add(12 * time.Second)
			for i, c := range []struct{ from, to, login string }{
				{exemptAddr, w.s.SMTPAddr, ""}, {userAddr, submission, login}, {strangerAddr, w.s.SMTPAddr, ""},
			} {
				all.Go(func() {
					for time.Now().Before(until) {
						began := time.Now()
						err := mail(c.from, c.to, c.login, rcpt)
						for err != nil && i == 2 && time.Since(began) < patience {
							tries[i]++
							<-time.After(500 * time.Millisecond)
							err = mail(c.from, c.to, c.login, rcpt)
						}
						if err != nil {
							t.Errorf("mail from %s: %v", c.from, err)
						}
						slowest[i] = max(slowest[i], time.Since(began))
						<-time.After(200 * time.Millisecond)
					}
				})
			}
			all.Wait()
			t.Logf("slowest: LIMITSEXEMPT %v, user %v, stranger %v after %d refusals; the attacker was greeted %d times",
				slowest[0], slowest[1], slowest[2], tries[2], crowd.greeted.Load())
			cancel()
			crowd.running.Wait()
			calm = max(calm, w.calm(own))
			for i, usual := range []time.Duration{ownLimit, ownLimit, strangersLimit} {
				if most := longest(usual, calm); slowest[i] > most {
					t.Errorf("slowest: %v, want at most %v of the client %d; %v without an attack", slowest, most, i, calm)
				}
			}
			w.submit(w.alice, rcpt)
			w.delivered()
			assert.Equal(t, w.s.Count("cut"), 0)
		})
	}
}
