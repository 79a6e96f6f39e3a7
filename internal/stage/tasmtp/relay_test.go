package tasmtp

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/agent"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/smtpclient"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// station is a postoffice, a Relay on it and the agent between them.
type station struct {
	*Spool
	t     *testing.T
	relay *Relay
	agent *agent.Agent
}

// newStation makes one that asks servers on a port and a name server, "" for none.
func newStation(t *testing.T, port int, resolver string, change ...func(*Config)) *station {
	t.Helper()
	if resolver == "" {
		resolver = "127.0.0.1:1" // no server: an unexpected query fails the test
	}
	cfg := Config{Hostname: "here.test", Port: port, Resolver: resolver,
		Limits: Limits{Slots: 4, Idle: Patience, Timeouts: smtpclient.Timeouts{Quit: Patience}}}
	for _, f := range change {
		f(&cfg)
	}
	return stationFor(t, NewSpool(t), cfg)
}

// newPair makes a station and starts the server that its mail goes to.
func newPair(t *testing.T, sink *Sink, change ...func(*Config)) (*Sink, *station) {
	t.Helper()
	sink.Start(t, "", "")
	return sink, newStation(t, sink.Port(), "", change...)
}

// stationOn makes one whose servers are in memory and have their usual time-outs; it is
// for a synctest bubble, outside of which the spool was made.
func stationOn(t *testing.T, spool *Spool, change func(*Config)) *station {
	t.Helper()
	cfg := Config{Hostname: "here.test", Resolver: "127.0.0.1:1", Limits: Limits{Slots: 4}}
	change(&cfg)
	return stationFor(t, spool, cfg)
}

func stationFor(t *testing.T, spool *Spool, cfg Config) *station {
	t.Helper()
	relay, err := NewRelay(cfg)
	assert.Must(t, err)
	s := &station{Spool: spool, t: t, relay: relay}
	owner, err := s.PostOffice.Owners.Take("test")
	assert.Must(t, err)
	t.Cleanup(func() {
		relay.Close()
		assert.NoError(t, owner.Release())
	})
	s.agent = &agent.Agent{PostOffice: s.PostOffice, Owner: owner, Name: "smtp"}
	return s
}

// deliver performs a job and returns the answers.
func (s *station) deliver(name, host string) []taproto.Answer {
	s.t.Helper()
	var answers []taproto.Answer
	for _, l := range s.agent.Do(context.Background(), taproto.Job{Name: name, Host: host}, s.relay) {
		if l.Kind != taproto.LineAnswer {
			s.t.Errorf("%s: got %+v, want answers only", name, l)
			continue
		}
		answers = append(answers, l.Answer)
	}
	return answers
}

// one queues a message to one recipient, delivers it and returns the answer.
func (s *station) one(channel, host string) taproto.Answer {
	s.t.Helper()
	name := s.Queue(Message{Rcpts: Rcpts(channel, host, "to@there.test")})
	answers := s.deliver(name, host)
	if len(answers) != 1 {
		s.t.Fatalf("got %d answers, want 1", len(answers))
	}
	return answers[0]
}

// want delivers a message to one recipient and reports an answer with another word.
func (s *station) want(word taproto.Word, channel, host string) {
	s.t.Helper()
	if a := s.one(channel, host); a.Word != word {
		s.t.Errorf("got %+v, want %s", a, word)
	}
}

// status returns the status that an answer has, or the diagnostic of a failure.
func (s *station) status(name string, a taproto.Answer) string {
	if list := s.Spec(name).Diagnostics; len(list) > 0 {
		return list[0].Notary.Status
	}
	return workspec.ParseNotary(a.Notary).Status
}

// words returns the answers in short.
func words(answers []taproto.Answer) string {
	var s []string
	for _, a := range answers {
		s = append(s, fmt.Sprintf("%s %s", a.Word, a.Text))
	}
	return strings.Join(s, "; ")
}

// closedPort returns a TCP port of 127.0.0.1 on which nothing listens.
func closedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// M49: one delivery on each channel, however the host is written.
func TestOneDeliveryOnEachChannel(t *testing.T) {
	dns := mxtest.Start(t, `
there.test.     300 IN MX 10 mx.there.test.
mx.there.test.  300 IN A  127.0.0.1
direct.test.    300 IN A  127.0.0.1
direct.test.    300 IN MX 10 nowhere.test.
`)
	smtp := new(Sink).Start(t, "", "")
	lmtp := (&Sink{LMTP: true, Extensions: []string{"PIPELINING", "8BITMIME"}}).Start(t, "", "")
	socket := t.TempDir() + "/Lmtp.sock"
	onSocket := (&Sink{LMTP: true, Extensions: []string{"PIPELINING"}}).Start(t, "unix", socket)
	_, lmtpPort, _ := net.SplitHostPort(lmtp.Addr())
	s := newStation(t, smtp.Port(), dns.Addr)
	cases := map[string]struct {
		channel, host string
		sink          *Sink
	}{
		"smtp by MX":             {"smtp", "there.test", smtp},
		"smtp by MX, upper case": {"smtp", "THERE.test", smtp},
		"smtp to host:port":      {"smtp", "direct.test:" + fmt.Sprint(smtp.Port()), smtp},
		"smtp to an address":     {"smtp", "[127.0.0.1]", smtp},
		"smtp to address:port":   {"smtp", "[127.0.0.1]:" + fmt.Sprint(smtp.Port()), smtp},
		"smtp to a host in []":   {"smtp", "[direct.test]", smtp},
		"smtpx to a host":        {"smtpx", "direct.test", smtp},
		"smtpx to localhost":     {"smtpx", "localhost", smtp},
		"lmtp to host:port":      {"lmtp", "direct.test:" + lmtpPort, lmtp},
		"lmtp to address:port":   {"lmtp", "[127.0.0.1]:" + lmtpPort, lmtp},
		"lmtp to a unix socket":  {"lmtp", "unix:" + socket, onSocket},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := len(c.sink.Messages())
			a := s.one(c.channel, c.host)
			if a.Word != taproto.OK3 {
				t.Fatalf("got %+v", a)
			}
			m := c.sink.Messages()
			if len(m) != before+1 || m[before].Rcpts[0] != "RCPT To:<to@there.test>" || m[before].Data != "Subject: test\r\n\r\nbody\r\n.\r\n" {
				t.Errorf("got %+v", m[before:])
			}
		})
	}
}

// Z4: header, body and their line ends at the sink, for whatever is stored.
func TestBytesAtTheSink(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	const header = "Subject: test\nX-Long: folded\n\tline\n"
	const sent = "Subject: test\r\nX-Long: folded\r\n\tline\r\n"
	cases := map[string]struct{ stored, want string }{
		"empty body":            {"\n", "\r\n.\r\n"},
		"one byte, no newline":  {"\nx", "\r\nx\r\n.\r\n"},
		"LF to CRLF":            {"\na\nb\n", "\r\na\r\nb\r\n.\r\n"},
		"lone dot":              {"\n.\n", "\r\n..\r\n.\r\n"},
		"lone dot, no newline":  {"\n.", "\r\n..\r\n.\r\n"},
		"dots":                  {"\n..\n.a\na.\n", "\r\n...\r\n..a\r\na.\r\n.\r\n"},
		"bare CR":               {"\na\rb\r", "\r\na b \r\n.\r\n"},
		"CRLF in the store":     {"\na\r\n", "\r\na\r\n.\r\n"},
		"an attempt to smuggle": {"\na\r\n.\r\nMAIL FROM:<x@y>\r\n", "\r\na\r\n..\r\nMAIL FROM:<x@y>\r\n.\r\n"},
		"NULs and 8 bit":        {"\n\x00\xff\x00\n\x80", "\r\n\x00\xff\x00\r\n\x80\r\n.\r\n"},
		"empty lines":           {"\n\n\n", "\r\n\r\n\r\n.\r\n"},
		"one long line":         {"\n" + strings.Repeat("x", 300000), "\r\n" + strings.Repeat("x", 300000) + "\r\n.\r\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			file := s.Queue(Message{Header: header, Stored: c.stored, Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")})
			if got := words(s.deliver(file, "[127.0.0.1]")); !strings.HasPrefix(got, "ok3") {
				t.Fatalf("got %s", got)
			}
			m := sink.Messages()
			assert.Equal(t, m[len(m)-1].Data, sent+c.want)
		})
	}
}

// The diagnostic of a failure has the form that a ZMailer agent writes.
func TestDiagnosticOfAFailure(t *testing.T) {
	sink, s := newPair(t, &Sink{Answer: On("RCPT", "550 5.1.1 fail1@b.example.com: no such user here")})
	name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "fail1@b.example.com")})
	s.deliver(name, "[127.0.0.1]")
	spec := s.Spec(name)
	if len(spec.Diagnostics) != 1 {
		t.Fatalf("got %d diagnostics", len(spec.Diagnostics))
	}
	d := spec.Diagnostics[0]
	assert.Equal(t, d.Text, "\n<<- MAIL From:<sender@here.test> BODY=8BITMIME SIZE=21"+
		"\n->> 250 2.1.0 Ok\n<<- RCPT To:<fail1@b.example.com>\n->> 550 5.1.1 fail1@b.example.com: no such user here")
	assert.Equal(t, d.Notary.Status, "5.1.1")
	if got, want := d.Notary.Diagnostic, "smtp; 550 "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := d.Notary.Remote, fmt.Sprintf("X-IP-addr; [127.0.0.1] (127.0.0.1|%d|127.0.0.1|", sink.Port()); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q...", got, want)
	}
}

// RFC 3461 §5.2: notification requests go to a server that offers DSN, which then owes the report;
// ZMailer's own keys stay here. To another server they do not go, and we owe it.
func TestWishesOfTheSender(t *testing.T) {
	const notary = "NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Orig+2BUser@x INRCPT=rfc822;to@x INFROM=rfc822;sender@here.test"
	rcpt := func() []workspec.Recipient {
		return []workspec.Recipient{{Channel: "smtp", Host: "[127.0.0.1]", Address: "to@x", Notary: notary, Ret: "HDRS", EnvID: "QQ314159"}}
	}
	t.Run("DSN", func(t *testing.T) {
		sink, s := newPair(t, &Sink{})
		assert.Equal(t, words(s.deliver(s.Queue(Message{Rcpts: rcpt()}), "[127.0.0.1]")), "ok3 250 2.0.0 queued")
		m := sink.Messages()[0]
		assert.Equal(t, m.Mail, "MAIL From:<sender@here.test> BODY=8BITMIME SIZE=21 ENVID=QQ314159 RET=HDRS")
		assert.Equal(t, m.Rcpts[0], "RCPT To:<to@x> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Orig+2BUser@x")
	})
	t.Run("no DSN", func(t *testing.T) {
		sink, s := newPair(t, &Sink{Extensions: []string{"PIPELINING"}})
		name := s.Queue(Message{Rcpts: rcpt()})
		assert.Equal(t, words(s.deliver(name, "[127.0.0.1]")), "ok2 250 2.0.0 queued")
		m := sink.Messages()[0]
		if m.Mail != "MAIL From:<sender@here.test>" || m.Rcpts[0] != "RCPT To:<to@x>" {
			t.Errorf("got %+v", m)
		}
		assert.Equal(t, s.Spec(name).Diagnostics[0].Notary.Action, "relayed")
	})
}

// RFC 3464 §2.3.3: a host that does not report itself was relayed to; what a local
// store has taken by LMTP is delivered.
func TestSuccessReportNamesWhatWasDone(t *testing.T) {
	for channel, want := range map[string]string{"smtp": "relayed", "smtpx": "relayed", "smtp-slow": "relayed", "lmtp": "delivered"} {
		sink, s := newPair(t, &Sink{LMTP: channel == "lmtp", Extensions: []string{"PIPELINING"}})
		host := fmt.Sprintf("[127.0.0.1]:%d", sink.Port())
		list := Rcpts(channel, host, "to@x")
		list[0].Notary = "NOTIFY=SUCCESS"
		name := s.Queue(Message{Rcpts: list})
		s.deliver(name, host)
		if d := s.Spec(name).Diagnostics; len(d) != 1 || d[0].Notary.Action != want {
			t.Errorf("%s: got %+v, want %s", channel, d, want)
		}
	}
}

func TestNullSender(t *testing.T) {
	sink, s := newPair(t, &Sink{Extensions: []string{"PIPELINING"}})
	s.deliver(s.Queue(Message{Sender: "-", Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@x")}), "[127.0.0.1]")
	assert.Equal(t, sink.Messages()[0].Mail, "MAIL From:<>")
}

// RFC 5321 §4.5.3.1.10: recipients that are too many for one transaction go into
// the next at once, not after a retry.
func TestTooManyRecipientsGoInSeveralTransactions(t *testing.T) {
	n := 0
	sink, s := newPair(t, &Sink{Answer: func(command string) string {
		switch verb, _, _ := strings.Cut(command, " "); verb {
		case "MAIL":
			n = 0
		case "RCPT":
			if n++; n > 2 {
				return "452 4.5.3 too many recipients"
			}
		}
		return ""
	}})
	name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "a@x", "b@x", "c@x", "d@x", "e@x")})
	s.deliver(name, "[127.0.0.1]")
	assert.Equal(t, s.Tags(name), "+++++")
	if got := len(sink.Messages()); got != 3 || sink.Connects() != 1 {
		t.Errorf("got %d transactions on %d connections, want 3 on 1", got, sink.Connects())
	}
}

// A server that never takes a second recipient ends the rounds all the same.
func TestTooManyRecipientsForAServerThatTakesNone(t *testing.T) {
	_, s := newPair(t, &Sink{Answer: On("RCPT", "452 4.5.3 too many recipients")})
	name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "a@x", "b@x")})
	assert.Equal(t, words(s.deliver(name, "[127.0.0.1]")), "deferred 452 4.5.3 too many recipients; deferred 452 4.5.3 too many recipients")
}

// Recipients with other headers, or other notification requests, are other
// transactions; all on one connection.
func TestOneTransactionPerGroup(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	list := Rcpts("smtp", "[127.0.0.1]", "a@x", "b@x", "c@x")
	list[1].Ret, list[2].EnvID = "FULL", "other"
	s.deliver(s.Queue(Message{Rcpts: list}), "[127.0.0.1]")
	if got := len(sink.Messages()); got != 3 || sink.Connects() != 1 {
		t.Errorf("got %d transactions on %d connections, want 3 on 1", got, sink.Connects())
	}
}

// A delivery that has ended leaves nothing behind when the agent stops.
func TestCloseTakesLeave(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	s.one("smtp", "[127.0.0.1]")
	s.relay.Close()
	sink.WaitQuits(1)
	sink.WaitClosed()
	assert.Equal(t, len(s.relay.pool.links), 0, "connections kept")
}
