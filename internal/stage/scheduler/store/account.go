package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/workspec"
)

// owed is a recipient that is to be reported to its sender.
type owed struct {
	g    *workspec.Group
	r    *workspec.Recipient
	d    *workspec.Diagnostic // of a failure or success
	last *workspec.Event      // last deferral, of a delay; may be nil
	kind string
	to   string // address of the report; "": there is none
}

// account is what a specification owes its senders.
type account struct {
	open    int    // recipients without a final tag
	owed    []owed // failures and successes that are not reported yet
	missing []owed // failures that are to be reported and that no diagnostic speaks of
	first   time.Time
}

// account reads tags and diagnostics. For a final recipient the last diagnostic that agrees
// with the tag counts; others are of attempts that a crash interrupted, or of ends that an
// operator undid. Diagnostics of open recipients wait. A recipient whose diagnostic is marked
// has been reported.
func (s *reporter) account(f *work) *account {
	a := &account{}
	about := f.diagnostics()
	for g, r := range f.spec.All() {
		if !final(r.Tag) {
			a.open++
			continue
		}
		kind := report.Failed
		if r.Tag == workspec.TagOK {
			kind = report.Delivered
		}
		if !report.Wanted(r, kind) {
			continue
		}
		removed := f.removal.Removed(r)
		switch d := about.of(r, kind); {
		case removed && d != nil && d.Notary.Agent != operations.Agent:
			// Of an attempt that a crash interrupted, before the operator removed the recipient.
		case d == nil && kind == report.Failed && !removed:
			a.missing = append(a.missing, owed{g: g, r: r, kind: kind})
		case d != nil && !d.Reported:
			a.add(owed{g: g, r: r, d: d, kind: kind, to: f.reportTo(g)})
		}
	}
	return a
}

func (a *account) add(o owed) {
	if a.first.IsZero() || o.d.Time.Before(a.first) {
		a.first = o.d.Time
	}
	a.owed = append(a.owed, o)
}

// reportTo returns the address for reports on a group: its sender, or the error address if
// the specification has only others or the sender's cannot be parsed. "": the null sender, or
// no address can be parsed.
func (f *work) reportTo(g *workspec.Group) string {
	sender, err := address.Parse(g.Sender.Address)
	if err == nil && sender.IsNull() || g.Sender.Channel == builtin.Error {
		return ""
	}
	first := ""
	for _, e := range f.spec.ErrorTo {
		m, perr := address.Parse(e)
		if perr != nil || m.IsNull() {
			continue
		}
		if err == nil && m == sender {
			return sender.String()
		}
		if first == "" {
			first = m.String()
		}
	}
	if first == "" && err == nil {
		first = sender.String()
	}
	return first
}

// delays returns the open recipients whose delay is to be reported now, and when to check
// again.
func (s *reporter) delays(f *work, now time.Time) (due []owed, next time.Time) {
	reported, last := delaysReported(f.spec), lastDeferrals(f.spec)
	// Neighbours mostly have the same clause.
	var of *workspec.Group
	var like *workspec.Recipient
	var to string
	var times []time.Duration
	for g, r := range f.spec.All() {
		if final(r.Tag) || !report.Wanted(r, report.Delayed) || f.orders.Waits(r, now) {
			continue // an operator has it wait: that is not reported
		}
		if g != of {
			of, to = g, f.reportTo(g)
		}
		if to == "" {
			continue
		}
		if like == nil || like.Channel != r.Channel || like.Host != r.Host {
			like, times = r, s.reportTimes(r)
		}
		for _, age := range times {
			at := f.begun(r, now).Add(age)
			switch {
			case at.After(now):
				if next.IsZero() || at.Before(next) {
					next = at
				}
			case !reported[r.Offset].Before(at.Truncate(time.Millisecond)): // as the history has it
				continue
			case last[r.Offset] == nil && now.Before(s.Started.Add(firstTries)) && !now.Before(s.Started):
				// It waited while no scheduler ran, and is likely to be delivered in a moment.
				if at := s.Started.Add(firstTries); next.IsZero() || at.Before(next) {
					next = at
				}
			default:
				if len(due) == 0 || due[len(due)-1].r != r {
					due = append(due, owed{g: g, r: r, last: last[r.Offset], kind: report.Delayed, to: to})
				}
				continue
			}
			break
		}
	}
	// Z19: for automatic mail failures are enough (RFC 3834 section 2).
	due = slices.DeleteFunc(due, func(o owed) bool { return report.Automatic(f.header(o.g)) })
	return due, next
}

// begun returns when a recipient's age begins: at the message's arrival, plus the time that
// does not count for its age.
func (f *work) begun(r *workspec.Recipient, now time.Time) time.Time {
	return f.arrival().Add(f.away() + f.awayOf(r, now))
}

// firstTries is how long after the start delays of untried recipients are not reported.
const firstTries = 5 * time.Minute

func (s *Env) reportTimes(r *workspec.Recipient) []time.Duration {
	if c := s.Conf.Current().Match(r.Channel, r.Host); c != nil {
		return c.ReportTimes
	}
	return conf.Defaults().ReportTimes
}

// header returns a group's header block.
func (f *work) header(g *workspec.Group) []byte {
	if g.HeaderEnd < g.HeaderOffset || g.HeaderEnd > int64(len(f.raw)) {
		return nil
	}
	return f.raw[g.HeaderOffset:g.HeaderEnd]
}

// nextLook returns when Settle has something to do: now, later or, zero, never. loaded: the
// file may contain the unfinished work of another process.
func (s *reporter) nextLook(f *work, now time.Time, loaded bool) time.Time {
	a := s.account(f)
	if a.open == 0 || loaded && len(unmarkedReports(f.spec)) > 0 {
		return now
	}
	due, next := s.delays(f, now)
	if len(due) > 0 {
		return now
	}
	if len(a.owed) > 0 {
		if at := gathered(a.first, s.Conf.Current().ReportInterval, now); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

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
	for _, r := range f.spec.All() {
		if f.tagOf(r) == workspec.TagFailed && !f.removal.Removed(r) && about.of(r, report.Failed) == nil {
			if m == nil {
				m = map[int64]bool{}
			}
			m[r.Offset] = true
		}
	}
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

// unreported returns the recipients that have failed, whose sender wants a report and has
// none. The question is not asked of what account has made of the file, but of each
// recipient.
func (f *work) unreported() (list []*workspec.Recipient) {
	about := f.diagnostics()
	for _, r := range f.spec.All() {
		if r.Tag != workspec.TagFailed || f.removal.Removed(r) || !report.Wanted(r, report.Failed) {
			continue
		}
		if d := about.of(r, report.Failed); d == nil || !d.Reported {
			list = append(list, r)
		}
	}
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
