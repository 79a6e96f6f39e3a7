package smtpserver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/logtest"
)

// xtext quotes everything but letters and digits (RFC 3461 section 4).
func xtext(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "+%02X", c)
	}
	return b.String()
}

// keywords returns the first words of an envelope's lines.
func keywords(text string) (list []string) {
	head, _, _ := strings.Cut(text, "env-end\n")
	for line := range strings.Lines(head) {
		word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		list = append(list, word)
	}
	return list
}

// No text that a client names, be it of XCLIENT, an address or what a policy service repeats as a next
// hop, adds or changes a line of the policy protocol, of the envelope (filter included) or of the log.
func TestNoTextChangesALineOfPolicyEnvelopeOrLog(t *testing.T) {
	filter := regexp.MustCompile(`^$|^smtpx?![\pL\pN._:\x{200b}\x{feff}-]*$`) // a host or an address
	for _, format := range []string{"text", "postfix"} {
		t.Run(format, func(t *testing.T) {
			var mu sync.Mutex
			var asked map[string]string
			hop := ""
			service := script(t, func(request map[string]string) string {
				mu.Lock()
				defer mu.Unlock()
				asked = request
				if hop != "" && !strings.ContainsAny(hop, "\r\n") { // it is the service that would break the protocol
					return "action=FILTER smtp:" + hop + "\n\n"
				}
				return "action=DUNNO\n\n"
			})
			dir := files(t, map[string]string{"access": "check_policy_service inet:" + service.addr + "\n", "localnames": "example.org\n"})
			log := &logtest.Buffer{}
			r := start(t, func(c *Config) {
				c.XClientNets = loopback
				c.Access.Dir, c.Access.LocalNamesFile = dir, filepath.Join(dir, "localnames")
				c.Log = assert.Get(logging.New(log, format, "", "smtpserver"))(t)
				unlimited(c)
			})
			// session returns what an accepted message left; nil: it was refused.
			session := func(text, from, to string) (request map[string]string, m *envelope.Message, words []string) {
				t.Helper()
				c := r.connectFrom(nil, r.addrs[0])
				defer c.Close()
				c.expect("220")
				c.say("EHLO client.test", "250")
				mu.Lock()
				asked, hop = nil, ""
				mu.Unlock()
				c.send("XCLIENT ADDR=198.51.100.7 HELO=" + xtext(text) + " LOGIN=" + xtext(text) + "\r\n")
				if got := c.reply(); got[:3] != "220" {
					assert.Equal(t, got[:5], "501 5", "%q", text)
				} else {
					c.say("EHLO client.test", "250")
				}
				c.send("MAIL FROM:<" + from + ">\r\n")
				if got := c.reply(); got[0] != '2' {
					assert.Equal(t, got[:1], "5", "MAIL FROM %q", from)
					return nil, nil, nil
				}
				mu.Lock()
				hop = text
				mu.Unlock()
				c.send("RCPT TO:<" + to + ">\r\n")
				got := c.reply()
				if got[:3] == "451" { // the service's answer cannot be used
					mu.Lock()
					hop = ""
					mu.Unlock()
					c.send("RCPT TO:<" + to + ">\r\n")
					got = c.reply()
				}
				if got[0] != '2' {
					assert.Equal(t, got[:1], "5", "RCPT TO %q", to)
					return nil, nil, nil
				}
				mu.Lock()
				request = asked
				hop = ""
				mu.Unlock()
				c.content("Subject: x\n\nx\n", "250")
				name := r.names("router")[0]
				text = r.message(name)
				f := assert.Get(os.Open(filepath.Join(r.dir, "router", name)))(t)
				defer f.Close()
				m = assert.Get(envelope.Read(f))(t)
				r.clear()
				return request, m, keywords(text)
			}
			plain, _, words := session("jane", "jane@x.example", "joe@example.org")
			names := slices.Sorted(maps.Keys(plain))
			assert.Equal(t, plain["sasl_username"], "jane")
			if !slices.Contains(words, "filter") {
				t.Fatalf("no filter line among %q", words)
			}
			bare := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "filter" })
			accepted := 1
			for _, text := range hostile.Texts(t) {
				quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"@x.example`
				for _, from := range []string{text, quoted} {
					if strings.ContainsAny(from, "\r\n") {
						continue // it is two lines of SMTP
					}
					to := strings.TrimSuffix(from, "@x.example") + "@example.org"
					request, m, got := session(text, from, to)
					if m == nil {
						continue
					}
					accepted++
					assert.Same(t, slices.Sorted(maps.Keys(request)), names, from)
					if user := request["sasl_username"]; user != text && user != "" {
						t.Errorf("%q: sasl_username=%q", text, user)
					}
					assert.Equal(t, request["protocol_state"]+" "+request["queue_id"]+request["ccert_subject"], "RCPT ", from)
					if user := request["sasl_username"]; user == "" {
						// The client's own address, since XCLIENT was refused; there is no user line.
						assert.Equal(t, request["client_address"], "127.0.0.1", from)
					} else if !slices.Equal(got, words) && !slices.Equal(got, bare) {
						t.Errorf("%q: lines %q", from, got)
					}
					assert.Equal(t, len(m.Envelope.Recipients), 1, from)
					assert.Equal(t, len(m.Envelope.Unknown), 0, from)
					if !filter.MatchString(m.Envelope.Filter) {
						t.Errorf("%q: filter %q", from, m.Envelope.Filter)
					}
				}
			}
			if accepted < 150 {
				t.Errorf("only %d messages were accepted", accepted)
			}
			logtest.Eventually(t, "one line for each message", func() bool {
				count := 0
				for line := range strings.Lines(log.String()) {
					l, ok := logging.ParseLine([]byte(line))
					if !ok && strings.HasSuffix(line, "\n") {
						t.Fatalf("not a line of the log: %q", line)
					}
					if l.Event == "accepted" {
						count++
					}
				}
				if count > accepted {
					t.Fatalf("%d messages, %d lines of them", accepted, count)
				}
				return count == accepted
			})
		})
	}
}
