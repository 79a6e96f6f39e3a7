package store

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/workspec"
)

// ErrUnreported means that all recipients of a message are final, and the report of a failed
// one is missing. The files stay where they are.
var ErrUnreported = errors.New("a failed recipient is not reported")

// about is the diagnostics of each recipient.
type about struct {
	by    map[int64][]*workspec.Diagnostic // by offset, in the file's order
	since map[int64]int64                  // see work.reopenedAt
}

func (f *work) diagnostics() about {
	if len(f.spec.Diagnostics) == 0 {
		return about{}
	}
	a := about{by: make(map[int64][]*workspec.Diagnostic, len(f.spec.Diagnostics)), since: f.reopenedAt()}
	for i := range f.spec.Diagnostics {
		d := &f.spec.Diagnostics[i]
		a.by[d.Of] = append(a.by[d.Of], d)
	}
	return a
}

// of returns the diagnostic of a kind that counts for a recipient: a reported one if there is
// one, else the last. nil: none.
func (a *about) of(r *workspec.Recipient, kind string) (counts *workspec.Diagnostic) {
	for _, d := range a.by[r.Offset] {
		if report.KindOf(d) != kind || d.LineOffset <= a.since[r.Offset] {
			continue
		}
		if counts = d; d.Reported {
			break
		}
	}
	return counts
}

// reopenedAt returns, for each recipient that was opened again, the offset of the last line about
// that: no earlier diagnostic counts. It is computed once for each reading of the file.
func (f *work) reopenedAt() map[int64]int64 {
	if f.reopensOf != f.spec {
		f.reopens, f.reopensOf = reopened(f.spec), f.spec
	}
	return f.reopens
}

// undiagnosed returns the failed recipients without a diagnostic: an agent has
// written none, or none that can be read, or it died, or we did, between tag and line.
// Those that an operator removed have none.
func undiagnosed(f *work) map[int64]bool {
	var m map[int64]bool
	about := f.diagnostics()
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if f.tagOf(r) == workspec.TagFailed && !f.removal.Removed(r) && about.of(r, report.Failed) == nil {
			if m == nil {
				m = map[int64]bool{}
			}
			m[r.Offset] = true
		}
	})
	return m
}

// diagnose writes the diagnostic that a failed recipient lacks: with the last answer of an
// earlier attempt, if there was one.
func (c *changes) diagnose(g *workspec.Group, r *workspec.Recipient, last *workspec.Event, now time.Time) {
	n, text := failure(status.Code{Class: 5}, "failed; its agent left no reason"), ""
	if last != nil {
		text = last.Text
		report.LastAnswer(&n, last, text)
	}
	c.diagnostic(g, r, now, n, text)
	// The tag is set already: the line must become durable.
	c.sync = true
}

// explain writes the diagnostics that failed recipients lack, for the report that a
// message must not end without: a generic text is better than none.
func (s *reporter) explain(f *work) error {
	return f.underLock(func() error {
		var c changes
		now, last := s.Now(), lastDeferrals(f.spec)
		for _, o := range s.account(f).missing {
			s.Log.Warn("undiagnosed", "id", f.id, "name", f.Name, "rcpt", o.r.Address, "channel", o.r.Channel, "host", o.r.Host,
				"reason", "the transport agent left no readable diagnostic; the report has none")
			c.diagnose(o.g, o.r, last[o.r.Offset], now)
		}
		// Crash: without the lines they are missing as before; with them they are reported.
		if err := c.write(f); err != nil {
			return err
		}
		return f.read()
	})
}

// unreported are the recipients that have failed, whose sender wants a report and has none.
// The question is not asked of what account has made of the file, but of each recipient.
func (f *work) unreported() (list []*workspec.Recipient) {
	about := f.diagnostics()
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if r.Tag != workspec.TagFailed || f.removal.Removed(r) || !report.Wanted(r, report.Failed) {
			return
		}
		if d := about.of(r, report.Failed); d == nil || !d.Reported {
			list = append(list, r)
		}
	})
	return list
}

// refuseEnd records in the message's history that it does not end, and why.
func (s *reporter) refuseEnd(f *work) error {
	list := f.unreported()
	if len(list) == 0 {
		return nil
	}
	offsets, addresses := make([]string, len(list)), make([]string, len(list))
	for i, r := range list {
		offsets[i], addresses[i] = strconv.FormatInt(r.Offset, 10), r.Address
	}
	rcpts, err := strings.Join(offsets, ","), error(nil)
	// It is there already when it was refused in an earlier life.
	if n := len(f.spec.History); n == 0 || f.spec.History[n-1].Event != workspec.EventUnreported || f.spec.History[n-1].Get("rcpts") != rcpts {
		line := workspec.AppendEvent(nil, &workspec.Event{Time: s.Now(), Event: workspec.EventUnreported,
			Attrs: []workspec.Attr{{Key: "rcpts", Value: rcpts}},
			Text:  "all recipients are final, and these failures are not reported: " + strings.Join(addresses[:min(len(addresses), 10)], ", ")})
		// Crash: the line or none; the next start finds the same.
		err = f.Append(line)
	}
	return cmp.Or(err, fmt.Errorf("end %s: %w: %s", f.Name, ErrUnreported, strings.Join(addresses[:min(len(addresses), 10)], ", ")))
}
