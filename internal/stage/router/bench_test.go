package router

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/metrics"
)

// BenchmarkRoute routes one message again and again: claim, read, resolve, write the
// specification, hand over. What puts it back is not measured.
func BenchmarkRoute(b *testing.B) {
	header := "Received: from a (b)\n\tby c with ESMTP; Sat, 21 Nov 2026 00:00:00 +0000\nFrom: Q <q@example.net>\nTo: a@example.net\n" +
		"Subject: a subject\nDate: Sat, 21 Nov 2026 00:00:00 +0000\nMessage-ID: <1@example.net>\nMIME-Version: 1.0\nContent-Type: text/plain\n"
	for _, way := range []struct {
		rcpts   int
		counted string
	}{{1, ""}, {1, "-counted"}, {100, ""}, {100, "-counted"}} {
		rcpts := way.rcpts
		b.Run(fmt.Sprint(rcpts, "-recipients", way.counted), func(b *testing.B) {
			o := newOffice(b, nil, func(c *Config) {
				if c.Log = nil; way.counted != "" {
					c.Metrics = metrics.New("router", "unix")
				}
			})
			var to strings.Builder
			for i := range rcpts {
				fmt.Fprintf(&to, "todsn NOTIFY=FAILURE ORCPT=rfc822;a%d@example.net\nto <a%d@example.net>\n", i, i)
			}
			a := o.submit("external\nrcvdfrom c.example ([192.0.2.1])\nwith ESMTP\nfrom <q@example.net>\n" + to.String() + "env-end\n" +
				header + "\n" + strings.Repeat("0123456789abcde\n", 256))
			ino := fmt.Sprint(a.ID.Ino)
			name := ino + "-" + fmt.Sprint(o.r.owner.Number())
			b.ReportAllocs()
			for b.Loop() {
				assert.Must(b, o.r.RouteOne(ino))
				b.StopTimer()
				assert.Must(b, os.Rename(filepath.Join(o.dir, "queue", name), filepath.Join(o.dir, a.Name)))
				assert.Must(b, os.Remove(filepath.Join(o.dir, "transport", name)))
				b.StartTimer()
			}
		})
	}
}

// What a message makes the collector do: a bound, so that it does not creep up.
func TestRoutingAMessageMakesLittleGarbage(t *testing.T) {
	o := newOffice(t, nil, func(c *Config) { c.Log = nil })
	const messages = 20
	for i := range messages + 1 {
		o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
	}
	list, err := o.po.Router.List(false, time.Now())
	if err != nil || len(list) != messages+1 {
		t.Fatalf("got %d, %v", len(list), err)
	}
	got := testing.AllocsPerRun(messages, func() {
		assert.Must(t, o.r.RouteOne(list[0].Name))
		list = list[1:]
	})
	if got > 80 {
		t.Errorf("got %v allocations a message, want 80 at most", got)
	}
}
