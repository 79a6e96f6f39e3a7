package engine

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/mailq"
)

// BenchmarkDeliveryBesideListings is how long a message takes from transport/ to its
// delivery while no one asks, and while one client or four list a deep queue without a pause.
func BenchmarkDeliveryBesideListings(b *testing.B) {
	for _, clients := range []int{0, 1, 4} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			r := newRig(b, scriptConf("TEST_SLOTS=20", ""), 0, nil)
			const deep = 2000
			for i := range deep {
				r.Queue("s@a.example", storetest.Rcpt{Line: fmt.Sprintf("smtp slow.example defer9.%d@slow.example", i)})
			}
			r.start()
			r.wait(deep, "msg=recorded")
			stop := make(chan struct{})
			var lists sync.WaitGroup
			for range clients {
				c, _ := r.dial()
				lists.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if _, err := c.Ask(mailq.Request{Kind: mailq.JSONThread, Channel: "smtp", Host: "slow.example"}, nil); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			var took []time.Duration
			n := 0
			for b.Loop() {
				n++
				begin := time.Now()
				r.Queue("s@a.example", storetest.Rcpt{Line: fmt.Sprintf("local joe ok.%d@h", n)})
				r.wait(1, "msg=delivered", fmt.Sprintf("rcpt=ok.%d@h", n))
				took = append(took, time.Since(begin))
			}
			close(stop)
			lists.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
		})
	}
}
