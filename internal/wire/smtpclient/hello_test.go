package smtpclient

import (
	"errors"
	"testing"
	"time"
)

func TestHelloReadsExtensions(t *testing.T) {
	c, _, p := open(t, Config{}, hello+"C: QUIT\nS: 221 bye")
	want := Extensions{Pipelining: true, Size: true, MaxSize: 1000000, EightBitMIME: true, DSN: true, SMTPUTF8: true, EnhancedStatus: true}
	if got := c.Extensions(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := c.Quit(); err != nil {
		t.Error(err)
	}
	p.end(t)
}

func TestExtensionsAreCaseInsensitiveAndFirstLineIsNone(t *testing.T) {
	got := parseExtensions("PIPELINING\nsize\n8bitmime x\nDsn\nX-UNKNOWN 1 2", []string{"DSN"})
	want := Extensions{Size: true, EightBitMIME: true}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestHeloForAServerWithoutEhlo(t *testing.T) {
	c, _, p := open(t, Config{}, `
S: 220 old
C: EHLO client.test
S: 500 what?
C: HELO client.test
S: 250 hello
C: MAIL From:<sender@client.test>
S: 250 ok
C: RCPT To:<a@test>
S: 250 ok
C: DATA
S: 354 go
BODY
S: 250 taken`)
	res, err := c.Send(message("a@test"))
	if err != nil || res[0].Code.String() != "2.0.0" {
		t.Errorf("got %+v, %v", res, err)
	}
	p.end(t)
}

func TestRefusedHello(t *testing.T) {
	cases := map[string]struct {
		script string
		lmtp   bool
		want   string
	}{
		"greeting 554":      {"S: 554 no\nC: QUIT\nS: 221 x", false, "waiting for the greeting: 554 no"},
		"greeting 421":      {"S: 421 busy", false, "waiting for the greeting: 421 busy"},
		"greeting nonsense": {"S: hi", false, `waiting for the greeting: not an SMTP reply: "hi"`},
		"greeting 250":      {"S: 250 x\nC: QUIT\nS: 221 x", false, "waiting for the greeting: 250 x"},
		"hangs up at once":  {"CLOSE", false, "waiting for the greeting: unexpected EOF"},
		"EHLO 421":          {"S: 220 x\nC: EHLO client.test\nS: 421 busy", false, "saying hello: 421 busy"},
		"EHLO 451":          {"S: 220 x\nC: EHLO client.test\nS: 451 later\nC: QUIT\nS: 221 x", false, "saying hello: 451 later"},
		"HELO refused too":  {"S: 220 x\nC: EHLO client.test\nS: 550 no\nC: HELO client.test\nS: 550 no\nC: QUIT\nS: 221 x", false, "saying hello: 550 no"},
		"LHLO refused":      {"S: 220 x\nC: LHLO client.test\nS: 500 no\nC: QUIT\nS: 221 x", true, "saying hello: 500 no"},
		"hangs up after it": {"S: 220 x\nC: EHLO client.test\nCLOSE", false, "saying hello: unexpected EOF"},
		"several line refusal": {"S: 554-5.7.1 no\nS: 554 5.7.1 never\nC: QUIT\nS: 221 x", false,
			"waiting for the greeting: 554 5.7.1 no never"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn, _, p := start(t, Config{LMTP: c.lmtp}, c.script)
			err := conn.Hello()
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			var refused *ReplyError
			var broke *ConnError
			if !errors.As(err, &refused) && !errors.As(err, &broke) {
				t.Errorf("got %T", err)
			}
			if conn.Usable() {
				t.Error("still usable")
			}
			p.end(t)
		})
	}
}

// K15: each phase has a timeout of its own, and a tarpit does not hold us longer.
func TestTimeoutAtEachPhase(t *testing.T) {
	const ask = hello + "C: MAIL From:<sender@client.test> BODY=8BITMIME\n"
	const rcpt = "C: RCPT To:<a@test>\nC: DATA\n"
	cases := map[string]struct {
		set    func(*Timeouts) *time.Duration
		script string
		want   Phase
	}{
		"greeting": {func(t *Timeouts) *time.Duration { return &t.Greeting }, "WAIT", PhaseGreeting},
		"hello":    {func(t *Timeouts) *time.Duration { return &t.Hello }, "S: 220 x\nWAIT", PhaseHello},
		"MAIL":     {func(t *Timeouts) *time.Duration { return &t.Mail }, ask + "WAIT", PhaseMail},
		"RCPT":     {func(t *Timeouts) *time.Duration { return &t.Rcpt }, ask + "S: 250 ok\n" + rcpt + "WAIT", PhaseRcpt},
		"DATA":     {func(t *Timeouts) *time.Duration { return &t.Data }, ask + "S: 250 ok\n" + rcpt + "S: 250 ok\nWAIT", PhaseData},
		"dot": {func(t *Timeouts) *time.Duration { return &t.Dot },
			ask + "S: 250 ok\n" + rcpt + "S: 250 ok\nS: 354 go\nBODY\nWAIT", PhaseDot},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			times := short(patience)
			*c.set(&times) = 20 * time.Millisecond
			conn, _, _ := start(t, Config{Timeouts: times}, c.script)
			var err error = conn.Hello()
			if err == nil {
				res, _ := conn.Send(message("a@test"))
				err = res[0].Err
				if got, want := res[0].InDoubt, c.want == PhaseDot; got != want {
					t.Errorf("in doubt: got %v, want %v", got, want)
				}
				if got, want := res[0].Code.String(), "4.4.2"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			var broke *ConnError
			if !errors.As(err, &broke) || broke.Phase != c.want || !broke.Timeout() {
				t.Errorf("got %v, want a timeout %s", err, c.want)
			}
		})
	}
}

// A server that takes no bytes of the message is given up after the block timeout.
func TestTimeoutInsideTheMessage(t *testing.T) {
	times := short(patience)
	times.Block = 50 * time.Millisecond
	conn, _, _ := start(t, Config{Timeouts: times}, plainHello+`
C: MAIL From:<sender@client.test>
S: 250 ok
C: RCPT To:<a@test>
S: 250 ok
C: DATA
S: 354 go
HALFBODY
STALL`)
	if err := conn.Hello(); err != nil {
		t.Fatal(err)
	}
	m := message("a@test")
	m.Body = endless{}
	res, _ := conn.Send(m)
	var broke *ConnError
	if !errors.As(res[0].Err, &broke) || broke.Phase != PhaseBody || !broke.Timeout() || res[0].InDoubt {
		t.Errorf("got %+v, want a timeout while sending, not in doubt", res[0])
	}
}

// endless is a body without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
