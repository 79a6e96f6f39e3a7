package logging

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Op7: each record becomes whole lines of Postfix's form, whatever its values hold, and what
// the form has a place for is read back.
func TestOp7PostfixLinesAreWholeAndReadBack(t *testing.T) {
	begin := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d \S+ postfix/[a-z0-9-]+\[\d+\]: `)
	const id = "S10271227A28EdPeZX5SZ"
	for _, evil := range []string{"x", "", "a\nb", "a\r\n2026-11-22T10:00:00.000000+00:00 h postfix/smtp[1]: S1A1: to=<x>, relay=r, delay=1, status=sent (x)",
		"to=<v@x>, relay=none, delay=1, delays=1/1/1/1, dsn=2.0.0, status=sent (ok)", `">, status=sent (`, "a>b<c", "é\u2028\u202e\x1b[2J\xff", strings.Repeat("y", 2000)} {
		for _, program := range []string{"smtpserver", "router", "scheduler", "ta-smtp", "zmctl"} {
			for _, word := range []string{"accepted", "routed", "delivered", "deferred", "failed", "expired", "report", "refused", "auth-failed", "discarded", "retry", "started"} {
				var b bytes.Buffer
				log := assert.Get(New(&b, "postfix", "", program))(t)
				log.Warn(word, "id", id, "from", evil, "rcpt", evil, "orig-rcpt", evil, "channel", "smtp", "host", evil, "client", "192.0.2.1:25", "client-name", evil, "helo", evil, "user", evil,
					"message-id", evil, "relay", "mx.example[192.0.2.2]:25", "reply", evil, "status", "2.0.0", "stage", "rcpt", "code", 550, "size", 9, "rcpts", 1, "took", time.Second, "reason", evil)
				for line := range strings.Lines(b.String()) {
					if !begin.MatchString(line) || !strings.HasSuffix(line, "\n") || strings.Count(line, "\n") != 1 || strings.ContainsAny(line, "\r\x1b\u2028\u202e") {
						t.Fatalf("%s %s: %q", program, word, line)
					}
					l, ok := ParseLine([]byte(line))
					if !ok {
						t.Fatalf("%s %s is not read: %q", program, word, line)
					}
					if l.Event == "delivered" && word != "delivered" || l.Event == "failed" && word != "failed" && word != "expired" {
						t.Fatalf("%s %s reads as %s: %q", program, word, l.Event, line)
					}
					if at := l.Get("id"); at != id && l.Event != "refused" && l.Event != "auth-failed" && !strings.Contains(line, "SASL") {
						t.Fatalf("%s %s: id %q of %q", program, word, at, line)
					}
				}
			}
		}
	}
	var b bytes.Buffer
	log := assert.Get(New(&b, "postfix", "", "scheduler"))(t)
	log.Info("deferred", "id", id, "name", "1-2", "rcpt", "carol@far.example", "channel", "smtp", "host", "far.example", "status", "4.7.1", "reply", "451 4.7.1 later", "attempt", 1,
		"routing", 20*time.Millisecond, "queue", 1500*time.Millisecond, "delivery", 12*time.Second, "took", 14*time.Second, "relay", "mx.far.example[192.0.2.2]:25", "orig-rcpt", "sales@mta.example")
	want := ": to=<carol@far.example>, orig_to=<sales@mta.example>, relay=mx.far.example[192.0.2.2]:25, delay=14, delays=0.02/1.5/0/12, dsn=4.7.1, status=deferred (host mx.far.example[192.0.2.2] said: 451 4.7.1 later)\n"
	if !strings.HasSuffix(b.String(), " "+"postfix/smtp["+newPostfix(nil, slog.LevelInfo).pid+"]: "+id+want) {
		t.Errorf("got %s", &b)
	}
	l, ok := ParseLine(b.Bytes())
	assert.Equal(t, ok, true)
	assert.Equal(t, l.Event+" "+l.Get("rcpt")+" "+l.Get("orig-rcpt")+" "+l.Get("relay")+" "+l.Get("status"), "deferred carol@far.example sales@mta.example mx.far.example[192.0.2.2]:25 4.7.1")
	if d, _ := l.Duration("queue"); d != 1500*time.Millisecond {
		t.Errorf("queue %v", d)
	}
}
