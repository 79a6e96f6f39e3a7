package e2e

import (
	"bufio"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// naive is an SMTP server that accepts wrong ends of a message, and reads what follows as
// commands.
type naive struct {
	end      *regexp.Regexp
	dropNUL  bool
	listener net.Listener

	mu   sync.Mutex
	from []string // of MAIL commands that it has seen
	got  chan struct{}
}

func startNaive(t *testing.T, end string, dropNUL bool) *naive {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	n := &naive{end: regexp.MustCompile(end), dropNUL: dropNUL, listener: l, got: make(chan struct{}, 1000)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go n.serve(c)
		}
	}()
	return n
}

// serve reads byte by byte: neither commands nor ends have to come in one piece.
func (n *naive) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	say := func(line string) { fmt.Fprint(c, line+"\r\n") }
	say("220 naive")
	var text []byte
	inData := false
	for {
		b, err := r.ReadByte()
		if err != nil {
			return
		}
		if b == 0 && n.dropNUL {
			continue
		}
		text = append(text, b)
		switch {
		case inData && n.end.Match(text):
			if b == '\r' {
				if next, err := r.Peek(1); err == nil && next[0] == '\n' {
					continue // the end is whole with it
				}
			}
			say("250 taken")
			n.got <- struct{}{}
			inData, text = false, nil
		case inData || b != '\n':
		default:
			line := strings.ToUpper(strings.TrimSpace(string(text)))
			text = nil
			switch {
			case strings.HasPrefix(line, "EHLO"):
				say("250-naive\r\n250-8BITMIME\r\n250 PIPELINING")
			case strings.HasPrefix(line, "MAIL"):
				n.mu.Lock()
				n.from = append(n.from, line)
				n.mu.Unlock()
				say("250 ok")
			case line == "DATA":
				say("354 go on")
				inData, text = true, []byte("\r\n")
			case line == "QUIT":
				say("221 bye")
				return
			default:
				say("250 ok")
			}
		}
	}
}

// Text that ends a message early at a careless next hop does not do so, whatever that server
// accepts as an end: one message comes in, one goes out.
func TestNothingIsSmuggledThrough(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("some servers, one after the other")
	}
	ends := map[string]string{
		"LF dot LF": "\n.\n", "LF dot CRLF": "\n.\r\n", "CRLF dot LF": "\r\n.\n", "CR dot CR": "\r.\r", "CR dot CRLF": "\r.\r\n",
		"CRLF dot CR": "\r\n.\r", "CR dot LF": "\r.\n", "LF dot CR": "\n.\r", "CR CRLF dot CR": "\r\r\n.\r", "CRLF dot CR CRLF": "\r\n.\r\r\n",
		"CRLF dot NUL CRLF": "\r\n.\x00\r\n",
		"CRLF NUL dot CRLF": "\r\n\x00.\r\n", "CRLF NUL NUL dot CRLF": "\r\n\x00\x00.\r\n",
	}
	for name, server := range map[string]struct {
		end     string
		dropNUL bool
		fools   string
	}{
		"that takes any line ends": {`(\r\n|\r|\n)\.(\r\n|\r|\n)$`, false, "\r.\r"},
		"that also drops NULs":     {`\n\.\r*\n$`, true, "\r\n.\x00\r\n"},
	} {
		t.Run("to a server "+name, func(t *testing.T) {
			// Without our system in between it accepts the second message.
			fooled := startNaive(t, server.end, server.dropNUL)
			deliver(t, fooled.listener.Addr().String(), "", "first"+server.fools+"MAIL FROM:<evil@example.net>\r\nDATA\r\nsmuggled\r\n", false, "far@d.example")
			awaitState(t, "second message at a server that is naive", func() bool {
				fooled.mu.Lock()
				defer fooled.mu.Unlock()
				return len(fooled.from) == 2
			})
			n := startNaive(t, server.end, server.dropNUL)
			_, port, _ := net.SplitHostPort(n.listener.Addr().String())
			s := start(t, nil, func(s *suite.Suite) {
				s.Files["routes"] = ". smtp![127.0.0.1]:" + port + "\n"
				s.Settings = map[string]string{
					"XCLIENTNETS": "127.0.0.0/8", "SMTPBARELF": "accept", "RELAYNETS": `"127.0.0.0/8 203.0.113.9"`,
				}
			})
			sent := 0
			for name, end := range ends {
				text := "Subject: x\r\n\r\nfirst" + end + "MAIL FROM:<evil@example.net>\r\nRCPT TO:<c@d.example>\r\nDATA\r\nsmuggled\r\n"
				for _, addr := range []string{"", "203.0.113.9"} { // this machine's programs, and another's
					for _, bdat := range []bool{false, true} {
						if got := deliver(t, s.SMTPAddr, addr, text, bdat, "far@d.example"); !strings.HasPrefix(got, "250 2.0.0") {
							t.Fatalf("%s: %q", name, got)
						}
						sent++
					}
				}
				// And by submit, as a program of this machine.
				submit(t, s, strings.ReplaceAll(text, "\r\n", "\n"), "-f", "bob@mta.example", "far@d.example")
				submit(t, s, text, "-f", "bob@mta.example", "far@d.example")
				sent += 2
			}
			late := time.After(patience)
			for range sent {
				select {
				case <-n.got:
				case <-late:
					t.Fatal("not all has come")
				}
			}
			awaitEmpty(t, s)
			n.mu.Lock()
			defer n.mu.Unlock()
			assert.Equal(t, len(n.from), sent)
			for _, line := range n.from {
				if strings.Contains(line, "EVIL") {
					t.Errorf("smuggled: %s", line)
				}
			}
			if len(n.got) > 0 {
				t.Errorf("%d more came", len(n.got))
			}
		})
	}
}

// An unauthenticated client's message with such an end is rejected, unless SMTPBARELF allows it.
func TestBareLFOfUnauthenticatedClientsIsRejected(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"XCLIENTNETS": "127.0.0.0/8"}
	})
	const text = "Subject: x\r\n\r\nfirst\n.\nMAIL FROM:<evil@example.net>\r\n"
	for _, bdat := range []bool{false, true} {
		if got := deliver(t, s.SMTPAddr, "203.0.113.9", text, bdat, "alice@mta.example"); !strings.HasPrefix(got, "550 5.6.0") {
			t.Errorf("BDAT %v: got %q", bdat, got)
		}
	}
	awaitEmpty(t, s)
}

// deliver sends one message by SMTP, for a client at addr if there is one, and returns the
// reply to it.
func deliver(t *testing.T, server, addr, text string, bdat bool, rcpt string) string {
	t.Helper()
	k := connect(t, server)
	defer k.c.Close()
	if addr != "" {
		k.say("XCLIENT ADDR="+addr, "220")
		k.say("EHLO client.example", "250")
	}
	if bdat {
		k.say("MAIL FROM:<bob@mta.example>", "250")
		k.say("RCPT TO:<"+rcpt+">", "250")
		k.write(fmt.Sprintf("BDAT %d LAST\r\n%s", len(text), text))
		return k.expect("BDAT", "")
	}
	k.envelope("bob@mta.example", rcpt)
	return k.say(text+".", "")
}
