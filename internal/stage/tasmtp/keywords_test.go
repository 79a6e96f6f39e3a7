package tasmtp

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// Net5: a host that offers PIPELINING and takes one command at a time costs a time-out once;
// for an hour it gets them one at a time.
func TestNet5HostThatTakesOneCommandAtATime(t *testing.T) {
	spool := NewSpool(t)
	synctest.Test(t, func(t *testing.T) {
		s := stationOn(t, spool, func(c *Config) { c.Idle = time.Minute })
		servers := s.serve(inMemory{forgets: true})
		begin := time.Now()
		name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")})
		if a := s.deliver(name, "[127.0.0.1]")[0]; a.Word != taproto.DeferAll {
			t.Errorf("first attempt: got %+v", a)
		}
		assert.Equal(t, time.Since(begin), 5*time.Minute, "the first attempt took")
		begin = time.Now()
		if a := s.deliver(name, "[127.0.0.1]")[0]; a.Word != taproto.OK3 {
			t.Errorf("second attempt: got %+v", a)
		}
		s.want(taproto.OK3, "smtp", "[127.0.0.1]")
		assert.Equal(t, time.Since(begin), 0, "the second attempt took")
		// Then it is tried again.
		<-time.After(slowTime + time.Minute)
		s.want(taproto.DeferAll, "smtp", "[127.0.0.1]")
		s.relay.Close()
		servers.Wait()
	})
}

// Net5: EHLO keywords that the table names for a host or an address are ignored.
func TestNet5KeywordsAreDiscarded(t *testing.T) {
	sink := (&Sink{Extensions: []string{"SIZE 0", "8BITMIME", "DSN"}}).Start(t, "", "")
	path := filepath.Join(t.TempDir(), discardFile)
	for text, want := range map[string]string{
		"":                                  "MAIL From:<sender@here.test> BODY=8BITMIME SIZE=21",
		"127.0.0.0/8 8bitmime\n":            "MAIL From:<sender@here.test> SIZE=21",
		"smtp/[127.0.0.1] size, 8bitmime\n": "MAIL From:<sender@here.test>",
		"lmtp/* size\n":                     "MAIL From:<sender@here.test> BODY=8BITMIME SIZE=21",
	} {
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
		before := len(sink.Messages())
		s := newStation(t, sink.Port(), "", func(c *Config) { c.Discard = path })
		s.want(taproto.OK3, "smtp", "[127.0.0.1]")
		assert.Equal(t, sink.Messages()[before].Mail, want, text)
	}
}
