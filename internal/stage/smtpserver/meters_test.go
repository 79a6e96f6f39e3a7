package smtpserver

import (
	"io"
	"net"
	"strings"
	"testing"

	"zmailer/internal/run/metrics"
	"zmailer/test/suite"
)

// Z26: each answer to a message, a recipient and a connection is counted once, also while
// somebody reads.
func TestAnswersAreCounted(t *testing.T) {
	t.Parallel()
	set := metrics.New("smtpserver", "unix")
	r := start(t, func(c *Config) { c.Metrics, c.MaxSize, c.MaxConnections, c.MaxRecipients = set, 1000, 1, 2 })
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				set.Append(nil)
			}
		}
	}()
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	for _, tt := range []struct{ content, code string }{
		{"x", "250"}, {strings.Repeat("0123456789\r\n", 200), "552"}, {"y", "250"},
	} {
		p.say("MAIL FROM:<a@example.net>", "250")
		p.say("RCPT TO:<b@mx.example.org>", "250")
		p.say("RCPT TO:<b@mx.example.org> NOTIFY=NEVER NOTIFY=NEVER", "501")
		p.say("DATA", "354")
		p.say(tt.content+"\r\n.", tt.code)
	}
	turned, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer turned.Close()
	if text, err := io.ReadAll(turned); err != nil || !strings.HasPrefix(string(text), "421 ") {
		t.Errorf("the second connection: %q, %v", text, err)
	}
	close(stop)
	<-done
	m, err := suite.ParseMetrics(set.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"zmailer_smtpserver_messages_total accepted":       2,
		"zmailer_smtpserver_messages_total refused":        1,
		"zmailer_smtpserver_messages_total deferred":       0,
		"zmailer_smtpserver_messages_total lost":           0,
		"zmailer_smtpserver_recipients_total accepted":     3,
		"zmailer_smtpserver_recipients_total refused":      3,
		"zmailer_smtpserver_connections":                   1,
		"zmailer_smtpserver_connections_turned_away_total": 1,
		"zmailer_smtpserver_receive_seconds":               3,
		"zmailer_smtpserver_commit_seconds":                2,
		"zmailer_smtpserver_connections_total":             1,
	} {
		family, result, _ := strings.Cut(name, " ")
		var labels []string
		if result != "" {
			labels = []string{"result", result}
		}
		if got := m.Sum(family, labels...); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
