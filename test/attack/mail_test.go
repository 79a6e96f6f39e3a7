package attack

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// client is a client on the network that has not authenticated.
type client struct {
	*world
	conn net.Conn
	in   *bufio.Reader
}

func (w *world) client() *client {
	w.Helper()
	c, err := net.Dial("tcp", w.s.SMTPAddr)
	w.must(err)
	w.must(c.SetDeadline(time.Now().Add(patience)))
	s := &client{w, c, bufio.NewReader(c)}
	s.reply()
	s.say("EHLO far.example")
	return s
}

// reply reads one reply; "" if the connection has ended.
func (s *client) reply() string {
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return ""
		}
		if len(line) < 4 || line[3] != '-' {
			return strings.TrimSpace(line)
		}
	}
}

func (s *client) say(line string) string {
	s.write(line + "\r\n")
	return s.reply()
}

func (s *client) write(text string) {
	// A server that has closed the connection is seen by reply.
	_, _ = s.conn.Write([]byte(text))
}

// name has many recipients taken, pipelined, and counts the replies by their code.
func (s *client) name(n int, address func(i int) string) map[string]int {
	go func() {
		var b bytes.Buffer
		for i := range n {
			fmt.Fprintf(&b, "RCPT TO:<%s>\r\n", address(i))
		}
		s.write(b.String())
	}()
	codes := map[string]int{}
	for range n {
		reply := s.reply()
		if reply == "" {
			break
		}
		codes[reply[:3]]++
	}
	return codes
}

// openToStrangers has the test's own address be one of a foreign network.
func openToStrangers(w *world) {
	w.s.Settings["RELAYNETS"] = "192.0.2.0/24"
	w.s.Settings["LIMITSEXEMPT"] = "none"
}

// besides runs an attack while the other users' mail goes on, and checks that that
// arrives, once.
func (w *world) besides(attack func()) {
	w.Helper()
	var attacking sync.WaitGroup
	attacking.Go(attack)
	w.traffic()
	attacking.Wait()
	w.traffic()
	w.delivered()
	w.unharmed()
}

// traffic is the other users' mail: among them, out, and a report.
func (w *world) traffic() {
	w.Helper()
	w.submit(w.alice, w.bob.name+"@mta.example")
	w.submit(w.bob, "far@sink.example")
	w.submit(w.bob, "fails")
	w.delivered()
}

// empty waits until nothing is left in a postoffice.
func (w *world) empty(s *suite.Suite) {
	w.Helper()
	w.await("end of all deliveries", func() bool {
		left, err := s.Left()
		w.must(err)
		return len(left) == 0
	})
}

// Atk6: one message to very many tags of a user is one message in the mailbox, and an
// unauthenticated client may not name as many as our own users.
func TestAtk6OneMessageToManyTags(t *testing.T) {
	need(t)
	t.Parallel()
	const named, most = 1200, 1000
	w := prepare(t, asDaemon, func(w *world) {
		openToStrangers(w)
		w.s.Settings["MAILBOX"] = filepath.Join(w.s.Dir, "mail") + "/%u/"
	})
	w.maildirs = true
	w.start()
	victim := w.recipients()[0]
	w.besides(func() {
		s := w.client()
		defer s.conn.Close()
		s.say("MAIL FROM:<x@far.example>")
		codes := s.name(named, func(i int) string { return fmt.Sprintf("%s+%d@mta.example", victim.name, i) })
		if codes["250"] != most || codes["452"] != named-most {
			t.Errorf("replies to RCPT: %v, want %d of 250, the others 452", codes, most)
		}
		s.say("DATA")
		s.write("Subject: large\r\n\r\n" + strings.Repeat(strings.Repeat("x", 70)+"\r\n", 1<<20/72))
		if got := s.say("."); !strings.HasPrefix(got, "250") {
			t.Errorf("the message: %s", got)
		}
	})
	w.empty(w.s)
	mail, err := suite.Mail(filepath.Join(w.s.Dir, "mail", victim.name))
	w.must(err)
	assert.Equal(t, len(mail), 1)
	delivered := 0
	for _, e := range w.s.Events() {
		if e.Is("delivered") && strings.HasPrefix(e.Get("rcpt"), victim.name+"+") {
			delivered++
		}
	}
	assert.Equal(t, delivered, most)
}

// Atk7: two systems that forward to each other, two addresses on the way. Of the returns of
// one message each ends with one report.
func TestAtk7ForwardingLoopOfTwoSystems(t *testing.T) {
	need(t)
	t.Parallel()
	other := &suite.Suite{Bin: bin, Dir: t.TempDir(), Hostname: "other.example", Files: map[string]string{
		"localnames": "other.example\nb1.example\nb2.example\n", "aliases": "x: loop@mta.example\ny: loop@mta.example\n",
		"scheduler.conf": schedulerConf,
	}}
	w := prepare(t, asDaemon, func(w *world) {
		var err error
		other.SMTPAddr, err = peer.FreeAddr()
		w.must(err)
		_, port, err := net.SplitHostPort(other.SMTPAddr)
		w.must(err)
		// Two hosts: what goes to both comes back as two messages.
		other.Settings = map[string]string{"SMTPLISTEN": ":" + port}
		w.s.Files["routes"] = fmt.Sprintf("b1.example smtp![127.0.0.1]:%s\nb2.example smtp![127.0.0.2]:%s\n", port, port) + w.s.Files["routes"]
		w.s.Files["aliases"] = "loop: x@b1.example, y@b2.example\n"
	})
	host, port, err := net.SplitHostPort(w.s.SMTPAddr)
	w.must(err)
	other.Files["routes"] = fmt.Sprintf("mta.example smtp![%s]:%s\n", host, port)
	w.must(other.Init())
	t.Cleanup(other.Kill)
	w.must(other.Start())
	other.AwaitDaemons(patience)
	w.start()
	const messages = 3
	w.besides(func() {
		for i := range messages {
			s := w.client()
			s.say(fmt.Sprintf("MAIL FROM:<sender%d@far.example>", i))
			s.say("RCPT TO:<loop@mta.example>")
			s.say("DATA")
			if got := s.say("Subject: loop\r\n\r\nx\r\n."); !strings.HasPrefix(got, "250") {
				t.Errorf("the message: %s", got)
			}
			s.conn.Close()
		}
	})
	for range 3 { // each may have mail for the other one
		w.empty(w.s)
		w.empty(other)
	}
	reports := map[string]int{}
	for _, m := range w.sink.Messages() {
		if m.From == "" && bytes.Contains(m.Data, []byte("5.4.6")) {
			reports[m.Recipients[0]]++
		}
	}
	for i := range messages {
		// One for each of the two ways back.
		assert.Equal(t, reports[fmt.Sprintf("sender%d@far.example", i)], 2, i)
	}
	if n := other.Count("routed"); n > 2*messages {
		t.Errorf("the other system has routed %d messages, want %d", n, 2*messages)
	}
}

// Atk8: mail to a domain whose mail server is an address of this machine does not go round.
func TestAtk8DomainsThatPointToUs(t *testing.T) {
	need(t)
	for name, record := range map[string]string{
		"0.0.0.0": "A 0.0.0.0", "127.0.0.1": "A 127.0.0.1", "127.0.0.2": "A 127.0.0.2",
		"mapped": "AAAA ::ffff:127.0.0.1", "any": "AAAA ::",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dns := mxtest.Start(t, "evil.example. 60 IN MX 10 mx.evil.example.\nmx.evil.example. 60 IN "+record+"\n")
			w := prepare(t, asDaemon, func(w *world) {
				// All addresses of the machine, as a server has it.
				addr, err := peer.FreeAddr()
				w.must(err)
				_, port, err := net.SplitHostPort(addr)
				w.must(err)
				w.s.SMTPAddr = "127.0.0.1:" + port
				w.s.Settings["SMTPLISTEN"] = ":" + port
				w.s.Settings["RESOLVER"], w.s.Settings["SMTPPORT"] = dns.Addr, port
				w.s.Files["routes"] = "evil.example smtp!\n" + w.s.Files["routes"]
			})
			w.start()
			const messages = 3
			var lost []letter
			w.besides(func() {
				for i := range messages {
					lost = append(lost, letter{from: w.alice.name, to: fmt.Sprintf("u%d@evil.example", i), report: true})
					cmd := w.command(w.alice, "submit", "-i", lost[i].to)
					cmd.Stdin = strings.NewReader("Subject: x\n\nx\n")
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("submit: %v\n%s", err, out)
					}
				}
			})
			for _, l := range lost {
				w.await("report of "+l.to, func() bool { return w.arrived(l) > 0 })
				assert.Equal(t, w.arrived(l), 1, l.to)
			}
			w.empty(w.s)
			assert.Equal(t, w.s.Count("failed", "status", "5.4.6"), messages)
			came := 0
			for _, e := range w.s.Events() {
				if e.Is("accepted") && strings.Contains(e.Get("rcpt")+e.Get("rcpts"), "evil.example") {
					came++
				}
			}
			if came > messages {
				t.Errorf("%d messages came back to this machine", came)
			}
		})
	}
}

// Atk8: with RCPTCHECK=yes, unknown recipients are refused and no report is sent.
func TestAtk8UnknownRecipientsMakeNoBackscatter(t *testing.T) {
	need(t)
	t.Parallel()
	w := begin(t, asDaemon, func(w *world) {
		openToStrangers(w)
		w.s.Settings["RCPTCHECK"] = "yes"
	})
	const recipients, each = 10_000, 20
	w.besides(func() {
		for n := 0; n < recipients; n += each {
			s := w.client()
			s.say("MAIL FROM:<forged@sink.example>")
			codes := s.name(each, func(i int) string { return "nobody" + strconv.Itoa(n+i) + "@mta.example" })
			if codes["250"] > 0 {
				t.Errorf("unknown recipients: %v", codes)
			}
			s.conn.Close()
		}
	})
	w.empty(w.s)
	for _, m := range w.sink.Messages() {
		if len(m.Recipients) > 0 && m.Recipients[0] == "forged@sink.example" {
			t.Error("a report went to an address that has sent nothing")
		}
	}
}
