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
	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// maxTold is how many recipients one report tells of. More make more reports, of
// which only the first returns the message.
const maxTold = 1000

// Settled is what Settle found.
type Settled struct {
	Finished bool      // the message is gone
	Expired  int       // recipients that no agent serves and that were given up or routed again
	Look     time.Time // when Settle has something to do again, zero if never
	Woken    bool      // a hold has ended: the specification is to be read again
}

// Settle reports what is due and removes a message whose recipients are all final
// and reported. said is what is known of open recipients, by offset, that the file
// does not hold.
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

// endsInAll is how often the end of a message is tried when a failure has come between its
// reports and its end: an operator had a recipient tried again, and it has failed again.
const endsInAll = 3

// reportEnds reports failures and successes that are due.
func (s *Store) reportEnds(f *work, now time.Time) (*account, error) {
	// Failures are gathered for a while, so that they go in one report (M36).
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
	// Under this lock a person opens again what has failed, as long as nobody was told.
	err := f.underLock(func() error {
		if a = s.account(f); due(a) {
			return s.reportAll(f, a.owed, nil)
		}
		return nil
	})
	return a, err
}

// reportAll writes one report for each kind and sender. Failures that nobody can be
// told of are only marked (M38).
func (s *Store) reportAll(f *work, list []owed, said map[int64]string) error {
	key := func(o *owed) string { return o.kind + "\x00" + o.to }
	slices.SortStableFunc(list, func(a, b owed) int { return cmp.Compare(key(&a), key(&b)) })
	last := ""
	for len(list) > 0 {
		n, first := 1, key(&list[0])
		for n < len(list) && n < maxTold && key(&list[n]) == first {
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
func (s *Store) suppress(f *work, list []owed) error {
	copied := "no"
	if s.Conf.Current().CopyUndeliverable && list[0].kind == kindFailed {
		if err := s.PostOffice.Queue.CopyToPostman(f.Name, "undeliverable"); err != nil {
			return err
		}
		copied = "postman"
	}
	for i := range list {
		s.Log.Warn("report-suppressed", "id", f.id, "name", f.Name, "rcpt", list[i].r.Address,
			"status", list[i].d.Notary.Status, "reply", list[i].d.Notary.Diagnostic, "copy", copied,
			"reason", "the message has no sender to tell")
	}
	return s.mark(f, list)
}

// report tells one sender of recipients of one kind: prepared in public/, recorded
// in the specification, submitted, marked. A crash between any two steps is taken up
// by resumeReports. further: it follows one to the same sender, of other recipients.
func (s *Store) report(f *work, list []owed, said map[int64]string, further bool) error {
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
	s.Log.Info("report", "id", f.id, "name", f.Name, "kind", list[0].kind, "rcpt", list[0].to, "recipients", len(list), "report", a.ID)
	return err
}

// mark notes on the d lines that their report is on its way.
func (s *Store) mark(f *work, list []owed) error {
	for i := range list {
		if list[i].d == nil {
			continue
		}
		// Crash: marked or not; the recorded report tells that it was submitted.
		if err := f.SetTag([]byte{byte(workspec.TagOK)}, workspec.DiagnosticTagOffset(list[i].d.LineOffset)); err != nil {
			return err
		}
	}
	return nil
}

// unmarked are the report events whose diagnostics are not all marked: reports that
// a crash interrupted. That of a delay has none and always counts.
func (f *work) unmarked() []*workspec.Event {
	var list []*workspec.Event
	for i := range f.spec.History {
		e := &f.spec.History[i]
		if e.Event != workspec.EventReport {
			continue
		}
		if e.Get("kind") != kindDelayed && len(f.covered(e)) == 0 {
			continue
		}
		list = append(list, e)
	}
	return list
}

// covered are the diagnostics that a report event speaks of and that are not marked.
func (f *work) covered(e *workspec.Event) []*workspec.Diagnostic {
	var list []*workspec.Diagnostic
	offsets := map[int64]bool{}
	for _, off := range e.Recipients() {
		offsets[off] = true
	}
	for i := range f.spec.Diagnostics {
		d := &f.spec.Diagnostics[i]
		if !d.Reported && d.LineOffset < e.LineOffset && kindOf(d) == e.Get("kind") && offsets[d.Of] {
			list = append(list, d)
		}
	}
	return list
}

// resumeReports ends reports that were recorded: still in public/, they are
// submitted; no longer there, they were.
func (s *Store) resumeReports(f *work) error {
	list := f.unmarked()
	for _, e := range list {
		file := e.Get("file")
		a, err := s.submitReport(file)
		switch {
		case err == nil:
			s.Log.Warn("recovered", "id", f.id, "name", f.Name, "action", "report", "report", a.ID, "file", file)
		case !errors.Is(err, postoffice.ErrGone):
			return err
		}
		for _, d := range f.covered(e) {
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

// prepare writes the report's message file and gives its name in public/.
func (s *Store) prepare(f *work, list []owed, said map[int64]string, further bool) (file string, err error) {
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
	if c := s.Conf.Current().Reports.CopyTo; c != "" && c != list[0].to && list[0].kind == kindFailed {
		to = append(to, envelope.Recipient{Address: c})
	}
	head, err := envelope.Append(nil, &envelope.Envelope{ErrorMsg: true, HasFrom: true, Recipients: to})
	if err != nil {
		return "", err
	}
	if _, err := draft.Write(head); err != nil {
		return "", err
	}
	rep := &dsn.Report{
		ReportingMTA: s.Hostname, From: s.Postmaster, To: list[0].to,
		MessageID: "<" + draft.Name() + "@" + s.Hostname + ">", Date: s.Now(),
		Arrival: f.arrival(),
	}
	s.describeMessage(f, &list[0], rep)
	for i := range list {
		p := s.reportRecipient(f, &list[i], said)
		rep.UTF8 = rep.UTF8 || !ascii(p.Final)
		p.LogID = rep.SpoolID
		rep.Recipients = append(rep.Recipients, p)
	}
	done, err := s.original(f, &list[0], rep, further)
	if err != nil {
		return "", err
	}
	defer done()
	if err := dsn.Write(draft, rep); err != nil {
		return "", err
	}
	// Crash: see Prepare: nobody knows the file's name yet.
	return draft.Name(), draft.Prepare()
}

// reportRecipient is a recipient's part of the report.
func (s *Store) reportRecipient(f *work, o *owed, said map[int64]string) dsn.Recipient {
	p := dsn.Recipient{Final: o.r.Address, Original: wants(o.r.Notary, address.DecodeXText).original}
	if o.kind != kindDelayed {
		n := &o.d.Notary
		p.Action, p.Remote, p.Diagnostic = dsn.Action(strings.ToLower(n.Action)), n.Remote, n.Diagnostic
		p.Status, p.LastAttempt, p.Text = n.Status, o.d.Time, o.d.Text
		if kindOf(o.d) == kindFailed {
			p.Action = dsn.Failed
		}
		return p
	}
	n := workspec.Notary{Status: status.Code{Class: 4}.String()}
	p.Text = cmp.Or(said[o.r.Offset], "It has not been tried yet.")
	if o.last != nil {
		n.Status = cmp.Or(o.last.Get("status"), n.Status)
		p.Text, p.LastAttempt = o.last.Text, o.last.Time
	}
	lastAnswer(&n, o.last, p.Text)
	p.Action, p.Status, p.Remote, p.Diagnostic = dsn.Delayed, n.Status, n.Remote, n.Diagnostic
	if c := s.Conf.Current().Match(o.r.Channel, o.r.Host); c != nil && c.Expiry > 0 {
		p.WillRetryUntil = f.begun(o.r, s.Now()).Add(c.Expiry)
	}
	return p
}

func ascii(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
