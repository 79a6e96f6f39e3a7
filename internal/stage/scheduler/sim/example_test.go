package sim_test

import (
	"fmt"
	"time"

	"zmailer/internal/stage/scheduler/sim"
	"zmailer/internal/stage/scheduler/thread"
)

// A host that is down for ten minutes gets its mail at the retry after that.
func Example() {
	w := sim.New(1, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	w.Host("smtp/slow.example").Down = []sim.Outage{{To: 10 * time.Minute}}
	policy := thread.Policy{Interval: time.Minute, Retries: []int{1, 2, 4, 8}, Expiry: 24 * time.Hour}
	ring := w.Ring("smtp", policy, sim.Ring{Slots: 20})
	slow := w.SendOne("mail", ring, "smtp/slow.example")
	fast := w.SendOne("mail", ring, "smtp/fast.example")
	fmt.Println(w.Drain(time.Hour))
	fmt.Println("fast:", fast.Attempts, "attempt,", fast.Wait(w.Now()).Round(time.Minute))
	fmt.Println("slow:", slow.Attempts, "attempts,", slow.Wait(w.Now()).Round(time.Minute))
	// Output:
	// true
	// fast: 1 attempt, 0s
	// slow: 5 attempts, 15m0s
}
