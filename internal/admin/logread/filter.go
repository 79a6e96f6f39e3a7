package logread

import (
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
)

// Filter selects lines; unset fields match every line.
type Filter struct {
	IDs      []string // spool IDs: lines that name one of them, as id or elsewhere
	Events   []string // event words, * and ? in them
	Programs []string
	Level    slog.Level
	Since    time.Time
	Until    time.Time
	Match    []logging.Field // keys with values, * and ? in them; all must fit
}

// Everything returns a Filter that takes each line.
func Everything() Filter { return Filter{Level: slog.LevelDebug} }

// Takes reports whether a line is selected.
func (f *Filter) Takes(l *logging.Line) bool {
	switch {
	case l.Level < f.Level,
		!f.Since.IsZero() && l.Time.Before(f.Since),
		!f.Until.IsZero() && l.Time.After(f.Until),
		len(f.Programs) > 0 && !slices.Contains(f.Programs, l.Program),
		len(f.Events) > 0 && !slices.ContainsFunc(f.Events, func(p string) bool { return fits(p, l.Event) }),
		len(f.IDs) > 0 && !slices.ContainsFunc(l.Fields, func(a logging.Field) bool { return slices.Contains(f.IDs, a.Value) }):
		return false
	}
	return !slices.ContainsFunc(f.Match, func(m logging.Field) bool {
		return !slices.ContainsFunc(l.Fields, func(a logging.Field) bool { return a.Key == m.Key && fits(m.Value, a.Value) })
	})
}

// TakesOthers reports whether lines of other programs are selected, like those of a
// program that crashed: unless something is asked for that they cannot have.
func (f *Filter) TakesOthers() bool {
	return len(f.IDs)+len(f.Events)+len(f.Programs)+len(f.Match) == 0
}

// fits compares with a pattern; one that is no pattern fits itself. A slash is a
// character like others.
func fits(pattern, value string) bool {
	hide := strings.NewReplacer("/", "\x00")
	ok, err := path.Match(hide.Replace(pattern), hide.Replace(value))
	return ok || err != nil && pattern == value
}

// ParseTime reads a time as an operator types it: a length of time before now (90, 15m, 2h,
// 3d), a time of today (15:04, 15:04:05), a day with or without a time, RFC 3339, or
// one of now, today and yesterday.
func ParseTime(s string, now time.Time) (time.Time, error) {
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch s {
	case "now":
		return now, nil
	case "today":
		return day, nil
	case "yesterday":
		return day.AddDate(0, 0, -1), nil
	}
	if d, err := config.ParseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	for _, form := range []string{time.RFC3339Nano, "2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, form := range []string{"15:04:05", "15:04"} {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			return day.Add(t.Sub(time.Date(0, 1, 1, 0, 0, 0, 0, now.Location()))), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: it must be like 15m, 2h, 3d, 15:04, 2026-11-22, \"2026-11-22 15:04\", today or yesterday", s)
}

// ParseLevel reads a level of the log.
func ParseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug", "":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is no level: it must be debug, info, warn or error", s)
}
