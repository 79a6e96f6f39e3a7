package view

import (
	"context"
	"errors"
	"slices"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// RemovedMessage is one message of which something was removed.
type RemovedMessage struct {
	ID         string     `json:"id"`
	Removed    time.Time  `json:"removed"`
	Until      *time.Time `json:"until,omitempty"` // when it is dropped; nil: not yet in removed/, or never
	From       string     `json:"from"`            // directory that undo puts it back to
	Files      []string   `json:"files"`
	Size       int64      `json:"size"`
	Sender     string     `json:"sender"`
	Recipients []string   `json:"recipients"` // that undo puts back

	Message *Message `json:"-"`
}

// Removals reads what operators have removed: removed/, and the removed recipients in the queue.
type Removals struct {
	Spool *Spool
	Keep  time.Duration // REMOVEDKEEP: how long it is kept; 0: for ever
}

// List lists removed/ and the removed recipients in the queue.
func (from Removals) List(ctx context.Context) ([]RemovedMessage, error) {
	list := []RemovedMessage{}
	away, err := from.Spool.PO.Removed.List()
	errs := []error{err}
	for i := range away {
		r, err := from.Load(&away[i])
		if errors.Is(err, ErrMoved) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, r)
	}
	taken, err := selector.Column("state", Removed)
	errs = append(errs, err)
	_, err = from.Spool.Each(ctx, taken, func(m *Message) error {
		if m.Spec == nil || m.ID == "" {
			return nil // gone meanwhile, or zmctl check reports it
		}
		r := RemovedMessage{From: postoffice.Queue, Files: m.Files}
		if r.fill(m); len(r.Recipients) > 0 {
			r.Removed = m.Spec.Removal().Time
			list = append(list, r)
		}
		return nil
	})
	errs = append(errs, err)
	slices.SortStableFunc(list, func(a, b RemovedMessage) int { return a.Removed.Compare(b.Removed) })
	return list, errors.Join(errs...)
}

// Load reads an entry of removed/.
func (from Removals) Load(m *postoffice.RemovedMessage) (RemovedMessage, error) {
	r := RemovedMessage{Removed: m.Since, From: m.From}
	f := File{Dir: postoffice.Removed, Name: m.Name, Info: m.Info}
	if from.Keep > 0 {
		until := m.Since.Add(from.Keep)
		r.Until = &until
	}
	if m.Spec == "" {
		head, err := from.Spool.LoadFile(f, m.From)
		if err != nil {
			return r, err
		}
		r.fill(head)
		for i := range head.Recipients {
			r.Recipients = append(r.Recipients, head.Recipients[i].Address)
		}
		return r, nil
	}
	spec, err := from.Spool.Stat(postoffice.Removed, m.Spec)
	if err != nil {
		return r, err
	}
	out := &Message{State: m.From, Name: m.Name, Files: []string{f.Path(), spec.Path()}, SpecFile: spec}
	out.setMessage(from.Spool, f)
	if err := from.Spool.readSpec(out); err != nil {
		return r, err
	}
	r.fill(out)
	return r, nil
}

// fill takes the fields of a message, and of a routed one the recipients that
// undo opens again.
func (r *RemovedMessage) fill(m *Message) {
	r.Message = m
	r.ID, r.Size, r.Sender, r.Files = m.ID, m.Size, m.Sender, m.Files
	if m.Spec == nil {
		return
	}
	removal := m.Spec.Removal()
	for gi := range m.Spec.Groups {
		for ri := range m.Spec.Groups[gi].Recipients {
			rcpt := &m.Spec.Groups[gi].Recipients[ri]
			if removal.Removed(rcpt) || m.SpecFile.Dir == postoffice.Removed && removal.Tag(rcpt) == workspec.TagToDo {
				r.Recipients = append(r.Recipients, human.Clean(rcpt.Address))
			}
		}
	}
}

// byID returns a message of removed/; nil if it is not there.
func (from Removals) byID(id postoffice.SpoolID) *Message {
	// zmctl removed reports errors.
	found, err := from.Spool.PO.Removed.Find(id)
	if err != nil || found == nil {
		return nil
	}
	r, err := from.Load(found)
	if err != nil {
		return nil
	}
	r.Message.State, r.Message.Why = StateRemoved, found.From
	return r.Message
}
