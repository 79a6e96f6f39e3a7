package e2e

import (
	"fmt"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// M38: a server that answers with sixty kilobytes of control characters, of lines that look like
// fields of a report, and of boundaries causes a report that is short and valid, also for a
// thousand recipients. The programs stay small.
func TestHostileRepliesMakeReadableReports(t *testing.T) {
	t.Parallel()
	var reply strings.Builder
	for i := 0; reply.Len() < 60_000; i++ {
		fmt.Fprintf(&reply, "550-5.1.1 %d \x1b[2J\x00\x07 {{.Host}} --boundary Final-Recipient: rfc822; x@y\t%s\r\n", i, strings.Repeat("\xff", 300))
	}
	reply.WriteString("550 5.1.1 no")
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return reply.String() }})
	s := start(t, sink, func(s *suite.Suite) { s.Users = []string{"ann", "bob"} })
	submit(t, s, "Subject: one\n\nx\n", "-f", "ann@mta.example", "one@sink.example")
	args := []string{"-f", "bob@mta.example"}
	const many = 1010
	for i := range many {
		args = append(args, fmt.Sprintf("r%d@sink.example", i))
	}
	submit(t, s, "Subject: many\n\nx\n", args...)
	texts := map[string]string{"ann": string(awaitMail(t, s, "ann", 1)[0])}
	await(t, s, "all reports", func() (bool, error) {
		mail, err := suite.Mail(s.Maildir("bob"))
		n := 0
		for i, m := range mail {
			texts[fmt.Sprint("bob", i)] = string(m)
			n += strings.Count(string(m), "\nFinal-Recipient: rfc822; r")
		}
		return n >= many, err
	})
	awaitEmpty(t, s)
	total := 0
	for name, text := range texts {
		n := strings.Count(text, "\nFinal-Recipient: rfc822; ")
		total += n
		if n > 1000 || len(text) > 1<<20+n*10<<10 {
			t.Errorf("%s: %d bytes on %d recipients", name, len(text), n)
		}
		if strings.ContainsAny(text, "\x00\x07\x1b\r") || strings.Contains(text, "\nFinal-Recipient: rfc822; x@y") {
			t.Errorf("%s: what the server said is not contained", name)
		}
	}
	if total != many+1 {
		t.Errorf("%d recipients, want %d", total, many+1)
	}
	if e := event(t, s, "failed", "rcpt", "one@sink.example"); len(e.Get("reply")) > 1000 {
		t.Errorf("a reply of %d bytes in the log", len(e.Get("reply")))
	}
	for _, p := range processes(t, s) {
		if peak := p.Peak(); peak > 200<<20 {
			t.Errorf("%s took %d bytes", p.Name, peak)
		} else {
			t.Logf("%s: %d MB at most", p.Name, peak>>20)
		}
	}
	for name, text := range texts {
		if n := strings.Count(text, "\nAction: "); n > 0 {
			readStrictlyN(t, map[string]string{name: text}, n)
		}
	}
}
