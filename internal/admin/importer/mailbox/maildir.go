package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"zmailer/internal/admin/importer"
)

// Maildir is the messages in new/ and cur/ of a Maildir.
type Maildir struct {
	q *importer.Queue
	e Envelope
}

// OpenMaildir opens one.
func OpenMaildir(dir string, e Envelope) (*Maildir, error) {
	q, err := importer.OpenQueue(dir, "new", "cur")
	if err != nil {
		return nil, err
	}
	return &Maildir{q, e}, nil
}

// Close closes it.
func (m *Maildir) Close() error { return m.q.Close() }

// Programs are none: a Maildir needs no lock.
func (m *Maildir) Programs() []string { return nil }

// List names the messages.
func (m *Maildir) List(ctx context.Context) ([]importer.Ref, error) {
	var list []importer.Ref
	for _, dir := range []string{"new", "cur"} {
		err := m.q.Walk(dir, 0, nil, func(name string) error {
			if !strings.HasPrefix(path.Base(name), ".") {
				list = append(list, importer.Ref{Name: name})
			}
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Open reads one.
func (m *Maildir) Open(ref importer.Ref) (*importer.Message, error) {
	base, flags, _ := strings.Cut(path.Base(ref.Name), ":")
	if _, set, ok := strings.Cut(flags, "2,"); ok && strings.Contains(set, "T") {
		return nil, fmt.Errorf("its user has moved it to the trash: %w", importer.ErrLeft)
	}
	f, info, err := m.q.Open(ref.Name, false)
	if err != nil {
		return nil, err
	}
	l, err := m.message(base, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l.Arrival, l.Close = info.ModTime(), f.Close
	return l, nil
}

func (m *Maildir) message(base string, f io.ReadSeeker) (*importer.Message, error) {
	fields, err := header(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	// The name alone need not be its own in a Maildir that was made by hand.
	digest, err := sum(f)
	if err != nil {
		return nil, err
	}
	sender, _ := returnPath(fields)
	p, err := m.e.part(fields, sender)
	if err != nil {
		return nil, err
	}
	return &importer.Message{Key: base + "@" + digest, Parts: []importer.Part{p}, Write: func(w io.Writer) error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return writer{bcc: m.e.Extract}.write(w, f)
	}}, nil
}

// Remove unlinks one.
func (m *Maildir) Remove(ref importer.Ref) error { return m.q.Remove(ref.Name) }
