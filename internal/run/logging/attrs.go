package logging

import (
	"context"
	"log/slog"
	"time"
)

// LogAttrs logs as log's own LogAttrs does, but does not look up its caller, which no handler of
// ours shows and which costs a third of the line: for the lines that each message has.
func LogAttrs(log *slog.Logger, level slog.Level, event string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !log.Enabled(ctx, level) {
		return
	}
	r := slog.NewRecord(time.Now(), level, event, 0)
	r.AddAttrs(attrs...)
	_ = log.Handler().Handle(ctx, r) // as a Logger does: there is nowhere to report an error
}
