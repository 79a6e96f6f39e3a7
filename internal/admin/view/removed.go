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

// ListRemoved lists removed/ and the removed recipients in the queue.
func (s *Spool) ListRemoved(ctx context.Context, keep time.Duration) ([]RemovedMessage, error) {
	list := []RemovedMessage{}
	away, err := s.PO.Removed.List()
	errs := []error{err}
	for i := range away {
		r, err := s.Shelved(&away[i], keep)
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
	_, err = s.Each(ctx, taken, func(m *Message) error {
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

// Shelved reads an entry of removed/.
func (s *Spool) Shelved(m *postoffice.RemovedMessage, keep time.Duration) (RemovedMessage, error) {
	r := RemovedMessage{Removed: m.Since, From: m.From}
	f := File{Dir: postoffice.Removed, Name: m.Name, Info: m.Info}
	if keep > 0 {
		until := m.Since.Add(keep)
		r.Until = &until
	}
	if m.Spec == "" {
		head, err := s.LoadFile(f, m.From)
		if err != nil {
			return r, err
		}
		r.fill(head)
		for i := range head.Recipients {
			r.Recipients = append(r.Recipients, head.Recipients[i].Address)
		}
		return r, nil
	}
	spec, err := s.Stat(postoffice.Removed, m.Spec)
	if err != nil {
		return r, err
	}
	out := &Message{State: m.From, Name: m.Name, Files: []string{f.Path(), spec.Path()}, SpecFile: spec}
	out.setMessage(s, f)
	if err := s.readSpec(out); err != nil {
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

func (s *Spool) removedByID(id postoffice.SpoolID) *Message {
	// zmctl removed reports errors.
	found, err := s.PO.Removed.Find(id)
	if err != nil || found == nil {
		return nil
	}
	r, err := s.Shelved(found, 0)
	if err != nil {
		return nil
	}
	r.Message.State, r.Message.Why = StateRemoved, found.From
	return r.Message
}
