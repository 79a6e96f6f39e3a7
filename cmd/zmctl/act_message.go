package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// message acts on one message, wherever it has gone meanwhile.
// noted: it stands in the order file.
func (a *act) message(m *view.Message, noted bool) error {
	err := error(nil)
	for try := range tries {
		if try > 0 {
			s := a.spool()
			next, others, ferr := s.ByID(m.SpoolID)
			if next == nil {
				return a.editing(m.SpoolID).notFound(a.v.name, others, ferr)
			}
			next.Choose(a.sel, s.Now)
			m = next
		}
		if _, fits := a.fit(m); fits && !noted {
			if err := a.note([]byte(m.ID + "\n")); err != nil {
				return err
			}
			noted = true
		}
		err = a.once(m)
		if !errors.Is(err, operations.ErrMoved) && !errors.Is(err, postoffice.ErrGone) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", err, errAgain)
}

func (a *act) once(m *view.Message) error {
	list, ok := a.fit(m)
	switch {
	case a.from != nil && m.File.Dir != a.from.dir:
		return fmt.Errorf("%s %s: it is not in %s/ any more: it is %s", a.v.name, m.ID, a.from.dir, m.State)
	case m.State == view.StateQueued && m.Problem != "":
		return fmt.Errorf("%s %s: %s", a.v.name, m.ID, m.Problem)
	case m.State == view.StateQueued && !ok:
		return fmt.Errorf("%s %s: %s", a.v.name, m.ID, a.nobody(m))
	case m.State == view.StateQueued:
		return a.queued(m, list)
	case ok:
		return a.put(m)
	case m.State == view.StateFinishing:
		return fmt.Errorf("%s %s: no recipient is open; the scheduler is about to remove it", a.v.name, m.ID)
	case m.State == view.StateWriting || m.State == view.StateClaimed || m.State == view.StateHandedOver:
		return fmt.Errorf("%s %s: it is %s at this moment: %w", a.v.name, m.ID, m.State, errAgain)
	}
	instead := a.v.instead
	if instead != "" {
		instead = "; " + instead
	}
	return fmt.Errorf("%s %s: it is not routed: it is %s%s", a.v.name, m.ID, m.State, instead)
}

// nobody tells why no recipient fits.
func (a *act) nobody(m *view.Message) string {
	for i := range m.Recipients {
		if m.Recipients[i].Open() {
			return "none of its open recipients can be " + strings.TrimSuffix(a.v.done, " now") + ": " + m.Recipients[i].State
		}
	}
	return "no recipient is open"
}

// put acts on a message that is not routed.
func (a *act) put(m *view.Message) error {
	text, err := a.v.aside[m.State](a, m)
	if err != nil {
		return err
	}
	a.sum.messages++
	a.sum.recipients += max(len(m.Recipients), 1)
	a.result(m.ID, outcome{Text: text})
	if a.v.name == "remove" {
		a.kept(m)
	}
	return nil
}

func (a *act) kept(m *view.Message) {
	if a.named && !a.c.Bool("quiet") && !a.c.Bool("json") {
		fmt.Fprint(a.out, a.editing(m.SpoolID).kept())
	}
}

// queued acts on recipients of a routed message.
func (a *act) queued(m *view.Message, list []view.Recipient) error {
	chosen := map[int64]string{}
	for i := range list {
		chosen[list[i].Offset] = list[i].Address
	}
	q := operations.Request{PostOffice: a.po, ID: m.SpoolID, Now: time.Now(), Who: who(a.c.Context), Order: string(a.order.ID), Reason: a.c.String("reason"),
		Report: a.c.Bool("report") || a.v.name == "expire" && !a.c.Bool("silent"),
		// The address, too: a message that was routed again has others at these places.
		Match: func(_ *workspec.Group, r *workspec.Recipient) bool {
			address, ok := chosen[r.Offset]
			return ok && address == human.Clean(r.Address)
		}}
	if a.v.name == "remove" {
		q.Who = "zmctl remove, " + who(a.c.Context)
	}
	res, err := a.v.do(a, q, m.SpecFile.Name)
	nothing := errors.Is(err, operations.ErrNothing)
	if err != nil && !nothing {
		return err
	}
	if res.To != (postoffice.SpoolID{}) {
		a.made[res.To.String()] = true
	}
	if len(res.Changed) > 0 {
		a.sum.messages++
		a.sum.recipients += len(res.Changed)
		o := outcome{Text: a.v.done + ": " + human.Addresses(res.Changed), Done: res.Changed}
		if res.To != (postoffice.SpoolID{}) {
			o.To = res.To.String()
			o.Text += " as " + o.To
		}
		o.Busy, o.Left = res.Busy, res.Left
		a.result(m.ID, o)
	}
	switch {
	case len(res.Busy) > 0:
		a.sum.busy += len(res.Busy)
		return fmt.Errorf("%s %s: delivered to at this moment: %s: %w", a.v.name, m.ID, human.Addresses(res.Busy), errBusy)
	case len(res.Left) > 0:
		return fmt.Errorf("%s %s: cannot be routed again, they are files or programs behind an alias: %s", a.v.name, m.ID, human.Addresses(res.Left))
	case len(res.Doubt) > 0:
		return fmt.Errorf("%s %s: an agent died that may have delivered it; the next attempt tells, until then it cannot be routed again: %s",
			a.v.name, m.ID, human.Addresses(res.Doubt))
	case nothing:
		return fmt.Errorf("%s %s: %s", a.v.name, m.ID, a.nobody(m))
	case a.v.name == "remove":
		a.kept(m)
	}
	return nil
}

func addressesOf(list []view.Recipient) string {
	var b strings.Builder
	for i := range list {
		if i == 3 {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("<" + list[i].Address + ">")
	}
	return b.String()
}
