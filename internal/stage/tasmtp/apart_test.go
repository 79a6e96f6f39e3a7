package tasmtp

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// Del1: recipients that draw 421 at every attempt, which ends the connection, do not keep
// the others from their mail: those are delivered, once each, and at the latest at the
// second attempt where several draw it.
func TestDel1RecipientThatDraws421IsTriedApart(t *testing.T) {
	for name, c := range map[string]struct {
		lmtp     bool
		at       string // what is answered with 421
		drawers  []int  // of six recipients
		attempts int    // until the others are delivered
	}{
		"the first":            {at: "RCPT To:<to%d@", drawers: []int{0}, attempts: 1},
		"one in the middle":    {at: "RCPT To:<to%d@", drawers: []int{3}, attempts: 1},
		"the last":             {at: "RCPT To:<to%d@", drawers: []int{5}, attempts: 1},
		"several":              {at: "RCPT To:<to%d@", drawers: []int{0, 2, 3, 5}, attempts: 2},
		"LMTP, at RCPT":        {lmtp: true, at: "RCPT To:<to%d@", drawers: []int{1}, attempts: 1},
		"LMTP, behind the dot": {lmtp: true, at: ". to%d@", drawers: []int{1}, attempts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{LMTP: c.lmtp, Answer: func(command string) string {
				for _, i := range c.drawers {
					if strings.HasPrefix(command, fmt.Sprintf(c.at, i)) {
						return "421 4.7.0 not this one"
					}
				}
				return ""
			}}).Start(t, "", "")
			s := newStation(t, sink.Port(), "")
			channel, host := "smtp", "[127.0.0.1]"
			if c.lmtp {
				channel, host = "lmtp", fmt.Sprintf("[127.0.0.1]:%d", sink.Port())
			}
			var to []string
			for i := range 6 {
				to = append(to, fmt.Sprintf("to%d@there.test", i))
			}
			name := s.Queue(Message{Rcpts: Rcpts(channel, host, to...)})
			for range c.attempts {
				for _, a := range s.deliver(name, host) {
					if a.Word == taproto.OK3 {
						continue
					}
					if a.Word != taproto.Deferred {
						t.Errorf("got %+v, which stops the host", a)
					}
					s.Defer(name, &a)
				}
			}
			want := []byte("++++++")
			for _, i := range c.drawers {
				want[i] = ' '
			}
			assert.Equal(t, s.Tags(name), string(want), "after %d attempts: tags", c.attempts)
			if c.lmtp && strings.HasPrefix(c.at, ".") {
				return // the sink records a transaction, not who of it was taken
			}
			counts := rcptCounts(sink.Messages())
			for i := range to {
				n := 1
				if slices.Contains(c.drawers, i) {
					n = 0
				}
				assert.Equal(t, counts[fmt.Sprintf("RCPT To:<to%d@there.test>", i)], n, "recipient %d: copies", i)
			}
		})
	}
}
