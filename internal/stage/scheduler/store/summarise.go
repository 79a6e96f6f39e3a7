package store

import (
	"bytes"
	"errors"
	"fmt"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// A history is summarised when it has grown by one of these since the last time, or since the
// file was written. It grows at least by half in between, so that summarising costs only a part
// of writing the lines.
const (
	longHistory = 32 << 10 // bytes, or half of the file's size then if that is more
	// longWork is how many recipients in lines of deferrals: each reader goes over all of
	// them, however short a line is.
	longWork = 64 << 10
)

// long reports whether the history is to be summarised. written bytes have been appended
// since it was read, of deferrals of so many recipients.
func (f *work) long(written, recipients int) bool {
	from := f.spec.Summarised()
	if int64(len(f.raw)+written)-from > max(longHistory, from/2) {
		return true
	}
	work := recipients
	for i := len(f.spec.History) - 1; i >= 0 && f.spec.History[i].LineOffset >= from; i-- {
		if e := &f.spec.History[i]; e.Event == workspec.EventDeferred {
			for range f.spec.About(e) {
				work++
			}
		}
	}
	return work >= longWork
}

// summariser replaces specifications by copies with a shorter history.
type summariser struct {
	*Env
	decisions *decisions
}

// Summarise replaces the specification by a copy with a shorter history. It is called while
// no agent has the message and none is given it. Where it cannot be done, as on a full disk,
// the file stays as it is: that is no error.
func (s *summariser) Summarise(name string) error {
	f, err := s.openUnread(name, nil)
	if err != nil {
		return err
	}
	defer f.close()
	return s.summarise(f)
}

func (s *summariser) summarise(f *work) error {
	err := f.underLock(func() error {
		locked := false
		for _, r := range f.spec.All() {
			locked = locked || r.Tag == workspec.TagLocked
		}
		if locked {
			return nil // by an agent of a scheduler that died, or to be mended first
		}
		if err := s.replace(f); err != nil {
			// It is tried again when more was appended.
			s.Log.Warn("not-summarised", "id", f.id, "name", f.Name, "size", len(f.raw), "reason", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("summarise %s: %w", f.Name, err)
	}
	return nil
}

// replace is summarise under the lock.
func (s *summariser) replace(f *work) error {
	now := s.Now()
	short := workspec.Summarise(f.raw, now)
	if short == nil || len(short) > len(f.raw)-len(f.raw)/8 {
		// It cannot be shortened; readers count from here.
		return s.noteLong(f)
	}
	note := workspec.SupersededEvent(now)
	err := f.Replace(short, f.raw, workspec.AppendEvent(nil, &note))
	switch {
	case errors.Is(err, durable.ErrNoExchange):
		return errors.Join(err, s.noteLong(f))
	case errors.Is(err, postoffice.ErrEdited), errors.Is(err, postoffice.ErrReplaced):
		return errors.Join(err, s.PostOffice.Queue.NoteChange(f.Name))
	case err != nil:
		return err
	}
	s.Log.Debug("summarised", "id", f.id, "name", f.Name, "size", len(f.raw), "left", len(short))
	after, err := workspec.Parse(short)
	if err != nil {
		return err
	}
	s.decisions.logged.moved(f.ledgerID(), f.spec, after)
	// The file that is open has no name any more.
	return f.reopen(s.PostOffice)
}

// noteLong records in the history that it cannot be shortened, so that this is tried again when
// it has grown by as much.
func (s *summariser) noteLong(f *work) error {
	note := workspec.SummarisedEvent(s.Now())
	// Crash: it is tried once more.
	return f.Append(workspec.AppendEvent(nil, &note))
}

// reopen opens the file that has the name now.
func (f *work) reopen(po *postoffice.PostOffice) error {
	file, err := po.Queue.Open(f.Name)
	if err != nil {
		return err
	}
	f.close()
	f.Spec = file
	return f.read()
}

// SweepCopies removes the copies that crashed schedulers left beside replaced specifications.
func (s *sweeper) SweepCopies(names []string) {
	superseded := []byte(" 0 " + workspec.EventSuperseded + "\n")
	for _, name := range names {
		r, err := s.PostOffice.Queue.SweepReplaced(name, func(left, spec []byte) bool {
			// An incomplete copy was being written. The line is in the old file, durable, before
			// there is a copy, and never in the copy.
			return !workspec.Complete(left) || bytes.Contains(left, superseded) || bytes.Contains(spec, superseded)
		})
		switch {
		case errors.Is(err, postoffice.ErrGone):
		case err != nil:
			s.Log.Error("recovered", "name", name, "action", postoffice.Unreadable, "reason", err)
		case r != nil:
			s.tellRecovered([]postoffice.Recovered{*r})
		}
	}
}
