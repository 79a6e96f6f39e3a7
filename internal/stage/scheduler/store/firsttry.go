package store

import (
	"net/mail"
	"strings"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/workspec"
)

// longestWait bounds how long after a message's arrival its header may put the first attempt.
const longestWait = 30 * 24 * time.Hour

// waitForFirst records when the first attempt for a recipient may begin, as a deferral
// without an attempt, and returns it; nil: at once.
func (s *loader) waitForFirst(f *work, g *workspec.Group, r *workspec.Recipient, settings *conf.Settings, c *changes) *workspec.Event {
	at := s.notBefore(f, g, settings)
	if !at.After(f.arrival()) {
		return nil
	}
	e := workspec.DeferredEvent(s.Now(), r.Offset, 0, at, status.Code{Class: 4}, "not to be tried before "+at.UTC().Format(time.RFC1123Z))
	c.deferral(e)
	if f.wished == nil {
		f.wished = map[int64]time.Time{}
	}
	f.wished[r.Offset] = at
	return &e
}

// awayOf returns how much of a recipient's time does not count for its age, besides the time
// in removed/: time in holds, before a thaw, and before its first attempt.
func (f *work) awayOf(r *workspec.Recipient, now time.Time) time.Duration {
	if f.orders == nil && f.wished == nil {
		return 0
	}
	away := f.orders.Of(r.Offset).Away(f.arrival(), now, f.removal)
	if at, ok := f.wished[r.Offset]; ok {
		away = max(away, min(at.Sub(f.arrival()), longestWait))
	}
	return away
}

// notBefore returns when the first attempt for a group's recipients may begin, by minage and
// notbefore (Z22); zero: at once. The time until then does not count for their age. A date in
// the header that is invalid, or later than longestWait, is logged and ignored.
func (s *loader) notBefore(f *work, g *workspec.Group, settings *conf.Settings) time.Time {
	at := time.Time{}
	if settings.MinAge > 0 {
		at = f.arrival().Add(settings.MinAge)
	}
	if settings.NotBefore == "" {
		return at
	}
	for _, field := range envelope.Fields(f.header(g)) {
		if !strings.EqualFold(field.Name, settings.NotBefore) {
			continue
		}
		date, err := mail.ParseDate(field.Value())
		switch {
		case err != nil:
			s.Log.Warn("date-ignored", "id", f.id, "name", f.Name, "field", field.Name, "value", Cut(field.Value()), "reason", "not a date")
		case date.Sub(f.arrival()) > longestWait:
			s.Log.Warn("date-ignored", "id", f.id, "name", f.Name, "field", field.Name, "value", Cut(field.Value()),
				"reason", "more than 30 days after the message's arrival")
		case date.After(at) && date.After(f.arrival()):
			at = date
		}
		break
	}
	return at
}
