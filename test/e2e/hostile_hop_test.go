package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// evil is what a terminal, a page or a log must not get from a next hop: escape sequences in 7 and 8
// bits, one that sets the title, a bell, a NUL, a CR, text from right to left, an invisible blank,
// a line separator, what is no UTF-8, and markup.
const evil = "\x1b[2J\x1b]0;owned\x07\u009b31m\x00\rX-Evil: yes\u202egnp.exe\u200b\u2028\xff\xc3<script>alert(1)</script>"

// hostileHop is an SMTP server that answers RCPT for a name with that reply.
func hostileHop(t *testing.T, replies map[string]string) int {
	t.Helper()
	l := assert.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "220 hop %s\r\n", strings.ReplaceAll(evil, "\r", ""))
				for s := bufio.NewScanner(c); s.Scan(); {
					reply := "250 ok"
					if name, ok := strings.CutPrefix(strings.ToUpper(s.Text()), "RCPT TO:<"); ok {
						name, _, _ = strings.Cut(name, "@")
						reply = replies[strings.ToLower(name)]
					} else if strings.HasPrefix(s.Text(), "DATA") {
						reply = "554 5.5.1 no"
					}
					if _, err := c.Write([]byte(reply + "\r\n")); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// whatIsShown asks each command that reads about the messages, and calls check with its output.
func whatIsShown(t *testing.T, s *suite.Suite, id string, check func(what, text string)) {
	t.Helper()
	for _, args := range [][]string{
		{"queue"}, {"queue", "--json"}, {"queue", "--tree"}, {"queue", "--counts"}, {"why", id}, {"show", id}, {"show", "--json", id}, {"history", id},
		{"trace", id}, {"trace", "--json", id}, {"trace", "alice@mta.example"}, {"thread"}, {"status"}, {"check"}, {"events", "--since", "1h"}, {"orders"}, {"simulate"}, {"log"},
	} {
		text, _ := call(t, s, "zmctl", args...)
		check("zmctl "+strings.Join(args, " "), text)
	}
}

// A next hop that answers with escape sequences and endless lines reaches neither the terminal of
// who asks what became of a message, nor the lines of the log.
func TestRepliesOfAHostileHopAreShownHarmless(t *testing.T) {
	t.Parallel()
	port := hostileHop(t, map[string]string{
		"later":   "451 4.2.1 " + evil,
		"lines":   "451-4.2.1 one " + evil + "\r\n451 4.2.1 two " + evil,
		"never":   "550 5.1.1 " + evil,
		"endless": "451 4.2.1 " + strings.Repeat(evil, 1<<20/len(evil)),
		"many":    strings.Repeat("451-4.2.1 "+strings.ReplaceAll(evil, "\r", "")+"\r\n", 5000) + "451 4.2.1 end",
		"code":    "451 4.999999.1 \x1b[31m",
		"garbage": "\x1b[2J" + evil,
	})
	s := start(t, nil, func(s *suite.Suite) {
		slow(s)
		s.Files["routes"] = fmt.Sprintf(". smtp![127.0.0.1]:%d\n", port)
	})
	names := []string{"later", "lines", "never", "endless", "many", "code", "garbage"}
	for _, name := range names {
		submit(t, s, "Subject: "+name+"\n\n", "-f", "alice@mta.example", name+"@far.example")
	}
	awaitState(t, "attempts for all", func() bool {
		n := 0
		for _, name := range names {
			if s.Count("deferred", "rcpt", name+"@far.example")+s.Count("failed", "rcpt", name+"@far.example") > 0 {
				n++
			}
		}
		return n == len(names)
	})
	awaitMail(t, s, "alice", 1) // the report of never
	check := func(what, text string) {
		t.Helper()
		if !utf8.ValidString(text) {
			t.Errorf("%s is not UTF-8", what)
		}
		for i, r := range text {
			if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
				t.Errorf("%s has %U in %q", what, r, text[max(0, i-80):min(len(text), i+20)])
				return
			}
		}
		for line := range strings.Lines(text) {
			if len(line) > 1<<16 {
				t.Errorf("%s has a line of %d bytes", what, len(line))
			}
		}
	}
	for _, name := range names {
		said, _ := call(t, s, "zmctl", "queue", "--json", "--to", name+"@far.example")
		var list []struct{ ID string }
		for line := range strings.Lines(said) {
			var one struct{ ID string }
			if json.Unmarshal([]byte(line), &one) == nil {
				list = append(list, one)
			}
		}
		if name == "never" {
			continue
		}
		if len(list) != 1 {
			t.Fatalf("%s: %d messages in %s", name, len(list), said)
		}
		whatIsShown(t, s, list[0].ID, check)
	}
	check("the log", s.Log())
	for _, m := range awaitMail(t, s, "alice", 1) {
		check("the report", strings.ReplaceAll(string(m), "\r", ""))
	}
}
