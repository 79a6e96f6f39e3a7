package sim

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/thread"
)

func TestAtk3SilentHostsDelayNoOwnMail(t *testing.T) { silentHosts(t) }

// Atk3: reports to 500 hosts that take a connection and stay silent for 300 s each, and
// meanwhile the mail of our own users. At first no host is known, as after a restart.
func silentHosts(t *testing.T) []row {
	w := New(19, begin())
	r := w.Ring("smtp", policy(nil), manySlots())
	var silent []*Host
	for i := range 500 {
		name := fmt.Sprintf("smtp/silent%d", i)
		silent = append(silent, w.host(name, Host{Timeout: 300 * second, Down: []Outage{{0, Forever}}}))
		w.Send(Message{Group: "reports", Origin: thread.Report, To: []Destination{{Ring: r, Name: name}}})
	}
	w.host("smtp/friend", Host{})
	for i := range 200 {
		w.host(fmt.Sprintf("smtp/new%d", i), Host{})
		w.At(second+time.Duration(i)*54*second, func() {
			w.SendOne("own, known", r, "smtp/friend")
			w.SendOne("own, new", r, fmt.Sprintf("smtp/new%d", i))
		})
	}
	w.Run(3*hour + minute)
	tried := 0
	for _, h := range silent {
		if h.Attempts > 0 {
			tried++
		}
	}
	assert.Equal(t, tried, 500, "silent hosts that were tried")
	assert.Equal(t, w.Count("own, new", Delivered)+w.Count("own, known", Delivered), 400, "own messages that were delivered")
	return []row{
		atMost(t, "own mail to a host that answers, in 3 h beside reports to 500 silent hosts, the longest wait", w.Waits("own, known").Max(), 2*second),
		atMost(t, "the same for own mail to unknown hosts", w.Waits("own, new").Max(), 2*second),
	}
}
