package tasmtp

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/hostile"
	"zmailer/internal/stage/tasmtp/tasmtptest"
)

// No recipient changes what the next hop's server sees of a probe, MAIL and RCPT of one mailbox, or
// the answers, one for each request.
func TestNoTextChangesACommandOrAnAnswerOfAProbe(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	_, s := newPair(t, &tasmtptest.Sink{Extensions: []string{"ENHANCEDSTATUSCODES", "SMTPUTF8"}, Answer: func(command string) string {
		mu.Lock()
		defer mu.Unlock()
		seen[command]++
		return ""
	}})
	var in, out bytes.Buffer
	count, wanted := 0, map[string]bool{}
	for _, text := range hostile.Texts(t) {
		for _, to := range []string{text, hostile.Quoted(text) + "@there.test", "x@" + text} {
			count++
			if m, err := address.Parse(to); err == nil {
				wanted[m.String()] = true
			}
			fmt.Fprintf(&in, "%d smtp %s %s\n", count, address.EncodeXText("[127.0.0.1]"), address.EncodeXText(to))
		}
	}
	if err := s.relay.serveProbes(context.Background(), &in, &out); err != nil {
		t.Fatal(err)
	}
	answers := map[string]int{}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")[1:]
	asked := 0
	for _, line := range lines {
		f := strings.SplitN(line, " ", 3)
		answers[f[0]]++
		if f[1] == "deliverable" {
			asked++
		}
	}
	if len(lines) != count || len(answers) != count {
		t.Errorf("%d requests, %d answers to %d of them", count, len(lines), len(answers))
	}
	mu.Lock()
	defer mu.Unlock()
	mails, rcpts := 0, 0
	for command, times := range seen {
		switch path, is := strings.CutPrefix(command, "RCPT TO:<"); {
		case is && strings.HasSuffix(path, ">"):
			rcpts += times
			m, err := address.Parse(strings.TrimSuffix(path, ">"))
			if err != nil || !wanted[m.String()] || strings.ContainsAny(path, "\r\n\x00") {
				t.Errorf("%q is not one of the recipients: %v", command, err)
			}
		case command == "MAIL FROM:<>" || command == "MAIL FROM:<> SMTPUTF8":
			mails += times
		case command != "GREETING" && command != "EHLO here.test" && command != "QUIT":
			t.Errorf("the server saw %q", command)
		}
	}
	if rcpts != asked || mails != asked || asked < 250 {
		t.Errorf("%d recipients accepted, %d RCPT, %d MAIL", asked, rcpts, mails)
	}
}
