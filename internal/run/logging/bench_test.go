package logging

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// BenchmarkLine writes the scheduler's line of a delivery.
func BenchmarkLine(b *testing.B) {
	for _, format := range []string{"text", "json"} {
		b.Run(format, func(b *testing.B) {
			log := assert.Get(New(io.Discard, format, "info", "scheduler"))(b)
			b.ReportAllocs()
			for range b.N {
				LogAttrs(log, slog.LevelInfo, "delivered", slog.String("id", "S9978195A28Cb3lTyDjf"), slog.String("name", "9978195-19115"),
					slog.String("rcpt", "ann@far.example"), slog.String("channel", "smtp"), slog.String("host", "[127.0.0.1]:2626"),
					slog.String("status", "2.0.0"), slog.String("reply", "250 2.0.0 taken as 1"), slog.Int("attempt", 1),
					slog.Duration("routing", 3*time.Millisecond), slog.Duration("queue", time.Millisecond), slog.Duration("took", 11*time.Millisecond))
			}
		})
	}
}
