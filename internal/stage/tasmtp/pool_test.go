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
)

// M33, A22: one connection serves many messages; MAIL goes out at once.
func TestConnectionIsKeptForTheNextMessage(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	for range 50 {
		s.want(taproto.OK3, "smtp", "[127.0.0.1]")
	}
	assert.Equal(t, sink.Connects(), 1, "connections for 50 messages")
	// A message that is refused does not cost the connection.
	for range 3 {
		name := s.Queue(Message{Sender: "grüße@here.test", Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@x")})
		if got, want := words(s.deliver(name, "[127.0.0.1]")), "error2 sender: "; !strings.HasPrefix(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	assert.Equal(t, sink.Connects(), 1, "connections")
}

func TestConnectionBelongsToChannelAndHost(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	for range 3 {
		s.one("smtp", "[127.0.0.1]")
		s.one("smtpx", "[127.0.0.1]")
		s.one("smtp", fmt.Sprintf("[127.0.0.1]:%d", sink.Port()))
	}
	assert.Equal(t, sink.Connects(), 3, "connections")
}

// A22: an idle connection is closed with QUIT after its time.
func TestIdleConnectionTakesLeave(t *testing.T) {
	sink, s := newPair(t, &Sink{}, func(c *Config) { c.Idle = 20 * time.Millisecond })
	s.one("smtp", "[127.0.0.1]")
	sink.WaitQuits(1)
	sink.WaitClosed()
	s.one("smtp", "[127.0.0.1]")
	assert.Equal(t, sink.Connects(), 2, "connections")
}

func TestWithoutIdleTimeNothingIsKept(t *testing.T) {
	sink, s := newPair(t, &Sink{}, func(c *Config) { c.Idle = 0 })
	s.one("smtp", "[127.0.0.1]")
	sink.WaitQuits(1)
	s.one("smtp", "[127.0.0.1]")
	sink.WaitQuits(2)
}

// A kept connection that the server has closed meanwhile costs no attempt: the
// message goes out on a new one at once, and arrives once.
func TestDeadKeptConnectionIsReplaced(t *testing.T) {
	sink, s := newPair(t, &Sink{})
	s.one("smtp", "[127.0.0.1]")
	for i := range 3 {
		sink.HangUp()
		s.want(taproto.OK3, "smtp", "[127.0.0.1]")
		assert.Equal(t, len(sink.Messages()), i+2, "messages")
	}
}

// The retry is one: a server that closes each connection at MAIL is not asked for
// ever.
func TestDeadConnectionIsRetriedOnce(t *testing.T) {
	sink, s := newPair(t, &Sink{Answer: After(1, "MAIL", "HANGUP", false)})
	s.one("smtp", "[127.0.0.1]")
	s.want(taproto.DeferAll, "smtp", "[127.0.0.1]")
	assert.Equal(t, sink.Connects(), 2, "connections")
}

// A transaction that broke after MAIL was answered is never repeated by itself: the
// scheduler decides.
func TestBrokenTransactionIsNotRepeated(t *testing.T) {
	sink, s := newPair(t, &Sink{Answer: After(1, ".", "HANGUP", false)})
	s.one("smtp", "[127.0.0.1]")
	s.want(taproto.Deferred, "smtp", "[127.0.0.1]")
	assert.Equal(t, len(sink.Messages()), 2, "messages came")
}

// Z9: as many connections at once as there are slots, one for each delivery, and no
// more are kept.
func TestConcurrentDeliveriesHaveAConnectionEach(t *testing.T) {
	const slots = 4
	var gate sync.WaitGroup
	gate.Add(slots)
	sink := (&Sink{Answer: func(command string) string {
		if command == "." {
			gate.Done()
			gate.Wait() // all of them are in the middle of a message
		}
		return ""
	}}).Start(t, "", "")
	s := newStation(t, sink.Port(), "")
	var names []string
	for range slots {
		names = append(names, s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@x")}))
	}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { s.deliver(name, "[127.0.0.1]") })
	}
	all.Wait()
	assert.Equal(t, sink.Connects(), slots, "connections")
	assert.Equal(t, len(s.relay.pool.links), slots, "kept")
}

func TestKeptConnectionsAreBounded(t *testing.T) {
	sink, s := newPair(t, &Sink{}, func(c *Config) { c.Slots = 1 })
	for i := range keepPerSlot + 3 {
		s.one("smtp", fmt.Sprintf("127.0.0.1:%d", sink.Port())) // always in use
		s.one("smtpx", fmt.Sprintf("[127.0.0.%d]:%d", 1, sink.Port()))
		s.one(fmt.Sprintf("smtp-%d", i), "[127.0.0.1]")
	}
	s.relay.pool.mu.Lock()
	got := len(s.relay.pool.links)
	s.relay.pool.mu.Unlock()
	if got > keepPerSlot {
		t.Errorf("%d kept, want at most %d", got, keepPerSlot)
	}
	// The two that were in use all the time are still the first ones.
	assert.Equal(t, sink.Connects(), keepPerSlot+3+2, "connections")
	sink.WaitQuits(5)
}
