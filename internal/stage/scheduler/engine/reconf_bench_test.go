package engine

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

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
			e := newEngine(Config{Conf: mustConf(b, before), Dir: dir, Log: slog.New(slog.DiscardHandler)}, box.PO)
			e.clock.tick()
			for i := range 100_000 {
				m := &thread.Message{Number: uint64(i + 1), Stamp: e.now.UnixNano(), Open: 1, Total: 1}
				m.SetName(fmt.Sprint(i+1, "-1"))
				e.messages.put(m)
				e.placement.place(m, []store.Waiting{{Offset: 10, Channel: "smtp", Host: fmt.Sprintf("host%d.example", i%10_000), Address: "x@h",
					Attempts: i % 2, Next: e.now.Add(time.Duration(i%2) * time.Minute)}})
			}
			b.ResetTimer()
			for i := range b.N {
				e.reconfiguration.reconfigure(mustConf(b, []string{after, before}[i%2]), "asked")
			}
		})
	}
}
