package tasmtp

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/test/rig"
)

// Op10: only the reply that there is no such mailbox makes a recipient unknown.
// What a host replies about one recipient says nothing about the others there: a client that
// knows a mailbox that is full would keep all of them from being verified.
func TestProbeTellsAnswersAboutTheHostFromThoseAboutARecipient(t *testing.T) {
	for name, tt := range map[string]struct{ command, reply, want string }{
		"accepted":            {"RCPT", "250 2.1.5 Ok", "deliverable 2.1.5"},
		"refused":             {"RCPT", "550 5.1.1 no", "undeliverable 5.1.1"},
		"disabled":            {"RCPT", "550 5.2.1 closed", "undeliverable 5.2.1"},
		"no enhanced code":    {"RCPT", "550 who is that", "undeliverable 5.0.0"},
		"takes no mail":       {"RCPT", "556 5.1.10 never", "undeliverable 5.1.10"},
		"Exchange Online":     {"RCPT", "550 5.4.1 access denied", "undeliverable 5.4.1"},
		"refused by policy":   {"RCPT", "550 5.7.1 blocked", "unknown 4.7.1"},
		"relaying denied":     {"RCPT", "554 5.7.1 relay access denied", "unknown 4.7.1"},
		"transaction failed":  {"RCPT", "554 no", "unknown 4.0.0"},
		"mailbox full":        {"RCPT", "552 5.2.2 over quota", "unknown 4.2.2"},
		"about the sender":    {"RCPT", "550 5.1.8 bad sender", "unknown 4.1.8"},
		"wants a login":       {"RCPT", "530 5.7.0 authenticate", "unknown 4.7.0"},
		"no space for it":     {"RCPT", "452 4.3.1 full", "unknown 4.3.1"},
		"looked up elsewhere": {"RCPT", "451 4.4.3 directory", "unknown 4.4.3"},
		"closing":             {"RCPT", "421 4.3.2 bye", "away 4.3.2"},
		"gone":                {"RCPT", "HANGUP", "away 4.4.2"},
		"the null sender":     {"MAIL", "550 5.7.1 not you", "away 4.7.1"},
		"no service":          {"GREETING", "554 5.3.2 no", "away 4.3.2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := newPair(t, &tasmtptest.Sink{Answer: func(command string) string {
				if strings.HasPrefix(command, tt.command) {
					return tt.reply
				}
				return ""
			}})
			if got := s.relay.Probe(context.Background(), "smtp", "[127.0.0.1]", "bob@there.test").String(); !strings.HasPrefix(got, tt.want+" ") {
				t.Errorf("got %q, want %s", got, tt.want)
			}
		})
	}
}

// A next hop that answers garbage, also a million lines or one without end, is away or unknown: it
// makes no recipient known or unknown, and little of it is read.
func TestProbeOfANextHopThatAnswersGarbageIsUndecided(t *testing.T) {
	answers := map[string]string{
		"no reply": "what?\r\n", "an empty line": "\r\n", "half a code": "25\r\n", "no separator": "250+ok\r\n", "no code of SMTP": "999 9.9.9 no\r\n",
		"two codes": "250-a\r\n550 b\r\n", "zeros": strings.Repeat("\x00", 1<<20), "another protocol": "HTTP/1.1 400 Bad Request\r\n\r\n",
		"a million lines": strings.Repeat("250-2.1.5 Ok\r\n", 1_000_000), "a line without end": "250 " + strings.Repeat("x", 16<<20), "nothing": "",
	}
	good := []string{"220 next.test ESMTP\r\n", "250 next.test\r\n", "250 2.1.0 Ok\r\n"}
	for name, text := range answers {
		for at, step := range []string{"the greeting", "EHLO", "MAIL", "RCPT"} {
			t.Run(name+" to "+step, func(t *testing.T) {
				t.Parallel()
				var most atomic.Int64
				addr := rig.Serve(t, "tcp", func(c net.Conn) {
					defer c.Close()
					r := bufio.NewReader(c)
					for _, line := range good[:at] {
						_, _ = io.WriteString(c, line)
						if _, err := r.ReadString('\n'); err != nil {
							return
						}
					}
					n, _ := io.WriteString(c, text)
					most.Store(max(most.Load(), int64(n)))
				})
				s := newStation(t, assert.Get(net.ResolveTCPAddr("tcp", addr))(t).Port, "")
				got := s.relay.Probe(t.Context(), "smtp", "[127.0.0.1]", "bob@there.test").String()
				if word, _, _ := strings.Cut(got, " "); word != "away" && word != "unknown" {
					t.Errorf("got %q", got)
				}
				if len(got) > 4096 {
					t.Errorf("an answer of %d bytes", len(got))
				}
				if n := most.Load(); n > 12<<20 {
					t.Errorf("%d bytes were taken", n)
				}
			})
		}
	}
}
