package tasmtp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// Del9: a server that takes 64 kB of content in three minutes keeps within the time for a
// write. It does not hold the connection for longer than the content's rate and the bound for
// all of it allow, and nothing is in doubt.
func TestDel9SlowReaderIsCutOff(t *testing.T) {
	spool := NewSpool(t)
	for name, c := range map[string]struct {
		every   time.Duration // 64 kB in each
		rate    int64
		most    time.Duration
		from    time.Duration
		until   time.Duration
		deliver bool
	}{
		"below the rate":         {every: 170 * time.Second, rate: 500, from: 3 * time.Minute, until: 40 * time.Minute},
		"below the rate, no min": {every: 170 * time.Second, most: 2 * time.Hour, from: 2 * time.Hour, until: 2 * time.Hour},
		"above the rate":         {every: 10 * time.Second, rate: 500, most: 6 * time.Hour, from: 10 * time.Minute, until: 6 * time.Hour, deliver: true},
		"above it, and too long": {every: 60 * time.Second, rate: 500, most: time.Hour, from: time.Hour, until: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := stationOn(t, spool, func(cfg *Config) { cfg.MinRate, cfg.MaxTime = c.rate, c.most })
				servers := s.serve(inMemory{every: c.every})
				body := "\n" + strings.Repeat("a line of a large message that is 50 bytes in all\n", 6<<20/50)
				name := s.Queue(Message{Stored: body, Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")})
				begin := time.Now()
				a := s.deliver(name, "[127.0.0.1]")[0]
				took := time.Since(begin)
				if got := a.Word == taproto.OK3; got != c.deliver || strings.Contains(a.Text, "in doubt") {
					t.Errorf("got %+v, want delivered: %v", a, c.deliver)
				}
				if took < c.from || took > c.until {
					t.Errorf("it took %v, want %v to %v", took, c.from, c.until)
				}
				s.relay.Close()
				servers.Wait()
			})
		})
	}
}

// Del9: neither does one that answers each of many recipients just in time.
func TestDel9SlowAnswersAreCutOff(t *testing.T) {
	spool := NewSpool(t)
	synctest.Test(t, func(t *testing.T) {
		s := stationOn(t, spool, func(cfg *Config) { cfg.MaxTime = 2 * time.Hour })
		servers := s.serve(inMemory{answer: 4 * time.Minute})
		var to []string
		for i := range maxRcpts {
			to = append(to, fmt.Sprintf("to%d@there.test", i))
		}
		name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", to...)})
		begin := time.Now()
		for _, a := range s.deliver(name, "[127.0.0.1]") {
			if a.Word == taproto.OK3 || a.Word == taproto.Error2 || strings.Contains(a.Text, "in doubt") {
				t.Errorf("got %+v, want a deferral", a)
			}
		}
		if got, want := time.Since(begin), 2*time.Hour; got < want || got > want+10*time.Minute {
			t.Errorf("it took %v, want %v", got, want)
		}
		s.relay.Close()
		servers.Wait()
	})
}

// inMemory is a server that takes a time over each answer and over each 64 kB of content.
type inMemory struct {
	answer, every time.Duration
	forgets       bool // it offers PIPELINING and drops what came with a command
}

// serve has each connection of a station be one to such a server; the result waits for them.
func (s *station) serve(in inMemory) *sync.WaitGroup {
	var servers sync.WaitGroup
	s.relay.dialWith = func(*net.Dialer, context.Context, string, string) (net.Conn, error) {
		client, server := Pipe()
		servers.Go(func() { in.talk(server) })
		return client, nil
	}
	return &servers
}

func (in inMemory) talk(nc *PipeEnd) {
	defer nc.Close()
	r := bufio.NewReader(nc)
	say := func(text string) {
		<-time.After(in.answer)
		_, _ = io.WriteString(nc, text+"\r\n")
	}
	say("220 hop.test")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		verb, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if in.forgets {
			_, _ = r.Discard(r.Buffered())
		}
		switch {
		case verb == "EHLO" && in.forgets:
			say("250-hop.test\r\n250 PIPELINING")
		case verb == "DATA":
			say("354 go")
			block, last := make([]byte, 64<<10), ""
			for !strings.HasSuffix(last, "\r\n.\r\n") {
				<-time.After(in.every)
				for got := 0; got < len(block) && !strings.HasSuffix(last, "\r\n.\r\n"); {
					n, err := r.Read(block[got:])
					if err != nil {
						return
					}
					last += string(block[got : got+n])
					last = last[max(0, len(last)-5):]
					got += n
				}
			}
			say("250 2.0.0 taken")
		default:
			say("250 2.0.0 ok")
		}
	}
}
