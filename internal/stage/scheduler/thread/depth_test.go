package thread

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkDepth is one message that comes, is delivered and goes while so many others
// are queued, to 10,000 hosts or to one.
func BenchmarkDepth(b *testing.B) {
	for _, hosts := range []int{10_000, 1} {
		for _, n := range []int{1_000, 10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("hosts=%d/queued=%d", hosts, n), func(b *testing.B) {
				c, list := fill(n, min(hosts, n), false)
				r := c.rings["r"]
				now := time.Unix(1_800_000_000, 0)
				number := uint64(n)
				b.ReportAllocs()
				for b.Loop() {
					number++
					m := &Message{Number: number, Stamp: now.UnixNano(), Open: 1, Total: 1, Sender: SenderKey(uint32(scatter(number)), Own)}
					c.Add(m, r, "smtp", fmt.Sprintf("host%d.example", number%uint64(hosts)), []Recipient{NewRecipient(1, "x")}, History{}, now)
					v := c.Take(r, now)
					v.Recipients()[0].Result = Delivered
					c.End(v, HostWait{}, now)
				}
				_ = list
			})
		}
	}
}
