package tasmtp

import (
	"strconv"
	"testing"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// Net7, RFC 7504: a host that greets with 521 takes no mail at all. The next server is asked;
// if none takes mail, now or later, the recipient fails.
func TestNet7GreetingThatRefusesAllMail(t *testing.T) {
	server := mxtest.Start(t, `
both.test.      300 IN MX 10 first.test.
both.test.      300 IN MX 20 second.test.
alone.test.     300 IN MX 10 first.test.
alone.test.     300 IN MX 20 first2.test.
silent.test.    300 IN MX 10 first.test.
silent.test.    300 IN MX 20 closed.test.
first.test.     300 IN A 127.0.0.2
first2.test.    300 IN A 127.0.0.2
second.test.    300 IN A 127.0.0.3
closed.test.    300 IN A 127.0.0.4
`)
	greets := func(text string) *Sink {
		return &Sink{Answer: On("GREETING", text)}
	}
	for name, c := range map[string]struct {
		greeting string
		never    bool
		code     string
	}{
		"521":                   {"521 no.test does not accept mail", true, "5.3.2"},
		"521, with a code":      {"521 5.7.1 not from you", true, "5.7.1"},
		"554, which may change": {"554 5.7.1 not from you", false, "4.7.1"},
	} {
		t.Run(name, func(t *testing.T) {
			good := new(Sink).Start(t, "tcp", "127.0.0.3:0")
			refuses := greets(c.greeting).Start(t, "tcp", "127.0.0.2:"+strconv.Itoa(good.Port()))
			s := newStation(t, good.Port(), server.Addr)
			s.want(taproto.OK3, "smtp", "both.test")
			name := s.Queue(Message{Rcpts: Rcpts("smtp", "alone.test", "to@alone.test")})
			a := s.deliver(name, "alone.test")[0]
			if got := a.Word == taproto.Error2; got != c.never {
				t.Errorf("alone: got %+v, want a failure: %v", a, c.never)
			}
			assert.Equal(t, s.status(name, a), c.code, "alone")
			s.want(taproto.DeferAll, "smtp", "silent.test")
			if got := refuses.Connects(); got == 0 {
				t.Error("the refusing server was never asked")
			}
		})
	}
}
