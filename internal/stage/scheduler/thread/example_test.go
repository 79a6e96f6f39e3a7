package thread_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// One recipient is deferred once and delivered at the second attempt. The caller brings the
// clock and the answers of the agents.
func Example() {
	now := time.Date(2026, 11, 26, 5, 0, 0, 0, time.UTC)
	core := thread.New(rand.New(rand.NewPCG(1, 2)))
	ring := core.Ring("smtp", thread.Policy{Interval: time.Minute, Retries: []int{5, 10}})
	m := &thread.Message{Number: 4711, Stamp: now.UnixNano(), Open: 1, Total: 1}
	core.Add(m, ring, "smtp", "mx.example", []thread.Recipient{thread.NewRecipient(98, "bob@mx.example")},
		thread.History{}, now)

	for _, answer := range []thread.Result{thread.Deferred, thread.Delivered} {
		v := core.Take(ring, now)
		v.Recipients()[0].Result = answer
		round := core.End(v, thread.HostWait{}, now)
		fmt.Println("left:", round.Left)
		if round.Left > 0 {
			core.Wait(v, now) // once the attempt is recorded on the disk
			fmt.Println("now:", core.Take(ring, now) != nil, "next in", core.Next().Sub(now))
			now = core.Next()
			core.Advance(now)
		}
	}
	// Output:
	// left: 1
	// now: false next in 5m0s
	// left: 0
}
