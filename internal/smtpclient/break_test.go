package smtpclient

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/status"
)

// inOrder sends one message alone, so that others may share the connection, and then the
// others at once, in their order.
func inOrder(c *Conn, list []*Message) []sent {
	all := make([]sent, len(list))
	all[0].results, all[0].err = c.Send(list[0])
	var wg sync.WaitGroup
	for i := range list[1:] {
		wg.Go(func() { all[i+1].results, all[i+1].err = c.Send(list[i+1]) })
		synctest.Wait()
	}
	wg.Wait()
	return all
}

// ends is what came of messages, in short.
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

// Each of several messages on the way has the outcome that is true for it, whatever
// becomes of the one before it: refused by its own reply; not begun, to be sent elsewhere
// at once; in doubt if all of it was written and nothing was answered.
func TestOutcomesOfMessagesOnTheWay(t *testing.T) {
	const (
		taken = "delivered 2.6.0 waiting for the answer to BDAT"
		doubt = "deferred 4.4.2 waiting for the answer to MAIL, in doubt"
		again = "not begun"
	)
	// The answers are those to message 2, of 0 to 3.
	cases := map[string]struct {
		at, answer string
		want       [4]string
		usable     bool
	}{
		"all taken":         {"-", "", [4]string{taken, taken, taken, taken}, true},
		"MAIL refused":      {"MAIL", "550 5.7.1 no", [4]string{taken, taken, "failed 5.7.1 waiting for the answer to MAIL", taken}, true},
		"MAIL put off":      {"MAIL", "451 4.7.1 no", [4]string{taken, taken, "deferred 4.7.1 waiting for the answer to MAIL", taken}, true},
		"RCPT refused":      {"RCPT", "550 5.1.1 no", [4]string{taken, taken, "failed 5.1.1 waiting for the answer to RCPT", taken}, true},
		"RCPT put off":      {"RCPT", "450 4.2.1 no", [4]string{taken, taken, "deferred 4.2.1 waiting for the answer to RCPT", taken}, true},
		"message refused":   {"BDAT", "554 5.6.0 no", [4]string{taken, taken, "failed 5.6.0 waiting for the answer to BDAT", taken}, true},
		"message put off":   {"BDAT", "452 4.3.1 full", [4]string{taken, taken, "deferred 4.3.1 waiting for the answer to BDAT", taken}, true},
		"421 to RSET":       {"RSET", "421 4.3.2 bye", [4]string{taken, taken, again, again}, false},
		"421 to MAIL":       {"MAIL", "421 4.3.2 bye", [4]string{taken, taken, again, again}, false},
		"421 and goes on":   {"MAIL", "421 4.3.2 bye\r\n250 2.0.0 or not", [4]string{taken, taken, again, doubt}, false},
		"421 and waits":     {"MAIL", "421 DEAF", [4]string{taken, taken, again, doubt}, false},
		"421 to RCPT":       {"RCPT", "421 4.3.2 bye", [4]string{taken, taken, "deferred 4.3.2 waiting for the answer to RCPT", again}, false},
		"421 to BDAT":       {"BDAT", "421 4.3.2 bye", [4]string{taken, taken, "deferred 4.3.2 waiting for the answer to BDAT", again}, false},
		"hangs up at RSET":  {"RSET", "HANGUP", [4]string{taken, taken, doubt, doubt}, false},
		"hangs up at MAIL":  {"MAIL", "HANGUP", [4]string{taken, taken, doubt, doubt}, false},
		"hangs up at RCPT":  {"RCPT", "HANGUP", [4]string{taken, taken, "deferred 4.4.2 waiting for the answer to RCPT, in doubt", doubt}, false},
		"hangs up at BDAT":  {"BDAT", "HANGUP", [4]string{taken, taken, "deferred 4.4.2 waiting for the answer to BDAT, in doubt", doubt}, false},
		"silent at MAIL":    {"MAIL", "DEAF", [4]string{taken, taken, doubt, doubt}, false},
		"silent at BDAT":    {"BDAT", "DEAF", [4]string{taken, taken, "deferred 4.4.2 waiting for the answer to BDAT, in doubt", doubt}, false},
		"nonsense to RCPT":  {"RCPT", "what?", [4]string{taken, taken, "deferred 4.4.2 waiting for the answer to RCPT, in doubt", doubt}, false},
		"354 to MAIL":       {"MAIL", "354 go", [4]string{taken, taken, doubt, doubt}, false},
		"354 to BDAT":       {"BDAT", "354 go", [4]string{taken, taken, "deferred 4.4.2 waiting for the answer to BDAT, in doubt", doubt}, false},
		"BDAT is not known": {"BDAT", "502 5.5.1 what is BDAT", [4]string{taken, taken, ErrNoChunks.Error(), doubt}, false},
		"RSET refused":      {"RSET", "502 5.5.1 what", [4]string{taken, taken, doubt, doubt}, false},
		"552 to RCPT":       {"RCPT", "552 5.2.2 full", [4]string{taken, taken, "failed 5.2.2 waiting for the answer to RCPT", taken}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: chunking}
				message := -1
				n.answer = func(command string) string {
					verb, _, _ := strings.Cut(command, " ")
					// RSET is before the MAIL of a message that another is before.
					if verb == "MAIL" && message < 1 || verb == "RSET" {
						message++
					}
					if message == 2 && verb == c.at {
						return c.answer
					}
					return ""
				}
				conn, _ := farServer(t, n, Config{})
				got := ends(inOrder(conn, several(4)))
				if !slices.Equal(got, c.want[:]) {
					t.Errorf("got %q, want %q", got, c.want)
				}
				if got := conn.Usable(); got != c.usable {
					t.Errorf("usable: got %v, want %v", got, c.usable)
				}
				// What is called delivered is there, what was not begun is not.
				all := strings.Join(n.taken(), "")
				for i, e := range got {
					here := strings.Contains(all, fmt.Sprintf("Subject: %d\r\n", i))
					if here != (e == taken) && !strings.HasSuffix(e, "in doubt") {
						t.Errorf("message %d is %q, and there: %v", i, e, here)
					}
				}
			})
		})
	}
}

// The same without CHUNKING: of the next message only questions are on the way.
func TestOutcomesOfQuestionsOnTheWay(t *testing.T) {
	const taken = "delivered 2.6.0 waiting for the answer to the final dot"
	cases := map[string]struct {
		at, answer string // of message 1, of 0 to 2
		want       [3]string
	}{
		"all taken":           {"-", "", [3]string{taken, taken, taken}},
		"message refused":     {".", "554 5.6.0 no", [3]string{taken, "failed 5.6.0 waiting for the answer to the final dot", taken}},
		"RCPT refused":        {"RCPT", "550 5.1.1 no", [3]string{taken, "failed 5.1.1 waiting for the answer to RCPT", taken}},
		"421 to the dot":      {".", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to the final dot", "not begun"}},
		"421 to DATA":         {"DATA", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to DATA", "not begun"}},
		"hangs up at the dot": {".", "HANGUP", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
		"silent at the dot":   {".", "DEAF", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
		"hangs up at DATA":    {"DATA", "HANGUP", [3]string{taken, "deferred 4.4.2 waiting for the answer to DATA", "not begun"}},
		"nonsense at the dot": {".", "done!", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: chunking[:1]}
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
				if got := ends(inOrder(conn, several(3))); !slices.Equal(got, c.want[:]) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}

// What may arrive is recorded before the first byte of it leaves; what cannot be recorded
// or read stays, and costs the others nothing.
func TestChunkIsRecordedBeforeItLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &naive{extensions: chunking}
		c, rec := farServer(t, n, Config{})
		list := several(4)
		for i, m := range list {
			m.Sent = func(may []int) error {
				if !slices.Equal(may, []int{0}) || strings.Contains(strings.Join(rec.writes, ""), fmt.Sprintf("<m%d@", i)) {
					t.Errorf("message %d: %v, after it was written", i, may)
				}
				if i == 2 {
					return errors.New("disk full")
				}
				return nil
			}
		}
		list[3].Body = failing{errors.New("bad sector")}
		got := ends(inOrder(c, list))
		fault := "deferred 4.3.0 sending the message"
		taken := "delivered 2.6.0 waiting for the answer to BDAT"
		if want := []string{taken, taken, fault, fault}; !slices.Equal(got, want) || !c.Usable() {
			t.Errorf("got %q, usable %v, want %q", got, c.Usable(), want)
		}
		if got := len(n.taken()); got != 2 {
			t.Errorf("%d messages arrived, want 2", got)
		}
	})
}

// A server that answers nothing more is waited for as long as RFC 5321 has it for one
// command, not for each message.
func TestSilenceIsWaitedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &naive{extensions: chunking}
		c, _ := farServer(t, n, Config{})
		sendAll(c, several(1))
		n.answer = func(string) string { return "DEAF" }
		begin := time.Now()
		for i, s := range sendAll(c, several(30)) {
			if r := s.results[0]; r.Outcome != status.Deferred || r.InDoubt == (s.err != nil) {
				t.Errorf("message %d: got %+v, %v", i, r, s.err)
			}
		}
		if got, want := time.Since(begin), 5*time.Minute; got > want+time.Second {
			t.Errorf("waited %v, want %v", got, want)
		}
	})
}

// A large message stands in the line like another, and waits for its own 354.
func TestLargeMessageAmongSmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &naive{extensions: chunking}
		c, _ := farServer(t, n, Config{})
		list := several(9)
		long := strings.Repeat("a line of a large message\n", 20_000)
		list[4].Body, list[4].Size = strings.NewReader("\n"+long), int64(len(long)+1)
		for i, e := range ends(inOrder(c, list)) {
			if !strings.HasPrefix(e, "delivered 2.6.0") {
				t.Errorf("message %d: %s", i, e)
			}
		}
		if got := len(n.taken()); got != len(list) {
			t.Errorf("%d messages arrived, want %d", got, len(list))
		}
	})
}

// A server that does not know BDAT takes the message for commands, whoever is accepted:
// its answers to those are not taken for the next message's.
func TestUnknownBDATEndsTheConnection(t *testing.T) {
	for _, answer := range []string{"500 5.5.1 what", "502 5.5.1 what"} {
		synctest.Test(t, func(t *testing.T) {
			n := &naive{extensions: chunking}
			n.answer = func(command string) string {
				switch {
				case command == "BDAT":
					return answer
				case strings.HasPrefix(command, "RCPT"):
					return "550 5.1.1 no"
				}
				return ""
			}
			c, _ := farServer(t, n, Config{})
			got := ends(inOrder(c, several(1)))
			if want := []string{"failed 5.1.1 waiting for the answer to RCPT"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if c.Usable() {
				t.Errorf("after %s the connection is used on", answer)
			}
		})
	}
}

// A final dot that goes with the next message's questions, and does not leave, is not
// waited for: nothing is in doubt.
func TestDotThatDoesNotLeaveIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &naive{extensions: chunking[:1]}
		c, rec := farServer(t, n, Config{})
		sendAll(c, several(1))
		rec.failAfter = len(rec.writes) + 1
		begin := time.Now()
		var wg sync.WaitGroup
		all := make([]sent, 2)
		for i, m := range several(2) {
			wg.Go(func() { all[i].results, all[i].err = c.Send(m) })
			synctest.Wait()
		}
		wg.Wait()
		if got, want := ends(all), []string{"deferred 4.4.2 sending the message", "not begun"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("waited %v", took)
		}
	})
}
