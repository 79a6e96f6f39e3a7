package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/workspec"
)

// maxReported is the number of recipients in one report. More recipients make more reports, of
// which only the first returns the message.
const maxReported = 1000

// Settled is the result of Settle.
type Settled struct {
	Finished bool      // the message is gone
	Expired  int       // recipients without an agent that were given up or routed again
	Look     time.Time // when Settle has something to do again, zero if never
	Woken    bool      // a hold has ended: load the specification again
}

// Settle sends the reports that are due and removes a message whose recipients are all final
// and reported. said has replies of hosts for open recipients, by offset, that the file does
// not have.
func (s *Store) Settle(name string, said map[int64]string) (Settled, error) {
	f, err := s.open(name)
	if err != nil {
		return Settled{}, err
	}
	defer f.close()
	if f.noMessage {
		again, err := s.alone(f)
		return Settled{Finished: again == "" && err == nil}, err
	}
	if err := s.resume(f); err != nil {
		return Settled{}, err
	}
	now := s.Now()
	expired, err := s.expireUnserved(f, now)
	if err != nil {
		return Settled{}, err
	}
	gone, hold, err := s.letGo(f, now)
	if err != nil {
		return Settled{}, err
	}
	expired += gone
	a, err := s.reportEnds(f, now)
	if err != nil {
		return Settled{}, err
	}
	delays, _ := s.delays(f, now)
	if err := s.reportAll(f, delays, said); err != nil {
		return Settled{}, err
	}
	done := false
	for range endsInAll {
		if a.open > 0 {
			break
		}
		if done, err = s.finish(f); !errors.Is(err, ErrUnreported) {
			return Settled{Finished: done, Expired: expired}, err
		}
		if a, err = s.reportEnds(f, now); err != nil {
			return Settled{}, err
		}
	}
	if a.open > 0 {
		if err := f.read(); err != nil {
			return Settled{}, err
		}
		set := Settled{Expired: expired, Look: Earliest(s.nextLook(f, now, false), s.nextUnserved(f))}
		wake := time.Time{}
		wake, set.Woken = f.nextWake(now)
		set.Look = Earliest(Earliest(set.Look, wake), hold)
		return set, nil
	}
	return Settled{Expired: expired}, s.refuseEnd(f)
}

// endsInAll bounds how often the end of a message is tried when a recipient fails between the
// reports and the end, because an operator had it tried again.
const endsInAll = 3

// reporter reports to senders. A report is prepared, recorded in the specification,
// submitted and marked, in this order, so that it is sent once.
type reporter struct{ *Env }

// reportEnds reports failures and successes that are due.
func (s *reporter) reportEnds(f *work, now time.Time) (*account, error) {
	// Failures are collected for a while, so that they go into one report (M36).
	due := func(a *account) bool {
		return len(a.owed) > 0 && (a.open == 0 || !now.Before(gathered(a.first, s.Conf.Current().ReportInterval, now)))
	}
	a := s.account(f)
	if a.open == 0 && len(a.missing) > 0 {
		if err := s.explain(f); err != nil {
			return nil, err
		}
		a = s.account(f)
	}
	if !due(a) {
		return a, nil
	}
	// Operators open failed recipients again under this lock, as long as they are not reported.
	err := f.underLock(func() error {
		if a = s.account(f); due(a) {
			return s.reportAll(f, a.owed, nil)
		}
		return nil
	})
	return a, err
}

// reportAll writes one report for each kind and sender. Failures without an address for the
// report are only marked (M38).
func (s *reporter) reportAll(f *work, list []owed, said map[int64]string) error {
	key := func(o *owed) string { return o.kind + "\x00" + o.to }
	slices.SortStableFunc(list, func(a, b owed) int { return cmp.Compare(key(&a), key(&b)) })
	last := ""
	for len(list) > 0 {
		n, first := 1, key(&list[0])
		for n < len(list) && n < maxReported && key(&list[n]) == first {
			n++
		}
		var err error
		if list[0].to == "" {
			err = s.suppress(f, list[:n])
		} else {
			err = s.report(f, list[:n], said, first == last)
		}
		if err != nil {
			return err
		}
		list, last = list[n:], first
	}
	return nil
}

// suppress ends failures and successes of the null sender: a report of a report
// would never end (RFC 5321 §6.1).
func (s *reporter) suppress(f *work, list []owed) error {
	copied := "no"
	if s.Conf.Current().CopyUndeliverable && list[0].kind == report.Failed {
		if err := s.PostOffice.Queue.CopyToPostman(f.Name, "undeliverable"); err != nil {
			return err
		}
		copied = "postman"
	}
	for i := range list {
		s.Log.Warn("report-suppressed", "id", f.id, "name", f.Name, "rcpt", list[i].r.Address,
			"status", list[i].d.Notary.Status, "reply", list[i].d.Notary.Diagnostic, "copy", copied,
			"reason", "the message has the null sender")
	}
	return s.mark(f, list)
}

// report reports recipients of one kind to one sender: it is prepared in public/, recorded in
// the specification, submitted, and marked. resumeReports completes it after a crash between
// two steps. further: it follows another report to the same sender.
func (s *reporter) report(f *work, list []owed, said map[int64]string, further bool) error {
	file, err := s.prepare(f, list, said, further)
	if err != nil {
		return fmt.Errorf("report on %s: %w", f.Name, err)
	}
	now := s.Now()
	offsets := make([]string, len(list))
	for i := range list {
		offsets[i] = strconv.FormatInt(list[i].r.Offset, 10)
	}
	line := workspec.AppendEvent(nil, &workspec.Event{Time: now, Event: workspec.EventReport, Attrs: []workspec.Attr{
		{Key: "file", Value: file}, {Key: "kind", Value: list[0].kind}, {Key: "rcpts", Value: strings.Join(offsets, ",")}}})
	// Crash: a report in public/ without execute bit that nothing names, swept away
	// when it is old; the next try writes another.
	if err := f.Append(line); err != nil {
		return errors.Join(err, s.PostOffice.Submissions.DropPrepared(file))
	}
	// Crash: as before, or the name of the report is recorded and it is in public/.
	if err := f.Sync(); err != nil {
		return err
	}
	// Crash: see SubmitPrepared: in public/ and submitted again, or in router/.
	a, err := s.submitReport(file)
	if err != nil && !errors.Is(err, postoffice.ErrGone) {
		return err
	}
	err = s.mark(f, list)
	s.Meters.Reports.With(list[0].kind).Add(1)
	s.emit(events.Reported, "id", f.id, "name", f.Name, "kind", list[0].kind, "rcpt", list[0].to, "recipients", len(list), "report", a.ID)
	return err
}

// mark marks the d lines as reported.
func (s *reporter) mark(f *work, list []owed) error {
	for i := range list {
		if list[i].d == nil {
			continue
		}
		// Crash: marked or not; the recorded report shows that it was submitted.
		if err := f.SetTag([]byte{byte(workspec.TagOK)}, workspec.DiagnosticTagOffset(list[i].d.LineOffset)); err != nil {
			return err
		}
	}
	return nil
}

// resumeReports completes recorded reports: those still in public/ are submitted; others
// were.
func (s *reporter) resumeReports(f *work) error {
	list := unmarkedReports(f.spec)
	for _, e := range list {
		file := e.Get("file")
		a, err := s.submitReport(file)
		switch {
		case err == nil:
			s.Log.Warn("recovered", "id", f.id, "name", f.Name, "action", "report", "report", a.ID, "file", file)
		case !errors.Is(err, postoffice.ErrGone):
			return err
		}
		for _, d := range covered(f.spec, e) {
			// Crash: see mark.
			if err := f.SetTag([]byte{byte(workspec.TagOK)}, workspec.DiagnosticTagOffset(d.LineOffset)); err != nil {
				return err
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	return f.read()
}

// prepare writes the report's message file and returns its name in public/.
func (s *reporter) prepare(f *work, list []owed, said map[int64]string, further bool) (file string, err error) {
	draft, err := s.PostOffice.Submissions.NewDraft("report")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, draft.Abort())
		}
	}()
	to := []envelope.Recipient{{Address: list[0].to}}
	if c := s.Conf.Current().Reports.CopyTo; c != "" && c != list[0].to && list[0].kind == report.Failed {
		to = append(to, envelope.Recipient{Address: c})
	}
	head, err := envelope.Append(nil, &envelope.Envelope{ErrorMsg: true, HasFrom: true, Recipients: to})
	if err != nil {
		return "", err
	}
	if _, err := draft.Write(head); err != nil {
		return "", err
	}
	if err := s.compose(f, list, said, further, draft.Name()).Write(draft); err != nil {
		return "", err
	}
	// Crash: see Prepare: nothing refers to the file yet.
	return draft.Name(), draft.Prepare()
}

// compose collects the values of a report. said has replies of hosts by offset.
func (s *reporter) compose(f *work, list []owed, said map[int64]string, further bool, name string) *report.Report {
	first, current, site := &list[0], s.Conf.Current(), s.current()
	rep := &report.Report{
		Kind: first.kind, Header: f.header(first.g), EnvID: first.r.EnvID, Ret: first.r.Ret, Returned: further, Conf: &current.Reports,
		Head: dsn.Report{ReportingMTA: site.Hostname, From: site.Postmaster, To: first.to, MessageID: "<" + name + "@" + site.Hostname + ">",
			Date: s.Now(), Arrival: f.arrival()},
		Open: f.message,
		Trouble: func(language, kind string, err error) {
			s.Log.Warn("report-text", "id", f.id, "name", f.Name, "file", "reports/"+language+"/"+kind, "reason", err.Error(),
				"advice", "the built-in text was used; correct this one")
		},
	}
	if !f.noMessage {
		rep.Head.SpoolID = f.id.String()
	}
	for i := range list {
		o := &list[i]
		if o.kind != report.Delayed {
			rep.Recipients = append(rep.Recipients, report.Final(o.r, o.d))
			continue
		}
		p := report.Delay(o.r, o.last, said[o.r.Offset])
		if c := current.Match(o.r.Channel, o.r.Host); c != nil && c.Expiry > 0 {
			p.WillRetryUntil = f.begun(o.r, s.Now()).Add(c.Expiry)
		}
		rep.Recipients = append(rep.Recipients, p)
	}
	return rep
}

// message opens the message, for a report that returns it; nil: its file is gone.
func (f *work) message() (*report.Message, error) {
	file, info, err := f.OpenMessage()
	if errors.Is(err, postoffice.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &report.Message{ReaderAt: file, Closer: file, Size: info.Size, Body: f.spec.BodyOffset}, nil
}

// resume ends what a crash interrupted between a decision and what follows it.
func (s *reporter) resume(f *work) error {
	if len(operations.Pending(f.spec)) > 0 {
		if err := f.underLock(func() error { return s.resumeReroutes(f) }); err != nil {
			return err
		}
	}
	return s.resumeReports(f)
}

// resumeReroutes submits the copies of rerouted recipients that their event names, and
// marks them. The caller holds the specification's flock.
func (s *reporter) resumeReroutes(f *work) error {
	list, err := operations.Resume(f.Spec, f.spec, s.submitPrepared)
	for _, r := range list {
		s.Log.Warn("recovered", "id", f.id, "name", f.Name, "action", "copy", "file", r.File, "copy", r.To, "recipients", len(r.Recipients))
	}
	if err != nil || len(list) == 0 {
		return err
	}
	return f.read()
}

// nextWake is when the first hold that is under way ends. woken: one has ended, and its
// recipient was not tried since.
func (f *work) nextWake(now time.Time) (next time.Time, woken bool) {
	if f.orders == nil {
		return time.Time{}, false
	}
	last := lastDeferrals(f.spec)
	for _, r := range f.spec.All() {
		o := f.orders.Of(r.Offset)
		if r.Tag != workspec.TagToDo || o.Hold == nil || o.Freeze != nil || o.Until.IsZero() {
			continue
		}
		if o.Held(now) {
			next = Earliest(next, o.Until)
		} else if e := last[r.Offset]; e == nil || e.Time.Before(o.Until) {
			woken = true
		}
	}
	return next, woken
}
