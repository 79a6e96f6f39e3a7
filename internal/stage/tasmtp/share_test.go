package tasmtp

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/test/peer"
)

// together delivers n messages at once, as so many slots do, and gives their answers.
func (s *station) together(n int, host string) []taproto.Answer {
	s.t.Helper()
	answers := make([]taproto.Answer, n)
	names := make([]string, n)
	for i := range n {
		names[i] = s.Queue(Message{Rcpts: Rcpts("smtp", host, fmt.Sprintf("to%d@there.test", i))})
	}
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			if a := s.deliver(name, host); len(a) == 1 {
				answers[i] = a[0]
			}
		})
	}
	all.Wait()
	return answers
}

// farFrom returns the port of a server that is so far away.
func farFrom(t *testing.T, addr string, way time.Duration) int {
	t.Helper()
	far := &peer.Far{To: addr, Way: way}
	assert.Must(t, far.Start())
	t.Cleanup(far.Close)
	return far.Port()
}

// rcptCounts returns how often each recipient's message came.
func rcptCounts(messages []Taken) map[string]int {
	n := map[string]int{}
	for _, m := range messages {
		for _, r := range m.Rcpts {
			n[r]++
		}
	}
	return n
}

// allOnce fails the test unless each of n messages was delivered, once.
func allOnce(t *testing.T, sink *Sink, answers []taproto.Answer) {
	t.Helper()
	for i, a := range answers {
		if a.Word != taproto.OK3 {
			t.Errorf("message %d: got %+v", i, a)
		}
	}
	counts := rcptCounts(sink.Messages())
	for i := range answers {
		assert.Equal(t, counts[fmt.Sprintf("RCPT To:<to%d@there.test>", i)], 1, "copies of message %d", i)
	}
}

// A22: no more connections to a host than --connections, whatever the server can do, and
// a large message gets its turn.
func TestConnectionsToAHostAreBounded(t *testing.T) {
	for name, extensions := range map[string][]string{"PIPELINING": {"PIPELINING"}, "nothing": {"8BITMIME"}} {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{Extensions: extensions}).Start(t, "", "")
			s := newStation(t, farFrom(t, sink.Addr(), 2*time.Millisecond), "", func(c *Config) { c.Slots, c.Connections = 16, 2 })
			large := s.Queue(Message{Stored: "\n" + strings.Repeat("a line\n", 50_000), Rcpts: Rcpts("smtp", "[127.0.0.1]", "large@there.test")})
			var done sync.WaitGroup
			done.Go(func() {
				if a := s.deliver(large, "[127.0.0.1]"); a[0].Word != taproto.OK3 {
					t.Errorf("large: got %+v", a)
				}
			})
			allOnce(t, sink, s.together(40, "[127.0.0.1]"))
			done.Wait()
			if got := sink.Connects(); got > 2 {
				t.Errorf("%d connections, want at most 2", got)
			}
		})
	}
}

// A server that ends each connection with 421 after a few messages: the others go on
// another at once, none twice, none put off.
func TestServerThatLimitsMessagesOfAConnection(t *testing.T) {
	sink := (&Sink{Answer: After(6, "MAIL", "421 4.7.0 enough for one connection", true)}).Start(t, "", "")
	s := newStation(t, farFrom(t, sink.Addr(), 10*time.Millisecond), "", func(c *Config) { c.Slots, c.Connections = 8, 1 })
	for range 5 {
		before := len(sink.Messages())
		for i, a := range s.together(8, "[127.0.0.1]") {
			if a.Word != taproto.OK3 {
				t.Errorf("message %d: got %+v", i, a)
			}
		}
		assert.Equal(t, len(sink.Messages())-before, 8, "messages came")
	}
}

// A22: a connection is given up after five minutes or a thousand messages.
func TestConnectionIsNotUsedForEver(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	now := time.Now()
	s.relay.pool.now = func() time.Time { return now }
	s.one("smtp", "[127.0.0.1]")
	now = now.Add(maxAge)
	s.one("smtp", "[127.0.0.1]")
	assert.Equal(t, sink.Connects(), 2, "after its time: connections")
	s.relay.pool.mu.Lock()
	for _, l := range s.relay.pool.links {
		l.uses = maxUses - 1
	}
	s.relay.pool.mu.Unlock()
	s.one("smtp", "[127.0.0.1]")
	s.one("smtp", "[127.0.0.1]")
	assert.Equal(t, sink.Connects(), 3, "after its uses: connections")
}
