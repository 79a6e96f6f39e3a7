package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logging"
	"zmailer/test/suite"
)

// Op7: the patterns of docs/log-parsers.md match every line of real programs that they are for,
// and take the same values from it as our own parser, whatever clients wrote.
func TestOp7PatternsForParsersReadRealLines(t *testing.T) {
	t.Parallel()
	page := string(assert.Get(os.ReadFile("../../docs/log-parsers.md"))(t))
	patterns := map[string]*regexp.Regexp{}
	grok := strings.NewReplacer("%{TIMESTAMP_ISO8601:timestamp}", `(?<timestamp>\d{4}-\d\d-\d\dT[\d:.]+Z)`, "%{LOGLEVEL:level}", "(?<level>[A-Z]+)",
		"%{NOTSPACE:event}", `(?<event>\S+)`, "%{NOTSPACE:program}", `(?<program>\S+)`)
	for _, m := range regexp.MustCompile(`(?m)^ZMAILER(\w+) (.*)$`).FindAllStringSubmatch(page, -1) {
		patterns[m[1]] = regexp.MustCompile(grok.Replace(m[2]))
	}
	s := prepare(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"LOG": "text"} })
	startOtherLog(t, s)
	k := connect(t, s.SMTPAddr)
	for i, from := range []string{`bob@client.example`, `"a b"@client.example`, `"x rcpt=y size=1"@client.example`, `"q\"id=S1A1"@client.example`, ""} {
		k.send(from, "Subject: x\r\n\r\nbody\r\n", "250", "alice@mta.example")
		awaitMail(t, s, "alice", i+1)
	}
	k.say("QUIT", "221")
	assert.Must(t, s.Stop())
	count := map[string]int{}
	for line := range strings.Lines(s.Log()) {
		line = strings.TrimRight(line, "\n")
		l, ok := logging.ParseLine([]byte(line))
		if !ok {
			continue
		}
		for _, name := range map[string][]string{"accepted": {"BEGIN", "ACCEPTED"}, "delivered": {"BEGIN", "DELIVERY"}}[l.Event] {
			re := patterns[name]
			m := re.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("ZMAILER%s does not match %s", name, line)
				continue
			}
			count[name+" "+l.Event]++
			for i, key := range re.SubexpNames() {
				want := map[string]string{"event": l.Event, "program": l.Program, "level": l.Level.String()}[key]
				switch key {
				case "", "timestamp", "times", "name", "user", "relay":
					continue
				case "event", "program", "level":
				default:
					want = l.Get(key)
				}
				got := m[i]
				if text, quoted := strings.CutPrefix(got, `"`); quoted {
					got = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(strings.TrimSuffix(text, `"`))
				}
				assert.Equal(t, got, want, "ZMAILER%s, %s, in %s", name, key, line)
			}
		}
	}
	for _, what := range []string{"BEGIN accepted", "ACCEPTED accepted", "BEGIN delivered", "DELIVERY delivered"} {
		assert.Equal(t, count[what], 5, what)
	}
}
