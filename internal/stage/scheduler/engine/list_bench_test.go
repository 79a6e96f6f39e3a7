package engine

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
)

// BenchmarkList is what a list's specification of 100,000 recipients costs the scheduler:
// to read it, to make threads of it, and to end one host's after the other. The metrics
// are of the processor, not of the clock.
func BenchmarkList(b *testing.B) {
	const n = 100_000
	for _, hosts := range []int{1, 10_000, n} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			r := newRig(b, scriptConf("", ""), 0, nil)
			r.config.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
			list := make([]storetest.Rcpt, n)
			for i := range list {
				list[i].Line = fmt.Sprintf("smtp h%d.example user%d@h%d.example", i%hosts, i, i%hosts)
			}
			name := r.Queue("owner-list@mx.example", list...)
			e := newEngine(r.config, r.PO)
			e.clock.tick()
			var before, after runtime.MemStats
			var load, place, end time.Duration
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				began := processor()
				l, err := e.spool.Load(name)
				if err != nil || len(l.Open) != n {
					b.Fatal(err)
				}
				load += processor() - began
				began = processor()
				e.intake.loaded(name, l, nil)
				place += processor() - began
				l = nil
				runtime.GC()
				runtime.ReadMemStats(&after)
				m := e.messages.get(firstNumber(name))
				began = processor()
				var rings []*thread.Ring
				seen := map[*thread.Ring]bool{}
				m.Vertices(func(v *thread.Vertex) {
					if !seen[v.Thread.Ring] {
						seen[v.Thread.Ring] = true
						rings = append(rings, v.Thread.Ring)
					}
				})
				ended := 0
				for _, ring := range rings {
					for v := e.core.Take(ring, e.now); v != nil; v = e.core.Take(ring, e.now) {
						rcpts := v.Recipients()
						for i := range rcpts {
							rcpts[i].Result = thread.Delivered
							if v.Answered() != (i == len(rcpts)-1) {
								b.Fatal("answered too soon or never")
							}
						}
						ended += len(rcpts)
						e.core.End(v, thread.HostWait{}, e.now)
					}
				}
				if ended != n {
					b.Fatalf("%d recipients ended", ended)
				}
				e.ends.forget(m)
				end += processor() - began
			}
			b.ReportMetric(load.Seconds()*1e3/float64(b.N), "ms-load")
			b.ReportMetric(place.Seconds()*1e3/float64(b.N), "ms-place")
			b.ReportMetric(end.Seconds()*1e3/float64(b.N), "ms-end")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/recipient")
		})
	}
}

// processor is what this process has had of the processors.
func processor() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func firstNumber(name string) uint64 {
	var n uint64
	fmt.Sscan(name, &n)
	return n
}
