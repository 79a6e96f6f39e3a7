package tasmtp

import (
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/taproto"
	. "zmailer/internal/tasmtp/tasmtptest"
	"zmailer/test/peer"
)

var chunking = []string{"PIPELINING", "CHUNKING", "SIZE 0", "8BITMIME", "ENHANCEDSTATUSCODES"}

// together delivers n messages at once, as so many slots do, and gives their answers.
func (s *station) together(n int, host string) []taproto.Answer {
	s.t.Helper()
	answers := make([]taproto.Answer, n)
	names := make([]string, n)
	for i := range n {
		names[i] = s.Queue(Message{Rcpts: rcpts("smtp", host, fmt.Sprintf("to%d@there.test", i))})
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

// farFrom is the port of a server that is so far away.
func farFrom(t *testing.T, addr string, way time.Duration) int {
	t.Helper()
	far := &peer.Far{To: addr, Way: way}
	if err := far.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(far.Close)
	return far.Port()
}

// rcptCounts is how often each recipient's message came.
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
		if got := counts[fmt.Sprintf("RCPT To:<to%d@there.test>", i)]; got != 1 {
			t.Errorf("message %d came %d times", i, got)
		}
	}
}

// A22: to a server far away as many small messages are on the way at once, on one
// connection, as its first message has shown to be of use: ten, unless this machine is so
// busy that the server looks slow.
func TestSmallMessagesShareAConnection(t *testing.T) {
	var once sync.Once
	held, all := make(chan struct{}), make(chan struct{})
	first := true
	sink := (&Sink{Extensions: chunking, Answer: func(command string) string {
		if command == "." && !first {
			once.Do(func() { close(held) })
			<-all
		}
		return ""
	}}).Start(t, "", "")
	s := newStation(t, farFrom(t, sink.Addr(), 50*time.Millisecond), "", func(c *Config) { c.Slots = 11 })
	s.one("smtp", "[127.0.0.1]")
	first = false
	p := s.relay.pool
	window := p.links[0].conn.Window()
	t.Logf("%d at once", window)
	go func() {
		defer close(all)
		<-held
		await(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.links[0].users == window
		})
	}()
	allOnce(t, sink, s.together(window, "[127.0.0.1]"))
	if got := sink.Connects(); got != 1 {
		t.Errorf("%d connections for %d messages", got, window)
	}
}

// Without CHUNKING two share one.
func TestMessagesShareByPipelining(t *testing.T) {
	sink := (&Sink{Extensions: []string{"PIPELINING"}}).Start(t, "", "")
	s := newStation(t, farFrom(t, sink.Addr(), 20*time.Millisecond), "", func(c *Config) { c.Slots, c.Connections = 12, 6 })
	allOnce(t, sink, s.together(12, "[127.0.0.1]"))
	if got := sink.Connects(); got > 6 {
		t.Errorf("%d connections, want at most 6", got)
	}
}

// A22: no more connections to a host than --connections, whatever the server can do, and
// a large message gets its turn.
func TestConnectionsToAHostAreBounded(t *testing.T) {
	for name, extensions := range map[string][]string{"CHUNKING": chunking, "PIPELINING": {"PIPELINING"}, "nothing": {"8BITMIME"}} {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{Extensions: extensions}).Start(t, "", "")
			s := newStation(t, farFrom(t, sink.Addr(), 2*time.Millisecond), "", func(c *Config) { c.Slots, c.Connections = 16, 2 })
			large := s.Queue(Message{Stored: "\n" + strings.Repeat("a line\n", 50_000), Rcpts: rcpts("smtp", "[127.0.0.1]", "large@there.test")})
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

// A server that does not want us is asked once for all that wait for the connection.
func TestAllWhoWaitHearWhyThereIsNoConnection(t *testing.T) {
	stations := make(chan *station, 1)
	sink := (&Sink{Extensions: chunking, Answer: func(command string) string {
		if command != "GREETING" {
			return ""
		}
		s := <-stations
		await(t, func() bool {
			s.relay.pool.mu.Lock()
			defer s.relay.pool.mu.Unlock()
			return len(s.relay.pool.opening) == 1 && s.relay.pool.opening[0].wait == 4
		})
		return "554 5.7.1 go away"
	}}).Start(t, "", "")
	s := newStation(t, sink.Port(), "", func(c *Config) { c.Slots = 5 })
	stations <- s
	for i, a := range s.together(5, "[127.0.0.1]") {
		if a.Word != taproto.DeferAll || !strings.Contains(a.Text, "go away") {
			t.Errorf("message %d: got %+v", i, a)
		}
	}
	if got := sink.Connects(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

// await waits until something is so.
func await(t *testing.T, so func() bool) {
	late := time.After(Patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-late:
			t.Error("waited too long")
			return
		}
	}
}

// A server that ends each connection with 421 after a few messages, while others are on
// the way: those go on another at once, none twice, none put off.
func TestServerThatLimitsMessagesOfASharedConnection(t *testing.T) {
	var mu sync.Mutex
	n := 0
	sink := (&Sink{Extensions: chunking, Answer: func(command string) string {
		mu.Lock()
		defer mu.Unlock()
		if command == "GREETING" {
			n = 0
		}
		if strings.HasPrefix(command, "MAIL") {
			if n++; n > 6 {
				return "421 4.7.0 enough for one connection"
			}
		}
		return ""
	}}).Start(t, "", "")
	s := newStation(t, farFrom(t, sink.Addr(), 10*time.Millisecond), "", func(c *Config) { c.Slots, c.Connections = 8, 1 })
	for range 5 {
		before := len(sink.Messages())
		for i, a := range s.together(8, "[127.0.0.1]") {
			if a.Word != taproto.OK3 {
				t.Errorf("message %d: got %+v", i, a)
			}
		}
		if got := len(sink.Messages()) - before; got != 8 {
			t.Errorf("%d messages came, want 8", got)
		}
	}
}

// A connection that breaks with several on the way leaves them in doubt, which does not
// keep the host's other messages waiting (K14); for an hour they go one after the other,
// and not by BDAT.
func TestHostThatBreaksASharedConnection(t *testing.T) {
	var mu sync.Mutex
	ends, breaks := 0, true
	sink := (&Sink{Extensions: chunking, Answer: func(command string) string {
		mu.Lock()
		defer mu.Unlock()
		if command == "." && breaks {
			if ends++; ends > 1 {
				return "HANGUP"
			}
		}
		return ""
	}}).Start(t, "", "")
	s := newStation(t, farFrom(t, sink.Addr(), 10*time.Millisecond), "", func(c *Config) { c.Slots, c.Connections = 8, 1 })
	now := time.Now()
	s.relay.pool.now = func() time.Time { return now }
	s.one("smtp", "[127.0.0.1]")
	doubts := 0
	for _, a := range s.together(4, "[127.0.0.1]") {
		if strings.Contains(a.Text, "in doubt") {
			if doubts++; a.Word != taproto.Deferred {
				t.Errorf("in doubt: got %+v, which stops the thread", a)
			}
		} else if a.Word != taproto.OK3 && a.Word != taproto.Deferred && a.Word != taproto.DeferAll {
			t.Errorf("got %+v", a)
		}
	}
	if doubts == 0 {
		t.Error("none is in doubt")
	}
	mu.Lock()
	breaks = false
	mu.Unlock()
	s.together(4, "[127.0.0.1]")
	all := sink.Messages()
	for _, m := range all[len(all)-4:] {
		if !strings.HasSuffix(m.Data, "\r\n.\r\n") {
			t.Errorf("by BDAT: %q", m.Data)
		}
	}
	// The connection of that time is too old by then, too.
	now = now.Add(single + time.Second)
	s.one("smtp", "[127.0.0.1]")
	all = sink.Messages()
	if m := all[len(all)-1]; strings.HasSuffix(m.Data, "\r\n.\r\n") {
		t.Errorf("an hour later, by DATA: %q", m.Data)
	}
}

// A server that offers CHUNKING and does not know BDAT gets the message by DATA at once.
func TestServerThatDoesNotKnowBDAT(t *testing.T) {
	var mu sync.Mutex
	first := true
	sink := (&Sink{Extensions: chunking, Answer: func(command string) string {
		mu.Lock()
		defer mu.Unlock()
		if command == "." && first {
			first = false
			return "502 5.5.1 command not known"
		}
		return ""
	}}).Start(t, "", "")
	s := newStation(t, sink.Port(), "")
	for range 3 {
		if a := s.one("smtp", "[127.0.0.1]"); a.Word != taproto.OK3 {
			t.Errorf("got %+v", a)
		}
	}
	if got := sink.Connects(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
	for _, m := range sink.Messages() {
		if !strings.HasSuffix(m.Data, "\r\n.\r\n") {
			t.Errorf("by BDAT: %q", m.Data)
		}
	}
}

// A kept connection that the server has closed costs no doubt though everything is
// written at once: the socket is looked at before.
func TestDeadKeptConnectionIsReplacedBeforeAChunk(t *testing.T) {
	certificate := peer.NewCA(t, "any").Issue("mx.there.test")
	for name, server := range map[string]*tls.Config{"in the clear": nil, "under TLS": serverTLS(certificate)} {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{Extensions: chunking, TLS: server}).Start(t, "", "")
			s, _ := tlsStation(t, sink, tlsZone, "")
			for i := range 4 {
				for range 2 { // on one connection
					if a := s.one("smtp", "there.test"); a.Word != taproto.OK3 {
						t.Errorf("got %+v", a)
					}
				}
				if got, want := len(sink.Messages()), 2*i+2; got != want {
					t.Errorf("%d messages, want %d", got, want)
				}
				if got, want := sink.Connects(), i+1; got != want || under(sink) != name {
					t.Errorf("%d connections, want %d, %s", got, want, under(sink))
				}
				sink.HangUp()
			}
		})
	}
}

// A22: a connection is given up after five minutes or a thousand messages.
func TestConnectionIsNotUsedForEver(t *testing.T) {
	sink := new(Sink).Start(t, "", "")
	s := newStation(t, sink.Port(), "")
	now := time.Now()
	s.relay.pool.now = func() time.Time { return now }
	s.one("smtp", "[127.0.0.1]")
	now = now.Add(maxAge)
	s.one("smtp", "[127.0.0.1]")
	if got := sink.Connects(); got != 2 {
		t.Errorf("after its time: %d connections, want 2", got)
	}
	s.relay.pool.mu.Lock()
	for _, l := range s.relay.pool.links {
		l.uses = maxUses - 1
	}
	s.relay.pool.mu.Unlock()
	s.one("smtp", "[127.0.0.1]")
	s.one("smtp", "[127.0.0.1]")
	if got := sink.Connects(); got != 3 {
		t.Errorf("after its uses: %d connections, want 3", got)
	}
}

// A list with a sender of its own for each recipient is a transaction for each: they are
// on the way together, on one connection, and each recipient has one.
func TestTransactionsOfAMessageShareAConnection(t *testing.T) {
	const recipients = 60
	var mu sync.Mutex
	mails := 0
	sink := (&Sink{Extensions: chunking, Answer: func(command string) string {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case strings.HasPrefix(command, "MAIL"):
			mails++
		case strings.HasPrefix(command, "RCPT To:<to7@"):
			return "550 5.1.1 no such user"
		}
		return ""
	}}).Start(t, "", "")
	s := newStation(t, farFrom(t, sink.Addr(), 20*time.Millisecond), "", func(c *Config) { c.Slots = 1 })
	var to []string
	for i := range recipients {
		to = append(to, fmt.Sprintf("to%d@there.test", i))
	}
	name := s.Queue(Message{Sender: "list@here.test", VERP: "list-?@here.test", Rcpts: rcpts("smtp", "[127.0.0.1]", to...)})
	begin := time.Now()
	answers := s.deliver(name, "[127.0.0.1]")
	t.Logf("%d transactions in %v", recipients, time.Since(begin))
	for i, a := range answers {
		if want := taproto.OK3; i != 7 && a.Word != want || i == 7 && a.Word != taproto.Error2 {
			t.Errorf("recipient %d: got %+v", i, a)
		}
	}
	counts := rcptCounts(sink.Messages())
	for i := range recipients {
		want := 1
		if i == 7 {
			want = 0
		}
		if got := counts[fmt.Sprintf("RCPT To:<to%d@there.test>", i)]; got != want {
			t.Errorf("recipient %d: %d messages, want %d", i, got, want)
		}
	}
	if got := sink.Connects(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if mails != recipients {
		t.Errorf("%d transactions, want %d", mails, recipients)
	}
}
