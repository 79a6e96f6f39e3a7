package metrics

import (
	"context"
	"log/slog"
	"strings"
)

// Log returns a log whose lines of level info and above are counted by their event word and
// level, also those that LOGLEVEL keeps out of it. Without a Set it is log.
func (s *Set) Log(log *slog.Logger) *slog.Logger {
	if s == nil {
		return log
	}
	c := &counted{Handler: log.Handler(),
		events: s.Counter("zmailer_log_events_total",
			"Events of the log, whether LOGLEVEL lets them be written or not; docs/log.md has each.", "event", "level"),
		lines: s.Counter("zmailer_log_lines_total", "The same by level alone.", "level")}
	for _, l := range []slog.Level{slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		c.lines.With(levelOf(l)) // is there with 0: the first one is a rise, too
	}
	return slog.New(c)
}

// counted counts the lines of a log.
type counted struct {
	slog.Handler
	events, lines *Counters
}

func (c *counted) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || c.Handler.Enabled(ctx, level)
}

func (c *counted) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		level := levelOf(r.Level)
		c.events.With(r.Message, level).Add(1)
		c.lines.With(level).Add(1)
	}
	if !c.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

func levelOf(l slog.Level) string {
	switch l {
	case slog.LevelInfo:
		return "info"
	case slog.LevelWarn:
		return "warn"
	case slog.LevelError:
		return "error"
	}
	return strings.ToLower(l.String())
}

func (c *counted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &counted{c.Handler.WithAttrs(attrs), c.events, c.lines}
}

func (c *counted) WithGroup(name string) slog.Handler {
	return &counted{c.Handler.WithGroup(name), c.events, c.lines}
}
