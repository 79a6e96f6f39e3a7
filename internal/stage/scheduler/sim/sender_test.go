package sim

import (
	"testing"

	"zmailer/internal/stage/scheduler/thread"
)

func TestOneSendersFloodLeavesRoomForAnother(t *testing.T) { senderAgainstSender(t) }

// 100,000 messages of one sender, and one of another, to the same host.
func senderAgainstSender(t *testing.T) []row {
	var rows []row
	for _, ageOrder := range []bool{false, true} {
		w := New(8, begin())
		r := w.Ring("smtp", policy(func(p *thread.Policy) { p.AgeOrder = ageOrder }), manySlots())
		w.host("smtp/h", Host{})
		for range 100_000 {
			w.SendOne("flood", r, "smtp/h")
		}
		w.At(10*second, func() { w.SendOne("one", r, "smtp/h") })
		w.Run(5 * minute)
		order := "shuffled"
		if ageOrder {
			order = "ageorder"
		}
		rows = append(rows, atMost(t, order+": one sender's message behind another's 100,000 to the same host", w.Waits("one").Max(), 2*second))
	}
	return rows
}
