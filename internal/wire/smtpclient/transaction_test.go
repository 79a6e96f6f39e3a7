package smtpclient

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	testpeer "zmailer/test/peer"
)

const mail = "C: MAIL From:<sender@client.test> BODY=8BITMIME\n"

// Everything up to DATA is one write, header, body and dot another; the answers are
// read in order.
func TestPipelinedTransactionIsTwoWrites(t *testing.T) {
	c, rec, p := open(t, Config{}, hello+mail+`C: RCPT To:<a@test>
C: RCPT To:<b@test>
C: DATA
S: 250 2.1.0 Ok
S: 250 2.1.5 Ok
S: 250 2.1.5 Ok
S: 354 go ahead
BODY
S: 250 2.0.0 queued`)
	res, err := c.Send(message("a@test", "b@test"))
	assert.Must(t, err)
	p.end(t)
	assert.Same(t, outcomes(res), []string{"delivered 2.0.0 waiting for the answer to the final dot", "delivered 2.0.0 waiting for the answer to the final dot"})
	want := []string{
		"EHLO client.test\r\n",
		"MAIL From:<sender@client.test> BODY=8BITMIME\r\nRCPT To:<a@test>\r\nRCPT To:<b@test>\r\nDATA\r\n",
		"Subject: x\r\n\r\nbody\r\n.\r\n",
	}
	assert.Same(t, rec.writes, want)
	if !c.Usable() || c.Served() != 1 {
		t.Errorf("usable %v, served %d", c.Usable(), c.Served())
	}
}

func TestDialogueIsWrittenAsZMailerDoes(t *testing.T) {
	c, _, p := open(t, Config{}, hello+mail+`C: RCPT To:<no@test> NOTIFY=NEVER
C: RCPT To:<ok@test>
C: DATA
S: 250 2.1.0 Ok
S: 550-5.1.1 no such
S: 550 5.1.1 user
S: 250 2.1.5 Ok
S: 354 go ahead
BODY
S: 250 2.0.0 queued as SINK1`)
	m := message("no@test", "ok@test")
	m.Recipients[0].Notify = "NEVER"
	res, err := c.Send(m)
	assert.Must(t, err)
	p.end(t)
	begin := "\n<<- MAIL From:<sender@client.test> BODY=8BITMIME\n->> 250 2.1.0 Ok"
	assert.Equal(t, res[0].Text, begin+"\n<<- RCPT To:<no@test> NOTIFY=NEVER\n->> 550-5.1.1 no such\n->> 550 5.1.1 user")
	assert.Equal(t, res[1].Text, begin+"\n<<- RCPT To:<ok@test>\n->> 250 2.1.5 Ok\n<<- DATA\n->> 354 go ahead\n<<- .\n->> 250 2.0.0 queued as SINK1")
	assert.Equal(t, res[0].Reply.String(), "550 5.1.1 no such user")
}

// S8: each recipient has its own outcome, at whatever step it is decided.
func TestOutcomePerRecipient(t *testing.T) {
	const asked = hello + mail + "C: RCPT To:<a@test>\nC: RCPT To:<b@test>\nC: RCPT To:<c@test>\nC: DATA\n"
	const dot = " waiting for the answer to the final dot"
	const rcpt = " waiting for the answer to RCPT"
	cases := map[string]struct {
		script string
		want   []string
		usable bool
	}{
		"all delivered": {"S: 250 ok\nS: 250 ok\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nS: 250 2.6.0 taken",
			[]string{"delivered 2.6.0" + dot, "delivered 2.6.0" + dot, "delivered 2.6.0" + dot}, true},
		"one of each": {"S: 250 ok\nS: 550 5.1.1 no\nS: 450 4.2.1 later\nS: 251 ok\nS: 354 go\nBODY\nS: 250 taken",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.2.1" + rcpt, "delivered 2.0.0" + dot}, true},
		"MAIL failed": {"S: 553 5.1.8 who?\nS: 503 x\nS: 503 x\nS: 503 x\nS: 503 x",
			[]string{"failed 5.1.8 waiting for the answer to MAIL", "failed 5.1.8 waiting for the answer to MAIL", "failed 5.1.8 waiting for the answer to MAIL"}, true},
		"MAIL deferred": {"S: 451 4.3.0 later\nS: 503 x\nS: 503 x\nS: 503 x\nS: 503 x",
			[]string{"deferred 4.3.0 waiting for the answer to MAIL", "deferred 4.3.0 waiting for the answer to MAIL", "deferred 4.3.0 waiting for the answer to MAIL"}, true},
		"DATA failed": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nS: 554 5.5.0 no",
			[]string{"failed 5.1.1" + rcpt, "failed 5.5.0 waiting for the answer to DATA", "failed 5.5.0 waiting for the answer to DATA"}, true},
		"DATA deferred": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nS: 451 4.3.0 no",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.3.0 waiting for the answer to DATA", "deferred 4.3.0 waiting for the answer to DATA"}, true},
		"message failed": {"S: 250 ok\nS: 450 later\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nS: 554 5.6.0 bad",
			[]string{"deferred 4.0.0" + rcpt, "failed 5.6.0" + dot, "failed 5.6.0" + dot}, true},
		"message deferred": {"S: 250 ok\nS: 550 no\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nS: 452 4.3.1 full",
			[]string{"failed 5.0.0" + rcpt, "deferred 4.3.1" + dot, "deferred 4.3.1" + dot}, true},
		"enough recipients, said with 552": {"S: 250 ok\nS: 250 ok\nS: 552 too many\nS: 552 5.2.2 full\nS: 354 go\nBODY\nS: 250 taken",
			[]string{"delivered 2.0.0" + dot, "deferred 4.0.0" + rcpt, "failed 5.2.2" + rcpt}, true},
		"421 to MAIL": {"S: 421 4.3.2 closing",
			[]string{"deferred 4.3.2 waiting for the answer to MAIL", "deferred 4.3.2 waiting for the answer to MAIL", "deferred 4.3.2 waiting for the answer to MAIL"}, false},
		"421 to a RCPT": {"S: 250 ok\nS: 550 5.1.1 no\nS: 421 4.7.0 enough",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.7.0" + rcpt, "deferred 4.7.0" + rcpt}, false},
		"421 to DATA": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nS: 421 4.3.2 closing",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.3.2 waiting for the answer to DATA", "deferred 4.3.2 waiting for the answer to DATA"}, false},
		"421 to the dot": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nS: 421 4.3.2 closing",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.3.2" + dot, "deferred 4.3.2" + dot}, false},
		"lost before MAIL is answered": {"CLOSE",
			[]string{"deferred 4.4.2 waiting for the answer to MAIL", "deferred 4.4.2 waiting for the answer to MAIL", "deferred 4.4.2 waiting for the answer to MAIL"}, false},
		"lost among RCPTs": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nCLOSE",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.4.2" + rcpt, "deferred 4.4.2" + rcpt}, false},
		"lost before DATA is answered": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nCLOSE",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.4.2 waiting for the answer to DATA", "deferred 4.4.2 waiting for the answer to DATA"}, false},
		"lost after the dot": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nCLOSE",
			[]string{"failed 5.1.1" + rcpt, "deferred 4.4.2" + dot + ", in doubt", "deferred 4.4.2" + dot + ", in doubt"}, false},
		"nonsense after the dot": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nS: what",
			[]string{"deferred 4.4.2" + dot + ", in doubt", "deferred 4.4.2" + dot + ", in doubt", "deferred 4.4.2" + dot + ", in doubt"}, false},
		"DATA answered with 250": {"S: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 250 ok\nS: 250 ok",
			[]string{"deferred 4.4.2 waiting for the answer to DATA", "deferred 4.4.2 waiting for the answer to DATA", "deferred 4.4.2 waiting for the answer to DATA"}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn, _, p := open(t, Config{}, asked+c.script)
			res, err := conn.Send(message("a@test", "b@test", "c@test"))
			assert.Must(t, err)
			assert.Same(t, outcomes(res), c.want)
			assert.Equal(t, conn.Usable(), c.usable, "usable")
			for i, r := range res {
				if r.Text == "" || (r.Err != nil) == (!r.Reply.IsZero()) {
					t.Errorf("recipient %d: text %q, error %v, reply %v", i, r.Text, r.Err, r.Reply)
				}
			}
			p.end(t)
		})
	}
}

// A server that hangs up in the middle of a message is heard out first.
func TestServerRefusesInsideTheMessage(t *testing.T) {
	const asked = hello + mail + "C: RCPT To:<a@test>\nC: DATA\nS: 250 ok\nS: 250 ok\nS: 354 go\nHALFBODY\n"
	m := func() *Message {
		m := message("a@test")
		m.Body = endless{}
		return m
	}
	t.Run("lost", func(t *testing.T) {
		c, _, p := open(t, Config{}, asked+"RESET")
		res, _ := c.Send(m())
		p.end(t)
		assert.Equal(t, outcomes(res)[0], "deferred 4.4.2 sending the message")
	})
	t.Run("told why", func(t *testing.T) {
		// A real reset may take the reply with it; this one does not.
		c, rec, _ := open(t, Config{}, asked+"S: 552 5.3.4 too big\nSTALL")
		rec.failAfter = 3
		res, _ := c.Send(m())
		c.Close()
		assert.Equal(t, outcomes(res)[0], "failed 5.3.4 sending the message")
	})
}

// Del1: when no recipient is left but DATA was accepted the connection is closed. A server
// that has lost step may have accepted one, who would get the empty message that RFC 2920
// §3.1 has for this.
func TestNoRecipientLeftAfterDataWasAccepted(t *testing.T) {
	c, _, p := open(t, Config{}, hello+mail+`C: RCPT To:<a@test>
C: DATA
S: 250 ok
S: 550 5.1.1 no
S: 354 go
WAIT`)
	m := message("a@test")
	m.Sent = func([]int) error { t.Error("Sent was called for a message without recipients"); return nil }
	res, _ := c.Send(m)
	assert.Equal(t, res[0].Code.String(), "5.1.1")
	p.end(t)
	if c.Usable() {
		t.Error("the connection is still in use")
	}
}

// RSET goes out only where a transaction was left open, and in the same write.
func TestResetOnlyWhenATransactionIsOpen(t *testing.T) {
	c, rec, p := open(t, Config{}, hello+mail+`C: RCPT To:<a@test>
C: DATA
S: 250 ok
S: 550 5.1.1 no
S: 503 5.5.1 no recipients
C: RSET
`+mail+`C: RCPT To:<b@test>
C: DATA
S: 250 reset
S: 250 ok
S: 250 ok
S: 354 go
BODY
S: 250 ok
`+mail+`C: RCPT To:<c@test>
C: DATA
S: 250 ok
S: 250 ok
S: 354 go
BODY
S: 250 ok`)
	want := []status.Outcome{status.Failed, status.Delivered, status.Delivered}
	for i, to := range []string{"a@test", "b@test", "c@test"} {
		res, err := c.Send(message(to))
		if err != nil || res[0].Outcome != want[i] {
			t.Errorf("%s: got %+v, %v, want %s", to, res[0], err, want[i])
		}
	}
	p.end(t)
	assert.Equal(t, rec.writes[2], "RSET\r\nMAIL From:<sender@client.test> BODY=8BITMIME\r\nRCPT To:<b@test>\r\nDATA\r\n")
	assert.Equal(t, len(rec.writes), 6, "writes %q", rec.writes)
}

func TestServerWithoutPipeliningIsAskedInTurn(t *testing.T) {
	c, _, p := open(t, Config{}, plainHello+`
C: MAIL From:<sender@client.test>
S: 250 ok
C: RCPT To:<a@test>
S: 550 no
C: MAIL From:<sender@client.test>
`)
	// After the refusal of the only recipient nothing more is sent.
	res, err := c.Send(message("a@test"))
	if err != nil || res[0].Outcome != status.Failed || !c.Usable() {
		t.Errorf("got %+v, %v", res, err)
	}
	c.Close()
	<-p.done
}

func TestKeptConnectionFoundDeadIsStale(t *testing.T) {
	first := mail + "C: RCPT To:<a@test>\nC: DATA\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nS: 250 ok\n"
	cases := map[string]string{
		"closed":            "CLOSE",
		"closed after MAIL": mail + "CLOSE",
		"said 421":          "S: 421 4.4.2 idle too long",
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			c, _, p := open(t, Config{}, hello+first+end)
			if _, err := c.Send(message("a@test")); err != nil {
				t.Fatal(err)
			}
			if end != cases["closed after MAIL"] {
				p.end(t)
			}
			m := message("a@test")
			m.Sent = func([]int) error { t.Error("Sent was called"); return nil }
			res, err := c.Send(m)
			if !errors.Is(err, ErrStale) || c.Usable() {
				t.Errorf("got %+v, %v, usable %v, want ErrStale", res, err, c.Usable())
			}
			if res[0].Outcome != status.Deferred || res[0].InDoubt {
				t.Errorf("got %+v, want deferred without doubt", res[0])
			}
		})
	}
}

// Once MAIL is answered the transaction counts: nothing is repeated by itself.
func TestKeptConnectionThatBreaksLaterIsNotStale(t *testing.T) {
	first := mail + "C: RCPT To:<a@test>\nC: DATA\nS: 250 ok\nS: 250 ok\nS: 354 go\nBODY\nS: 250 ok\n"
	c, _, _ := open(t, Config{}, hello+first+mail+"S: 250 ok\nCLOSE")
	for range 2 {
		if _, err := c.Send(message("a@test")); err != nil {
			t.Errorf("got %v", err)
		}
	}
}

// The trap "indexes into a list that was pruned": the answers to the final dot are those
// of the recipients that were taken; those that were refused, before and between them, have
// none.
func TestLMTPAnswersPerRecipient(t *testing.T) {
	const dot = " waiting for the answer to the final dot"
	const greet = `
S: 220 x
C: LHLO client.test
S: 250-x
S: 250 PIPELINING
C: MAIL From:<sender@client.test>
C: RCPT To:<a@test>
C: RCPT To:<b@test>
C: RCPT To:<c@test>
C: RCPT To:<d@test>
C: DATA
S: 250 ok
S: 550 5.1.1 no
S: 250 ok
S: 452 4.2.2 full
S: 250 ok
S: 354 go
BODY
`
	const refused, full = "failed 5.1.1 waiting for the answer to RCPT", "deferred 4.2.2 waiting for the answer to RCPT"
	cases := map[string]struct {
		script string
		want   []string
		usable bool
	}{
		"all taken":      {"S: 250 2.0.1 a\nS: 250 2.0.2 c", []string{refused, "delivered 2.0.1" + dot, full, "delivered 2.0.2" + dot}, true},
		"one full":       {"S: 250 ok\nS: 452 4.2.2 full", []string{refused, "delivered 2.0.0" + dot, full, "deferred 4.2.2" + dot}, true},
		"one refused":    {"S: 552 5.2.3 too big\nS: 250 ok", []string{refused, "failed 5.2.3" + dot, full, "delivered 2.0.0" + dot}, true},
		"lost after one": {"S: 250 ok\nCLOSE", []string{refused, "delivered 2.0.0" + dot, full, "deferred 4.4.2" + dot + ", in doubt"}, false},
		"421 after one":  {"S: 250 ok\nS: 421 4.3.2 bye", []string{refused, "delivered 2.0.0" + dot, full, "deferred 4.3.2" + dot}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn, _, p := open(t, Config{LMTP: true}, greet+c.script)
			res, err := conn.Send(message("a@test", "b@test", "c@test", "d@test"))
			assert.Must(t, err)
			assert.Same(t, outcomes(res), c.want)
			assert.Equal(t, conn.Usable(), c.usable, "usable")
			p.end(t)
		})
	}
}

// The commands of very many recipients are answered in chunks, so that neither side
// waits for the other with full buffers; DATA goes with the last.
func TestManyRecipientsGoInChunks(t *testing.T) {
	const n = 1000
	var rcpts []string
	for i := range n {
		rcpts = append(rcpts, fmt.Sprintf("recipient-number-%d@test", i))
	}
	client, server := pair(t)
	go (&naive{extensions: pipelining}).serve(server)
	c := New(client, Config{Hostname: "client.test"})
	assert.Must(t, c.Hello())
	res, err := c.Send(message(rcpts...))
	assert.Must(t, err)
	for i, r := range res {
		if want := fmt.Sprintf("<<- RCPT To:<%s>\n", rcpts[i]); r.Outcome != status.Delivered || !strings.Contains(r.Text, want) {
			t.Fatalf("recipient %d: got %+v", i, r)
		}
	}
	for _, w := range client.writes[1 : len(client.writes)-1] {
		if len(w) > chunk+100 {
			t.Errorf("a write of %d bytes before reading", len(w))
		}
	}
	last := client.writes[len(client.writes)-2]
	if !strings.HasSuffix(last, "\r\nDATA\r\n") || !strings.HasPrefix(last, "RCPT ") {
		t.Errorf("DATA does not end the last chunk: %q", last)
	}
}

func TestSentComesRightBeforeTheDot(t *testing.T) {
	c, rec, p := open(t, Config{}, hello+mail+"C: RCPT To:<a@test>\nC: RCPT To:<b@test>\nC: RCPT To:<c@test>\nC: DATA\nS: 250 ok\nS: 250 ok\nS: 550 no\nS: 250 ok\nS: 354 go\nBODY\nS: 250 ok")
	m := message("a@test", "b@test", "c@test")
	m.Sent = func(accepted []int) error {
		assert.Same(t, accepted, []int{0, 2}, "accepted")
		if w := rec.writes[len(rec.writes)-1]; !strings.HasSuffix(w, "DATA\r\n") {
			t.Errorf("already written: %q", w)
		}
		return nil
	}
	if res, err := c.Send(m); err != nil || res[0].Outcome != status.Delivered {
		t.Errorf("got %+v, %v", res, err)
	}
	p.end(t)
}

// What is not recorded is not sent; what cannot be read is not sent by half.
func TestFaultOfOursEndsWithoutADot(t *testing.T) {
	wrong := errors.New("disk full")
	cases := map[string]func(*Message){
		"Sent":         func(m *Message) { m.Sent = func([]int) error { return wrong } },
		"reading":      func(m *Message) { m.Body = failing{wrong} },
		"reading, big": func(m *Message) { m.Body = failing{wrong}; m.Header = []byte(strings.Repeat("X: y\n", 50000)) },
	}
	for name, set := range cases {
		t.Run(name, func(t *testing.T) {
			c, rec, p := open(t, Config{}, hello+mail+"C: RCPT To:<a@test>\nC: RCPT To:<b@test>\nC: DATA\nS: 250 ok\nS: 550 5.1.1 no\nS: 250 ok\nS: 354 go\nWAIT")
			m := message("a@test", "b@test")
			set(m)
			res, err := c.Send(m)
			assert.Must(t, err)
			want := []string{"failed 5.1.1 waiting for the answer to RCPT", "deferred 4.3.0 sending the message"}
			if got := outcomes(res); !slices.Equal(got, want) || !errors.Is(res[1].Err, wrong) {
				t.Errorf("got %q, %v, want %q", got, res[1].Err, want)
			}
			<-p.done // the connection was closed
			if all := strings.Join(rec.writes, ""); strings.HasSuffix(all, "\r\n.\r\n") || c.Usable() {
				t.Errorf("ended with a dot; usable %v", c.Usable())
			}
		})
	}
}

// Del1: where an LMTP server gives more answers to the final dot than there are recipients,
// one of them was not asked for, and which one is not known. Only a recipient for whom all
// answers that may be his say the same has an outcome.
func TestDel1LMTPWithMoreAnswersThanRecipients(t *testing.T) {
	for name, c := range map[string]struct{ answers, want []string }{
		"all the same":      {[]string{"250", "250", "250", "250"}, []string{"delivered", "delivered", "delivered"}},
		"421 behind them":   {[]string{"250", "550", "250", "421"}, []string{"delivered", "failed", "delivered"}},
		"the first twice":   {[]string{"250", "250", "550", "250"}, []string{"delivered", "in doubt", "in doubt"}},
		"the second twice":  {[]string{"250", "550", "550", "250"}, []string{"in doubt", "failed", "in doubt"}},
		"the last twice":    {[]string{"250", "250", "550", "550"}, []string{"delivered", "in doubt", "failed"}},
		"the first thrice":  {[]string{"250", "250", "250", "550", "250"}, []string{"delivered", "in doubt", "in doubt"}},
		"and one more half": {[]string{"250", "250", "250", "25"}, []string{"delivered", "delivered", "in doubt"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: pipelining, answer: answers(".", strings.Join(c.answers, " x\r\n")+" x")}
				conn, _ := farServer(t, n, Config{LMTP: true})
				res, err := conn.Send(numbered(1, "a@test", "b@test", "c@test"))
				var got []string
				for _, r := range res {
					if r.InDoubt {
						got = append(got, "in doubt")
						continue
					}
					got = append(got, r.Outcome.String())
				}
				if err != nil || !slices.Equal(got, c.want) || conn.Usable() {
					t.Errorf("got %q, %v, usable %v, want %q", got, err, conn.Usable(), c.want)
				}
			})
		})
	}
}

// ends returns what came of messages, in short.
func ends(all []sent) []string {
	var list []string
	for _, s := range all {
		text := strings.Join(outcomes(s.results), ", ")
		switch {
		case errors.Is(s.err, ErrStale):
			text = "not begun"
			for _, r := range s.results {
				if r.InDoubt || r.Outcome != status.Deferred {
					text = fmt.Sprintf("not begun, and %+v", r)
				}
			}
		case s.err != nil:
			text = s.err.Error()
		}
		list = append(list, text)
	}
	return list
}

// Del1: each of several messages on a connection has the outcome that is true for it. One
// that finds the connection ended is not begun, to be sent elsewhere at once.
func TestOutcomesOfMessagesOnAConnection(t *testing.T) {
	const (
		taken = "delivered 2.6.0 waiting for the answer to the final dot"
		doubt = "deferred 4.4.2 waiting for the answer to the final dot, in doubt"
	)
	cases := map[string]struct {
		at, answer string // of message 1, of 0 to 2
		want       [3]string
	}{
		"all taken":           {"-", "", [3]string{taken, taken, taken}},
		"message refused":     {".", "554 5.6.0 no", [3]string{taken, "failed 5.6.0 waiting for the answer to the final dot", taken}},
		"RCPT refused":        {"RCPT", "550 5.1.1 no", [3]string{taken, "failed 5.1.1 waiting for the answer to RCPT", taken}},
		"421 to the dot":      {".", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to the final dot", "not begun"}},
		"421, and an answer":  {".", "421 4.3.2 bye\r\n250 2.6.0 taken", [3]string{taken, doubt, "not begun"}},
		"421, and silence":    {".", "421 DEAF", [3]string{taken, doubt, "not begun"}},
		"two answers":         {".", "250 2.6.0 taken\r\n250 2.6.0 taken", [3]string{taken, taken, "not begun"}},
		"two that differ":     {".", "250 2.6.0 taken\r\n554 5.6.0 no", [3]string{taken, doubt, "not begun"}},
		"421 behind it":       {".", "250 2.6.0 taken\r\n421 4.3.2 bye", [3]string{taken, taken, "not begun"}},
		"one and a half":      {".", "250 2.6.0 taken\r\n25", [3]string{taken, doubt, "not begun"}},
		"421 to MAIL":         {"MAIL", "421 4.3.2 bye", [3]string{taken, "not begun", "not begun"}},
		"421 to RCPT":         {"RCPT", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to RCPT", "not begun"}},
		"503 to MAIL":         {"MAIL", "503 5.5.1 nested MAIL", [3]string{taken, "not begun", "not begun"}},
		"354 to MAIL":         {"MAIL", "354 go", [3]string{taken, "not begun", "not begun"}},
		"354 to RCPT":         {"RCPT", "354 go", [3]string{taken, "deferred 4.4.2 waiting for the answer to RCPT", "not begun"}},
		"421 behind the last": {"DATA", "550 5.7.1 no\r\n421 4.7.0 bye", [3]string{taken, "failed 5.7.1 waiting for the answer to DATA", "not begun"}},
		"more than was asked": {"DATA", "550 5.7.1 no\r\n550 5.7.1 no", [3]string{taken, "deferred 4.4.2 waiting for the answer to DATA", "not begun"}},
		"421 to DATA":         {"DATA", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to DATA", "not begun"}},
		"hangs up at the dot": {".", "HANGUP", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
		"silent at the dot":   {".", "DEAF", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
		"hangs up at DATA":    {"DATA", "HANGUP", [3]string{taken, "deferred 4.4.2 waiting for the answer to DATA", "not begun"}},
		"nonsense at the dot": {".", "done!", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: pipelining}
				message := -1
				n.answer = func(command string) string {
					verb, _, _ := strings.Cut(command, " ")
					if verb == "MAIL" {
						message++
					}
					if message == 1 && verb == c.at {
						return c.answer
					}
					return ""
				}
				conn, _ := farServer(t, n, Config{})
				assert.Same(t, ends(sendAll(conn, several(3))), c.want[:])
			})
		})
	}
}

// corked is a connection that sends what is written to it on request.
type corked struct {
	net.Conn
	held  bytes.Buffer
	holds bool
}

func (c *corked) Write(b []byte) (int, error) {
	if c.holds {
		return c.held.Write(b)
	}
	return c.Conn.Write(b)
}

func (c *corked) flush() error {
	c.holds = false
	_, err := c.held.WriteTo(c.Conn)
	return err
}

// Del1: under TLS what a server says beyond its answers is seen too, if it comes with them:
// each in a record of its own.
func TestDel1AnswersInRecordsOfTheirOwn(t *testing.T) {
	for name, c := range map[string]struct {
		data, dot []string // records
		content   bool     // is sent
		want      string
		usable    bool
	}{
		"one answer each":         {[]string{"354 go"}, []string{"250 2.0.0 taken"}, true, "delivered 2.0.0 waiting for the answer to the final dot", true},
		"behind 354":              {[]string{"354 go", "552 5.3.4 too big"}, nil, false, "deferred 4.4.2 waiting for the answer to DATA", false},
		"354 in two records":      {[]string{"354 go", "354", " go"}, nil, false, "deferred 4.4.2 waiting for the answer to DATA", false},
		"behind the dot's answer": {[]string{"354 go"}, []string{"250 2.0.0 taken", "550 5.7.1 spam"}, true, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", false},
		"421 behind it":           {[]string{"354 go"}, []string{"250 2.0.0 taken", "421 4.4.2", " bye"}, true, "delivered 2.0.0 waiting for the answer to the final dot", false},
	} {
		t.Run(name, func(t *testing.T) {
			ca := testpeer.NewCA(t, "test")
			nc, server := pair(t)
			done := make(chan []byte, 1)
			go func() {
				cork := &corked{Conn: server}
				secure := tls.Server(cork, &tls.Config{Certificates: []tls.Certificate{ca.Issue("mx.test")}})
				s := newLines(secure)
				say := func(records []string) {
					cork.holds = true
					for i, r := range records {
						if i == len(records)-1 || records[i+1][0] != ' ' {
							r += "\r\n"
						}
						if _, err := secure.Write([]byte(r)); err != nil {
							s.err = err
						}
					}
					if err := cork.flush(); err != nil {
						s.err = err
					}
				}
				s.say("220 mx.test ESMTP")
				s.hear() // EHLO
				s.say("250-mx.test\r\n250 PIPELINING")
				for range 3 {
					s.hear()
				}
				s.say("250 2.1.0 ok\r\n250 2.1.5 ok")
				say(c.data)
				var got bytes.Buffer
				for s.err == nil && !strings.HasSuffix(got.String(), ".\r\n") {
					line, err := s.r.ReadString('\n')
					got.WriteString(line)
					s.err = err
				}
				if s.err == nil {
					say(c.dot)
				}
				done <- got.Bytes()
				s.hear()
			}()
			conn := New(nc, Config{Hostname: "client.test", Timeouts: short(patience)})
			t.Cleanup(func() { conn.Close() })
			assert.Must(t, conn.BeginTLS(&tls.Config{ServerName: "mx.test", RootCAs: ca.Pool()}))
			assert.Must(t, conn.Hello())
			res, err := conn.Send(message("to@test"))
			if got := outcomes(res); err != nil || !slices.Equal(got, []string{c.want}) || conn.Usable() != c.usable {
				t.Errorf("got %q, %v, usable %v, want %q, %v", got, err, conn.Usable(), c.want, c.usable)
			}
			conn.Close()
			if content := <-done; (len(content) > 0) != c.content {
				t.Errorf("got content %q", content)
			}
		})
	}
}
