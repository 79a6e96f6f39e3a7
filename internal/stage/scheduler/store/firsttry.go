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

// longestWait bounds how far behind a message's arrival its header may put the first
// attempt.
const longestWait = 30 * 24 * time.Hour

// waitForFirst writes down when the first attempt for a recipient may begin, as a deferral
// without an attempt, and gives that; nil: at once.
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

// awayOf is how much of a recipient's time does not make it older, beside what its
// message was removed for: in holds, before a thaw, until it was wanted.
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

// notBefore is when the first attempt for a group's recipients may begin, by minage and
// notbefore (Z22); zero: at once. The time until then does not count for their age. What
// the header says is a wish: a date that cannot be read, or that is farther away than a
// sender may ask for, is logged and means nothing.
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
			s.Log.Warn("date-ignored", "id", f.id, "name", f.Name, "field", field.Name, "value", Cut(field.Value()), "reason", "it is no date")
		case date.Sub(f.arrival()) > longestWait:
			s.Log.Warn("date-ignored", "id", f.id, "name", f.Name, "field", field.Name, "value", Cut(field.Value()),
				"reason", "it is more than 30 days behind the message's arrival")
		case date.After(at) && date.After(f.arrival()):
			at = date
		}
		break
	}
	return at
}
