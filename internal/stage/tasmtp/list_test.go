package tasmtp

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/workspec"
)

// A sender who is to see in what comes back whom it is about has a transaction for each
// recipient, all on one connection, also where none is kept for other messages.
func TestVERPIsOneTransactionForEachRecipient(t *testing.T) {
	sink, s := newPair(t, &Sink{Answer: On("RCPT To:<dan@", "550 5.1.1 no such user")}, func(c *Config) { c.Idle = 0 })
	name := s.Queue(Message{Sender: "owner-news@here.test", VERP: "+", Rcpts: Rcpts("smtp", "[127.0.0.1]", "ann@x.test", "dan@y.test", "bob@y.test", "carol@x.test")})
	s.deliver(name, "[127.0.0.1]")
	assert.Equal(t, s.Tags(name), "+-++")
	var got []string
	for _, m := range sink.Messages() {
		from, _, _ := strings.Cut(m.Mail, "> ")
		got = append(got, from+"> "+strings.Join(m.Rcpts, " "))
	}
	want := "MAIL From:<owner-news+ann=x.test@here.test> RCPT To:<ann@x.test>\n" +
		"MAIL From:<owner-news+bob=y.test@here.test> RCPT To:<bob@y.test>\n" +
		"MAIL From:<owner-news+carol=x.test@here.test> RCPT To:<carol@x.test>"
	assert.Equal(t, strings.Join(got, "\n"), want)
	assert.Equal(t, sink.Connects(), 1, "connections")
}

// RFC 5321 §4.5.3.1.8: a hundred at once every server takes. Thousands in one transaction
// would be refused one by one, again and again.
func TestManyRecipientsGoAHundredAtATime(t *testing.T) {
	most := 0
	sink, s := newPair(t, &Sink{}, func(c *Config) { c.Idle = 0 })
	var list []string
	for i := range 250 {
		list = append(list, fmt.Sprintf("user%d@x.test", i))
	}
	name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", list...)})
	s.deliver(name, "[127.0.0.1]")
	assert.Equal(t, s.Tags(name), strings.Repeat("+", len(list)))
	n := 0
	for _, m := range sink.Messages() {
		most, n = max(most, len(m.Rcpts)), n+len(m.Rcpts)
	}
	if got := len(sink.Messages()); got != 3 || most != 100 || n != len(list) || sink.Connects() != 1 {
		t.Errorf("got %d recipients in %d transactions of at most %d on %d connections, want %d in 3 of 100 on 1", n, got, most, sink.Connects(), len(list))
	}
}

// A streamed specification comes back to a sender that it had before: that is no other
// transaction. Another sender is.
func TestGroupsOfOneSenderShareATransaction(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "x@x.test")})
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: int64(len(Envelope()) + 1)})
	for i, from := range []string{"owner-a@here.test", "owner-b@here.test", "owner-a@here.test"} {
		w.Begin(&workspec.Sender{Channel: "local", Host: from, Address: from, Privilege: "65534"})
		for j := range 2 {
			w.Recipient(&workspec.Recipient{Channel: "smtp", Host: "[127.0.0.1]", Address: fmt.Sprintf("user%d%d@x.test", i, j), Privilege: "65534"})
		}
	}
	w.Header([]byte("Subject: x\n"))
	assert.Must(t, w.Close())
	s.Write("transport/"+name, b.Bytes())
	s.deliver(name, "[127.0.0.1]")
	assert.Equal(t, s.Tags(name), "++++++")
	var got []string
	for _, m := range sink.Messages() {
		got = append(got, fmt.Sprint(len(m.Rcpts), strings.Contains(m.Mail, "owner-a")))
	}
	assert.Equal(t, strings.Join(got, ", "), "4 true, 2 false")
}
