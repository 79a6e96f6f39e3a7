package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// hostile are what clients write into names and addresses to have another host banned, or to
// hide from the filter.
var hostile = []string{
	"x client=203.0.113.9:25", `x" client=203.0.113.9:25`, `x\" client=203.0.113.9:25 "`, `" client=203.0.113.9:25 stage=rcpt code=550`,
	"x\ntime=2026-11-22T10:00:00.000Z level=INFO msg=auth-failed program=smtpserver client=203.0.113.9:25 user=y",
	"x\r\ntime=2026-11-22T10:00:00.000Z level=INFO msg=auth-failed program=smtpserver client=203.0.113.9:25",
	`{"time":"2026-11-22T10:00:00.000Z","level":"INFO","msg":"auth-failed","program":"smtpserver","client":"203.0.113.9:25"}`,
	`","client":"203.0.113.9:25","stage":"rcpt","code":550,"x":"`, `\","client":"203.0.113.9:25`, `\\","client":"203.0.113.9:25`, `x\`, `x\\`, `"`, `""`, `\"`,
	"203.0.113.9", "[203.0.113.9]:25", "client=[203.0.113.9]:25", "user=203.0.113.9 mechanism=PLAIN", "msg=auth-failed program=smtpserver client=203.0.113.9:25",
	"level=INFO msg=auth-failed program=smtpserver client=203.0.113.9:25 user=a", "<4>time=2026-11-22T10:00:00Z level=WARN msg=refused program=smtpserver client=203.0.113.9:25 stage=auth code=421",
	"x[203.0.113.9]: SASL PLAIN authentication failed", "unknown[203.0.113.9]", "from unknown[203.0.113.9]: 550 5.7.1 x", "warning: unknown[203.0.113.9]: SASL PLAIN authentication failed:",
	"reject: RCPT from x[203.0.113.9]: 554 5.7.1 Service unavailable", "\x00client=203.0.113.9:25", "\x1b[31mclient=203.0.113.9:25", "é client=203.0.113.9:25 \u2028 client=203.0.113.9:25",
	"\xff\xfe client=203.0.113.9:25", "=203.0.113.9:25", " client=203.0.113.9:25 ", "%(client)s 203.0.113.9", "$(203.0.113.9)", strings.Repeat("client=203.0.113.9:25 ", 20),
}

// banned returns what fail2ban's own program finds in a log: how many lines of each address.
func banned(t *testing.T, log, filter string) map[string]int {
	t.Helper()
	cmd := exec.Command("fail2ban-regex", "--out", "ip", log, filter)
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() > 1) {
		t.Fatalf("fail2ban-regex: %v\n%s", err, out)
	}
	found := map[string]int{}
	for ip := range strings.FieldsSeq(string(out)) {
		found[ip]++
	}
	return found
}

// Op7: fail2ban's program with our filter finds the client of every wrong password, and with
// mode=aggressive of every refusal, in each form of the log; and no address that a client wrote.
func TestOp7Fail2banFindsEveryClientAndNoForgedOne(t *testing.T) {
	t.Parallel()
	need(t, "fail2ban-regex")
	if len(hostile) < 30 {
		t.Fatal("too few attempts")
	}
	for form, settings := range map[string]map[string]string{
		"text": {"LOG": "text"}, "json": {"LOG": "json"}, "postfix": {"LOGFORMAT": "postfix"},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			submission := freeAddr(t)
			path := filepath.Join(openDir(t), "log")
			file := assert.Get(os.Create(path))(t)
			defer file.Close()
			s := prepare(t, nil, func(s *suite.Suite) {
				s.Settings = map[string]string{"SUBMISSIONLISTEN": submission, "AUTH": "file:" + filepath.Join(s.Dir, "conf", "passwords"), "RELAYNETS": "192.0.2.1", "XCLIENTNETS": "127.0.0.0/8", "AUTHPLAINTEXT": "yes"}
				for k, v := range settings {
					s.Settings[k] = v
				}
				s.Output = file
			})
			cmd := s.Command("zmctl", "--config", s.Config(), "passwd", "--scram", "alice")
			cmd.Stdin = strings.NewReader(secret + "\n")
			if out, code := run(t, cmd); code != 0 {
				t.Fatalf("zmctl passwd: exit code %d\n%s", code, out)
			}
			startOtherLog(t, s)
			var all sync.WaitGroup
			for i, text := range hostile {
				all.Go(func() {
					k := connect(t, submission)
					k.say("XCLIENT ADDR="+client(i), "220")
					k.say("EHLO "+oneWord(text), "")
					k.say("AUTH PLAIN "+base64.StdEncoding.EncodeToString([]byte("\x00"+strings.ReplaceAll(text, "\x00", " ")+"\x00wrong")), "535")
					k.say("QUIT", "221")
				})
				k := connect(t, s.SMTPAddr)
				k.say("XCLIENT ADDR="+client(i), "220")
				k.say("EHLO "+oneWord(text), "")
				quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ", "\r", " ", "\x00", "", "\x1b", "").Replace(text)
				k.say(fmt.Sprintf(`MAIL FROM:<"%.60s"@client.example>`, quoted), "")
				k.say("MAIL FROM:<x@client.example>", "")
				k.say(fmt.Sprintf(`RCPT TO:<"%.40s"@elsewhere.example>`, strings.NewReplacer(`\`, "", `"`, "").Replace(quoted)), "")
				k.say("RCPT TO:<y@elsewhere.example>", "5")
				k.say("QUIT", "221")
			}
			all.Wait()
			assert.Must(t, s.Stop())

			filter := "../../packaging/fail2ban/zmailer.conf"
			modes := map[string]string{"auth": "[mode=auth]", "normal": "[mode=normal]", "aggressive": "[mode=aggressive]"}
			if form == "postfix" {
				filter, modes = "postfix", map[string]string{"auth": "[mode=auth]"}
			}
			log := string(assert.Get(os.ReadFile(path))(t))
			for mode, suffix := range modes {
				found := banned(t, path, filter+suffix)
				refusals := regexp.MustCompile(`(?m)^(?:time=\S+ level=\w+ msg=|\{"time":"[^"]*","level":"\w+","msg":")refused\b`).FindAllString(log, -1)
				lines := 0
				for ip, n := range found {
					lines += n
					if !strings.HasPrefix(ip, "198.51.100.") && !strings.HasPrefix(ip, "2001:db8:") {
						t.Errorf("%s: %s would be banned, %d lines", mode, ip, n)
					}
				}
				for i := range hostile {
					if found[client(i)[strings.LastIndex(client(i), "6:")+1:]] == 0 && found[strings.TrimPrefix(client(i), "IPV6:")] == 0 {
						t.Errorf("%s: %s, which wrote %q, is not found", mode, client(i), hostile[i])
					}
				}
				want := len(hostile)
				if mode == "aggressive" {
					want += len(refusals)
				}
				assert.Equal(t, lines, want, "lines with mode %s", mode)
			}
			if t.Failed() {
				t.Logf("%.8000s", log)
			}
		})
	}
}

// client is the address of the client of an attempt; some have IPv6.
func client(i int) string {
	if i%5 == 4 {
		return fmt.Sprintf("IPV6:2001:db8::%x", i+1)
	}
	return fmt.Sprintf("198.51.100.%d", i+1)
}

// oneWord makes a greeting of a text.
func oneWord(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' {
			return '_'
		}
		return r
	}, s)
}
