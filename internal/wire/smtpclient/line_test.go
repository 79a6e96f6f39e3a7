package smtpclient

import (
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/mail/status"
)

// trips is how many round trips a time comes to.
func trips(since time.Time) int { return int((time.Since(since) + 2*way - 1) / (2 * way)) }

// RFC 2920: MAIL, RCPT and DATA cost one round trip, the content another one. The clock
// moves only while bytes are under way, so that the time is the number of round trips.
func TestRoundTripsOfAMessage(t *testing.T) {
	const messages = 50
	for name, c := range map[string]struct {
		extensions, ignore []string
		want               int
	}{
		"PIPELINING":          {pipelining, nil, 2 * messages},
		"PIPELINING, ignored": {pipelining, []string{"PIPELINING"}, 4 * messages},
		"none":                {[]string{"8BITMIME"}, nil, 4 * messages},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: c.extensions}
				conn, _ := farServer(t, n, Config{Ignore: c.ignore})
				begin := time.Now()
				for i, s := range sendAll(conn, several(messages)) {
					if s.err != nil || s.results[0].Outcome != status.Delivered {
						t.Fatalf("message %d: got %+v, %v", i, s.results, s.err)
					}
				}
				if got := trips(begin); got != c.want {
					t.Errorf("%d round trips for %d messages, want %d", got, messages, c.want)
				}
				if got := len(n.taken()); got != messages {
					t.Errorf("%d messages arrived, want %d", got, messages)
				}
			})
		})
	}
}
