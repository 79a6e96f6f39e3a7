package engine

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
)

// deep returns an engine that has read so many specifications, for 10,000 hosts, all of
// which are due in ten hours.
func deep(b testing.TB, n int) *engine { return grow(b, n, func(int) {}) }

// grow is deep that calls each before each message.
func grow(b testing.TB, n int, each func(i int)) *engine {
	box, dir := diskBox(b)
	e := newStepped(b, box, dir, func(c *Config) { c.Log = slog.New(slog.DiscardHandler) })
	for i := range n {
		each(i)
		e.read(i, fmt.Sprintf("host%d.example", i%10_000), e.now.Add(10*time.Hour))
	}
	return e
}

// read takes in what a specification with one recipient says.
func (e *engine) read(i int, host string, next time.Time) *thread.Message {
	number := uint64(i + 1_000_000)
	name := fmt.Sprint(number)
	e.intake.loaded(name, &store.Loaded{Conf: e.spool.Conf.Current(), Name: name, Number: number, Total: 1, Owes: true,
		ID: postoffice.SpoolID{Ino: number, MTime: e.now.UnixNano()},
		Open: []store.Waiting{{Offset: 100, Channel: "smtp", Host: host, Address: fmt.Sprintf("user%d@%s", i, host),
			Attempts: 1, Next: next}}}, nil)
	return e.messages.get(number)
}

// BenchmarkTurns is the longest turn of everything that has to do with the whole
// queue, of a million messages: each metric is one turn.
func BenchmarkTurns(b *testing.B) {
	const n = 1_000_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	e := deep(b, n)
	runtime.GC()
	runtime.ReadMemStats(&after)
	longest := map[string]time.Duration{}
	turn := func(what string, fn func()) {
		began := time.Now()
		fn()
		longest[what] = max(longest[what], time.Since(began))
	}
	for b.Loop() {
		for part := 0; part < tableParts; {
			turn("look", func() { part = e.scanner.unseen(0, part) })
		}
		turn("etrn", func() { e.Kick("host77.example", func(int) {}) })
		turn("clock-set", func() { e.clock.shift(time.Hour) })
		e.now = e.now.Add(time.Hour)
	}
	e.now = e.now.Add(11 * time.Hour)
	for next := e.core.Next(); !next.IsZero() && !next.After(e.now); next = e.core.Next() {
		turn("all-due", func() { e.core.Advance(e.now) })
	}
	for i := n; i < n+100_000; i++ {
		turn("read", func() { e.read(i, "fresh", e.now.Add(time.Hour)) })
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/message")
	for what, d := range longest {
		b.ReportMetric(d.Seconds()*1e3, "ms-"+what)
	}
}

// BenchmarkList is what a list's specification of 100,000 recipients costs the scheduler:
// to read it, to make threads of it, and to end one host's after the other. The metrics
// are of the processor, not of the clock.
func BenchmarkList(b *testing.B) {
	const n = 100_000
	for _, hosts := range []int{1, 10_000, n} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			box, dir := diskBox(b)
			list := make([]storetest.Rcpt, n)
			for i := range list {
				list[i].Line = fmt.Sprintf("smtp h%d.example user%d@h%d.example", i%hosts, i, i%hosts)
			}
			name := box.Queue("owner-list@mx.example", list...)
			e := newStepped(b, box, dir, func(c *Config) { c.Log = slog.New(slog.DiscardHandler) })
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
				m := e.messages.get(numberOf(name))
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

// processor returns what this process has had of the processors.
func processor() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func numberOf(name string) uint64 {
	n, _ := postoffice.ParseName(name)
	return n.Ino
}

// BenchmarkReconfigure measures how long the engine is busy with a new scheduler.conf over
// 100,000 messages to 10,000 hosts, which is what deliveries wait for.
func BenchmarkReconfigure(b *testing.B) {
	const before = "*/* interval=1m expiry=3d maxthr=5\nsmtp/*\n\tcommand=\"ta $channel\"\n"
	for name, after := range map[string]string{
		"nothing":  "# another text\n" + before,
		"policy":   strings.Replace(before, "expiry=3d", "expiry=2d", 1),
		"new ring": strings.Replace(before, "smtp/*\n", "smtp/host?*\n", 1),
	} {
		b.Run(name, func(b *testing.B) {
			box, dir := diskBox(b)
			e := newStepped(b, box, dir, func(c *Config) { c.Conf, c.Log = mustConf(b, before), slog.New(slog.DiscardHandler) })
			for i := range 100_000 {
				m := &thread.Message{Number: uint64(i + 1), Stamp: e.now.UnixNano(), Open: 1, Total: 1}
				m.SetName(fmt.Sprint(i+1, "-1"))
				e.messages.put(m)
				e.placement.place(m, []store.Waiting{{Offset: 10, Channel: "smtp", Host: fmt.Sprintf("host%d.example", i%10_000), Address: "x@h",
					Attempts: i % 2, Next: e.now.Add(time.Duration(i%2) * time.Minute)}})
			}
			e.reconfiguration.serveOn = func(string) {}
			b.ResetTimer()
			for i := range b.N {
				e.reconfiguration.reconfigure(&Renewal{Conf: mustConf(b, []string{after, before}[i%2])})
			}
		})
	}
}
