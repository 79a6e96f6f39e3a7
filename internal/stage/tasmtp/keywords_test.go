package tasmtp

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// oneAtATime is a server that offers PIPELINING and forgets, with each command that it reads,
// what has come behind it.
func oneAtATime(nc *PipeEnd) {
	defer nc.Close()
	r := bufio.NewReader(nc)
	say := func(text string) { _, _ = io.WriteString(nc, text+"\r\n") }
	say("220 hop.test")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = r.Discard(r.Buffered())
		switch verb, _, _ := strings.Cut(strings.TrimSpace(line), " "); verb {
		case "EHLO":
			say("250-hop.test\r\n250 PIPELINING")
		case "DATA":
			say("354 go")
			for line != ".\r\n" {
				if line, err = r.ReadString('\n'); err != nil {
					return
				}
			}
			say("250 2.0.0 taken")
		default:
			say("250 2.0.0 ok")
		}
	}
}

// Net5: a host that offers PIPELINING and takes one command at a time costs a time-out once;
// for an hour it gets them one at a time.
func TestNet5HostThatTakesOneCommandAtATime(t *testing.T) {
	spool := NewSpool(t)
	synctest.Test(t, func(t *testing.T) {
		var servers sync.WaitGroup
		s := stationOn(t, spool, func(c *Config) { c.Idle = time.Minute })
		s.relay.dialWith = func(*net.Dialer, context.Context, string, string) (net.Conn, error) {
			client, server := Pipe()
			servers.Go(func() { oneAtATime(server) })
			return client, nil
		}
		begin := time.Now()
		name := s.Queue(Message{Rcpts: rcpts("smtp", "[127.0.0.1]", "to@there.test")})
		if a := s.deliver(name, "[127.0.0.1]")[0]; a.Word != taproto.DeferAll {
			t.Errorf("first attempt: got %+v", a)
		}
		assert.Equal(t, time.Since(begin), 5*time.Minute, "the first attempt took")
		begin = time.Now()
		if a := s.deliver(name, "[127.0.0.1]")[0]; a.Word != taproto.OK3 {
			t.Errorf("second attempt: got %+v", a)
		}
		if got := s.one("smtp", "[127.0.0.1]"); got.Word != taproto.OK3 {
			t.Errorf("another message: got %+v", got)
		}
		assert.Equal(t, time.Since(begin), 0, "the second attempt took")
		// Then it is tried again.
		<-time.After(slowTime + time.Minute)
		if a := s.one("smtp", "[127.0.0.1]"); a.Word != taproto.DeferAll {
			t.Errorf("an hour later: got %+v", a)
		}
		s.relay.Close()
		servers.Wait()
	})
}

// Net5: EHLO keywords that the table names for a host or an address are not believed.
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
		if a := s.one("smtp", "[127.0.0.1]"); a.Word != taproto.OK3 {
			t.Errorf("%q: got %+v", text, a)
		}
		assert.Equal(t, sink.Messages()[before].Mail, want, text)
	}
}
