package engine

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// deep is an engine that has read so many specifications, for 10,000 hosts, all of
// which are due in ten hours.
func deep(b testing.TB, n int) *engine { return grow(b, n, func(int) {}) }

// grow is deep that calls each before each message.
func grow(b testing.TB, n int, each func(i int)) *engine {
	r := newRig(b, scriptConf("", ""), 0, nil)
	r.config.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	e := newEngine(r.config, r.PO)
	e.clock.tick()
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

// BenchmarkDepth is what a message costs the engine, without disk and agents, that
// comes, is delivered and goes while so many others wait.
func BenchmarkDepth(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			e := deep(b, n)
			ring := e.reconfiguration.ring("smtp", "fresh")
			runtime.GC()
			b.ReportAllocs()
			for b.Loop() {
				m := e.read(n, "fresh", time.Time{})
				v := e.core.Take(ring, e.now)
				v.Recipients()[0].Result = thread.Delivered
				e.core.End(v, thread.HostWait{}, e.now)
				e.ends.forget(m)
			}
		})
	}
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
