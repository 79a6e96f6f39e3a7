package smtpclient

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/status"
)

// trips is how many round trips a time comes to.
func trips(since time.Time) int { return int((time.Since(since) + 2*way - 1) / (2 * way)) }

// RFC 3030 §4.2: many small messages cost no round trip of their own. The clock moves
// only while bytes are under way, so that the time is the number of round trips.
func TestSmallMessagesShareRoundTrips(t *testing.T) {
	const messages = 200
	cases := map[string]struct {
		extensions []string
		window     int
		want       int
	}{
		"CHUNKING":                  {chunking, 0, 1 + (messages-1+9)/10},
		"CHUNKING, a larger window": {chunking, 50, 1 + (messages-1+49)/50},
		// DATA has to be answered: one for each, and one for the last final dot.
		"PIPELINING alone":            {chunking[:1], 0, messages + 2},
		"CHUNKING, one after another": {chunking, 1, 2 * messages},
		"neither":                     {[]string{"8BITMIME"}, 0, 4 * messages},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: c.extensions}
				conn, _ := farServer(t, n, Config{Window: c.window})
				begin := time.Now()
				for i, s := range sendAll(conn, several(messages)) {
					if s.err != nil || s.results[0].Outcome != status.Delivered {
						t.Fatalf("message %d: got %+v, %v", i, s.results, s.err)
					}
				}
				if got := trips(begin); got > c.want {
					t.Errorf("%d round trips for %d messages, want at most %d", got, messages, c.want)
				}
				got := n.taken()
				slices.Sort(got)
				if got = slices.Compact(got); len(got) != messages {
					t.Errorf("%d messages arrived, want %d", len(got), messages)
				}
			})
		})
	}
}

// RFC 2920 §3.1: the final dot and the next message's MAIL, RCPT and DATA go in one write.
func TestDotAndNextQuestionsAreOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, rec := farServer(t, &naive{extensions: chunking[:1]}, Config{})
		sendAll(c, several(1))
		for range 3 {
			sendAll(c, several(2))
		}
		both := 0
		for _, w := range rec.writes {
			if strings.Contains(w, "\r\n.\r\nMAIL From:") && strings.HasSuffix(w, "\r\nDATA\r\n") {
				both++
			}
		}
		if both != 3 {
			t.Errorf("got %d writes with dot and DATA, want 3: %q", both, rec.writes)
		}
	})
}

// The content of a chunk is the message's, its dots as they are; where a line end lacks
// it is added, as before a final dot.
func TestChunkHoldsTheMessagesBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &naive{extensions: chunking}
		c, _ := farServer(t, n, Config{})
		m := numbered(1, "to@test")
		m.Header, m.Body = []byte("Subject: x\n"), strings.NewReader("\n.\n..\na\rb\nno end")
		res, err := c.Send(m)
		if err != nil || res[0].Outcome != status.Delivered || res[0].Phase != PhaseChunk {
			t.Errorf("got %+v, %v", res, err)
		}
		if got, want := n.taken(), []string{"Subject: x\r\n\r\n.\r\n..\r\na\rb\r\nno end\r\n"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if got, want := res[0].Text, "\n<<- MAIL From:<m1@client.test> BODY=8BITMIME\n->> 250 2.0.0 ok\n<<- RCPT To:<to@test>\n->> 250 2.1.5 ok\n<<- BDAT 34 LAST\n->> 250 2.6.0 taken"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A message that is larger than was said goes by DATA, whole.
func TestMessageLargerThanSaidGoesByData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &naive{extensions: chunking}
		c, _ := farServer(t, n, Config{})
		m := numbered(1, "to@test")
		long := strings.Repeat("line of a body\n", 10_000)
		m.Body = strings.NewReader("\n" + long)
		res, err := c.Send(m)
		if err != nil || res[0].Outcome != status.Delivered || res[0].Phase != PhaseDot {
			t.Errorf("got %+v, %v", res, err)
		}
		if got, want := len(n.taken()[0]), len("Subject: 1\r\n\r\n.\r\n")+len(long)+10_000; got != want {
			t.Errorf("%d bytes, want %d", got, want)
		}
	})
}

// No more than the window is on the way, and one alone until the first is answered.
func TestWindowIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, window := range []int{1, 2, 3, 10} {
			var mu sync.Mutex
			var open, most int
			n := &naive{extensions: chunking}
			c, _ := farServer(t, n, Config{Window: window})
			list := several(40)
			for _, m := range list {
				m.Sent = func([]int) error { return nil }
			}
			n.answer = func(command string) string {
				mu.Lock()
				defer mu.Unlock()
				c.mu.Lock()
				open = c.count
				c.mu.Unlock()
				most = max(most, open)
				return ""
			}
			sendAll(c, list)
			if most != window {
				t.Errorf("window %d: %d on the way", window, most)
			}
		}
	})
}

// A server that takes longer over a message than the way takes is given one at a time:
// other connections serve the rest.
func TestSlowServerIsNotQueuedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for takes, want := range map[time.Duration]int{0: 10, 20 * time.Millisecond: 6, 60 * time.Millisecond: 2, time.Second: 1} {
			c, _ := farServer(t, &naive{extensions: chunking, takes: takes}, Config{})
			if got := c.Window(); got != 1 {
				t.Errorf("before the first message: %d, want 1", got)
			}
			sendAll(c, several(1))
			if got := c.Window(); got != want {
				t.Errorf("a message takes %v: %d at once, want %d", takes, got, want)
			}
			sendAll(c, several(30))
			if got := c.Window(); got < want-1 || got > want+1 {
				t.Errorf("a message takes %v, 30 later: %d at once, want %d", takes, got, want)
			}
		}
	})
}
