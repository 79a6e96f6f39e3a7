package logging

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"testing"

	"zmailer/internal/run/assert"
)

func TestLogAttrsWritesWhatALoggerWrites(t *testing.T) {
	stamp := regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)`)
	for _, format := range []string{"text", "json", "postfix"} {
		for name, level := range map[string]slog.Level{"logged": slog.LevelInfo, "below the level": slog.LevelDebug} {
			t.Run(format+", "+name, func(t *testing.T) {
				write := func(line func(log *slog.Logger, attrs ...slog.Attr)) string {
					var out bytes.Buffer
					line(assert.Get(New(&out, format, "info", "smtpserver"))(t).With("a", 1), slog.String("id", "S7A5"), slog.Int("size", 3))
					return stamp.ReplaceAllString(out.String(), "TIME")
				}
				ours := write(func(log *slog.Logger, attrs ...slog.Attr) { LogAttrs(log, level, "accepted", attrs...) })
				theirs := write(func(log *slog.Logger, attrs ...slog.Attr) {
					log.LogAttrs(context.Background(), level, "accepted", attrs...)
				})
				assert.Equal(t, ours, theirs)
				assert.Equal(t, ours != "", level == slog.LevelInfo)
			})
		}
	}
}
