package tasmtp_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// setRules writes the file replies of a spool.
func setRules(t *testing.T, s *Spool, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(filepath.Join(s.Dir, "replies"), []byte(text), 0o600))
}

// Z14: each action on a real conversation, at RCPT and before there is a session.
func TestRulesOnReplies(t *testing.T) {
	cases := map[string]struct {
		rule, at, reply string
		word            taproto.Word
		after           time.Duration
		text            string
	}{
		"none":                    {"smtp/other defer /./", "RCPT", "550 5.1.1 no such user", taproto.Error2, 0, "550 5.1.1"},
		"defer a 5xx":             {"smtp/* defer /greylist/i", "RCPT", "550 5.7.1 Greylisted", taproto.Deferred, 0, "550 5.7.1 Greylisted"},
		"fail a 4xx":              {"smtp/* fail /unknown/", "RCPT", "450 4.1.1 user unknown", taproto.Error2, 0, "450 4.1.1"},
		"slow":                    {"smtp/* slow 10m /too many/", "RCPT", "450 4.7.0 too many", taproto.RetryAt, 10 * time.Minute, ""},
		"slow at greeting":        {"smtp/* slow 1h /TSS04/", "GREETING", "421 4.7.0 [TSS04] enough", taproto.RetryAt, time.Hour, ""},
		"host, of a 5xx":          {"smtp/* host /blocklist/", "RCPT", "554 5.7.1 on a blocklist", taproto.DeferAll, 0, ""},
		"source":                  {"smtp/* source /reputation/", "RCPT", "450 4.7.1 poor reputation", taproto.Deferred, 0, "another source"},
		"no host any more":        {"smtp/* defer /busy/", "GREETING", "421 4.3.2 busy", taproto.Deferred, 0, ""},
		"of several lines":        {"smtp/* defer /one two/", "RCPT", "550-5.0.0 one\n550 5.0.0 two", taproto.Deferred, 0, ""},
		"not of what we say":      {"smtp/* fail /./", "GREETING", "HANGUP", taproto.DeferAll, 0, "greeting"},
		"not of what is in doubt": {"smtp/* fail /./", ".", "HANGUP", taproto.Deferred, 0, "in doubt"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{Answer: On(c.at, c.reply)}).Start(t, "", "")
			spool := NewSpool(t)
			setRules(t, spool, "# one line of comment\n"+c.rule+"\n")
			p := startIn(t, spool, conf(spool, sink))
			p.Say(spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}) + "\t[127.0.0.1]\n")
			a := p.Answers()
			if len(a) != 1 || a[0].Word != c.word || a[0].After != c.after || !strings.Contains(a[0].Text, c.text) {
				t.Errorf("got %+v, want %s %v %s", a, c.word, c.after, c.text)
			}
		})
	}
}

// Z14: a rule sees what the server said to a recipient that draws 421, and nothing of ours
// behind it; and the log and the report of one that fails do not speak of a next attempt.
func TestRulesSeeTheReplyOfARecipientThatIsTriedApart(t *testing.T) {
	for name, c := range map[string]struct {
		rule string
		word taproto.Word
		text string
	}{
		"at the end": {"smtp/* fail /not this one$/", taproto.Error2, "421 4.7.0 not this one"},
		"our words":  {"smtp/* fail /transaction/", taproto.Deferred, "421 4.7.0 not this one" + "; the next attempt has a transaction for this recipient alone"},
		"source": {"smtp/* source /not this one$/", taproto.Deferred,
			"421 4.7.0 not this one; the next attempt has a transaction for this recipient alone; the next attempt comes from another source"},
	} {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{Answer: On("RCPT To:<b@", "421 4.7.0 not this one")}).Start(t, "", "")
			spool := NewSpool(t)
			setRules(t, spool, c.rule+"\n")
			p := startIn(t, spool, conf(spool, sink))
			rcpts := append(Rcpts("smtp", "[127.0.0.1]", "to@there.test"), Rcpts("smtp", "[127.0.0.1]", "to@there.test")...)
			rcpts[1].Address = "b@there.test"
			p.Say(spool.Queue(Message{Rcpts: rcpts}) + "\t[127.0.0.1]\n")
			a := p.Answers()
			if len(a) != 2 || a[0].Word != taproto.OK3 || a[1].Word != c.word || a[1].Text != c.text {
				t.Errorf("got %+v, want %s %q", a, c.word, c.text)
			}
		})
	}
}

// Z14, Z16: after a rule "source" the message goes on to the next source of its zone
// and stays there.
func TestTheNextSourceServesTheRetry(t *testing.T) {
	sink := (&Sink{Answer: On("RCPT", "450 4.7.1 poor reputation")}).Start(t, "", "")
	spool := NewSpool(t)
	setRules(t, spool, "smtp/* source /reputation/\n")
	p := startIn(t, spool, conf(spool, sink), "SOURCES=127.0.0.2,127.0.0.3")
	name := spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")})
	var peers []string
	for range 3 {
		p.Say(name + "\t[127.0.0.1]\n")
		a := p.Answers()
		if len(a) != 1 {
			t.Fatalf("got %+v", a)
		}
		_, ends, _ := strings.Cut(a[0].Notary, "|")
		peers = append(peers, strings.Split(ends, "|")[1])
		spool.Defer(name, &a[0])
	}
	if peers[0] == peers[1] || peers[1] == peers[2] || peers[0] != peers[2] {
		t.Errorf("it came from %v", peers)
	}
}
