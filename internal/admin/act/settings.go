package act

import (
	"errors"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/run/config"
)

// defaultKeep is the default of REMOVEDKEEP.
const defaultKeep = 3 * 24 * time.Hour

// Keep returns how long removed messages and the log of operations are kept.
func Keep(settings *config.Config) (time.Duration, error) {
	return settings.Duration("REMOVEDKEEP", defaultKeep)
}

// ParseUntil reads the end of a hold or a suspension: a time from now, a date, or a time of
// day, which is the next one; "" is none.
func ParseUntil(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := selector.Time(s); err == nil {
		if d <= 0 {
			return now, errors.New(s + ": it would end at once")
		}
		return now.Add(d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			if !t.After(now) {
				return t, errors.New(s + ": it is in the past")
			}
			return t, nil
		}
	}
	if t, err := time.ParseInLocation("15:04", s, time.Local); err == nil {
		at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), 0, 0, time.Local)
		if !at.After(now) {
			at = time.Date(now.Year(), now.Month(), now.Day()+1, t.Hour(), t.Minute(), 0, 0, time.Local)
		}
		return at, nil
	}
	return time.Time{}, errors.New(s + ": invalid time; write 2h, 3d, 18:00 or 2026-11-22T06:00")
}
