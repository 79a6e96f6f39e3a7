package logging

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
)

// No text that a stranger names makes an event more lines than it has with a plain one, or lines that
// read as another event, another message or another program's: every program, event and format.
func TestNoTextChangesALineInAnyFormat(t *testing.T) {
	const id = "S10271227A28EdPeZX5SZ"
	write := func(format, program, word, text string) []string {
		t.Helper()
		var b bytes.Buffer
		log := assert.Get(New(&b, format, "", program))(t)
		// What a client, a next hop, a filter or a table may have chosen.
		log.Warn(word, "id", id, "name", "1-2", "from", text, "rcpt", text, "orig-rcpt", text, "message-id", text, "channel", "smtp", "host", text, "relay", text, "helo", text,
			"user", text, "mechanism", text, "client", "192.0.2.1:25", "client-name", text, "orig-client", text, "orig-client-name", text, "orig-id", text, "reply", text, "reason", text,
			"status", "5.1.1", "stage", "rcpt", "code", 550, "size", 9, "rcpts", 1, "took", time.Second, "kind", text, "report", text, "rule", text)
		if b.Len() == 0 || b.Bytes()[b.Len()-1] != '\n' {
			t.Fatalf("%s %s: %q does not end", program, word, b.Bytes())
		}
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
	words := []string{"accepted", "routed", "delivered", "deferred", "failed", "expired", "report", "refused", "auth-failed", "discarded", "in-doubt", "verified", "verify-undecided", "frozen", "retry", "started"}
	texts := append(hostile.Texts(t), "x, sasl_username=root", "x, orig_queue_id=S1A1", "x (queue active)", "x>, status=sent (ok)")
	for _, format := range []string{"text", "json", "postfix"} {
		for _, program := range []string{"smtpserver", "router", "scheduler", "ta-smtp", "ta-mailbox", "zmctl"} {
			for _, word := range words {
				if program != "smtpserver" && (format != "postfix" || word != "deferred" && word != "retry") {
					continue // it is written the same
				}
				var plain []Line
				for _, line := range write(format, program, word, "x") {
					l, ok := ParseLine([]byte(line))
					if !ok {
						t.Fatalf("%s: not read: %q", format, line)
					}
					plain = append(plain, l)
				}
				for _, text := range texts {
					lines := write(format, program, word, text)
					if len(lines) != len(plain) {
						t.Fatalf("%s %s %q: %d lines, want %d", program, word, text, len(lines), len(plain))
					}
					for i, line := range lines {
						if strings.ContainsAny(line, "\r\x1b\x00\u0085\u2028\u2029") {
							t.Errorf("%s %s %q: %q", program, word, text, line)
						}
						l, ok := ParseLine([]byte(line))
						if word == "accepted" && i == 0 && l.Get("user") != plain[0].Get("user") && l.Get("user") != oneLine(text) && l.Get("user") != text {
							t.Errorf("%s %q: user %q", program, text, l.Get("user"))
						}
						if !ok || l.Event != plain[i].Event || l.Program != plain[i].Program || l.Get("id") != plain[i].Get("id") || l.Get("status") != plain[i].Get("status") {
							t.Errorf("%s %s %q reads as %s of %s by %s: %q", program, word, text, l.Event, l.Get("id"), l.Program, line)
						}
						if format != "json" {
							continue
						}
						var fields map[string]any
						assert.Must(t, json.Unmarshal([]byte(line), &fields))
						assert.Equal(t, fields["rcpt"], any(strings.ToValidUTF8(text, "\ufffd")), "%s %s", program, word)
					}
				}
			}
		}
	}
}
