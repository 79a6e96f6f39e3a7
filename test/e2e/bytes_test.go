package e2e

import (
	"strings"
	"testing"

	"zmailer/test/peer"
)

// contents are messages that programs on the way have changed.
var contents = map[string]string{
	"empty body":               "Subject: empty\n\n",
	"header without a body":    "Subject: header only\n",
	"one byte without newline": "Subject: one\n\nx",
	"lone dots":                "Subject: dots\n\n.\n..\n.x\nx.\n.\n",
	"NUL and 8-bit":            "Subject: octets\n\n\x00\x01\xff\xfe\x80 caf\xc3\xa9\n\x00",
	"From lines":               "Subject: from\n\nFrom here\n>From there\n\nFrom the end\n",
	"bare CR":                  "Subject: cr\n\na\rb\r\rc\n",
	"folded header":            "Subject: a\n b\n\tc\nX-Empty:\nX-Last: z\n\nbody\n",
	"header line of 200 kB":    "Subject: long\nX-Long: " + strings.Repeat("0123456789", 20000) + "\n\nbody\n",
	"8-bit header":             "Subject: caf\xe9\nX-Y: \xfe\n\nbody\n",
}

// Z4, and the trap "a body without a final newline": what is submitted locally or by SMTP
// arrives byte for byte below the lines that were added on top: by SMTP with CRLF and an ended
// last line, in a Maildir as it was.
func TestContentArrivesByteForByte(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	seen := map[string]bool{}
	n := 0
	for name, text := range contents {
		submit(t, s, text, "-f", "bob@mta.example", "alice@mta.example", "far@sink.example")
		sendSMTP(t, s, "bob@mta.example", "far@sink.example", text)
		must(t, sink.Wait(2*n+2, patience))
		for _, m := range sink.Messages()[2*n:] {
			if got := string(m.Data); !strings.HasSuffix(got, "\r\n"+wire(text)) {
				t.Errorf("%s: the sink got %q", name, abbreviate(got))
			}
		}
		n++
		found := false
		for _, m := range awaitMail(t, s, "alice", n) {
			if !seen[string(m)] && strings.HasSuffix(string(m), "\n"+text) {
				found, seen[string(m)] = true, true
			}
		}
		if !found {
			t.Errorf("%s: no message in the Maildir ends with it", name)
		}
	}
	awaitEmpty(t, s)
}
