// Package postfix reads the queue of a Postfix: the files of incoming/, active/, deferred/,
// hold/ and maildrop/ below its queue_directory.
//
// It owns nothing there; a file is removed when Remove is called. A queue file is a
// sequence of records, one byte type, length, bytes: first the envelope, then the content,
// then what was found in the header. Recipients of type R are open, those of type D are
// done; of the latter those stay open whose failure was not reported to the sender yet,
// which are listed in bounce/.
//
// Diagnostics: importer.ErrLeft: the file is still being written, or Postfix has put it
// aside. Others say what is wrong with the file.
package postfix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"zmailer/internal/admin/importer"
)

// Source is the queue.
type Source struct {
	q *importer.Queue
	// logs are the files in defer/, bounce/ and trace/ by queue ID.
	logs map[string][]string
}

// Open opens the queue in a directory.
func Open(dir string) (*Source, error) {
	q, err := importer.OpenQueue(dir, "incoming", "active", "deferred")
	if err != nil {
		return nil, err
	}
	return &Source{q: q}, nil
}

// Close closes it.
func (s *Source) Close() error { return s.q.Close() }

// Programs returns those that work in the queue.
func (s *Source) Programs() []string {
	return []string{"master", "qmgr", "pickup", "cleanup", "smtp", "smtpd", "local", "bounce", "nqmgr"}
}

const (
	// hashed is the greatest hash_queue_depth.
	hashed = 16
	// aside is where Postfix puts what it cannot read.
	aside = "corrupt"
)

// List names all queue files.
func (s *Source) List(ctx context.Context) ([]importer.Ref, error) {
	s.logs = map[string][]string{}
	for _, dir := range []string{"defer", "bounce", "trace"} {
		err := s.walk(dir, func(name string) error {
			id := path.Base(name)
			s.logs[id] = append(s.logs[id], name)
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	var list []importer.Ref
	for _, dir := range []string{"hold", "deferred", "active", "incoming", "maildrop", aside} {
		err := s.walk(dir, func(name string) error {
			list = append(list, importer.Ref{Name: name})
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (s *Source) walk(dir string, fn func(name string) error) error {
	oneByte := func(name string) bool { return len(name) == 1 }
	return s.q.Walk(dir, hashed, oneByte, fn)
}

// Open reads one.
func (s *Source) Open(ref importer.Ref) (*importer.Message, error) {
	f, info, err := s.q.Open(ref.Name, false)
	if err != nil {
		return nil, err
	}
	l, err := s.message(ref, f, info)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l.Close = f.Close
	return l, nil
}

func (s *Source) message(ref importer.Ref, f io.ReaderAt, info fs.FileInfo) (*importer.Message, error) {
	dir, _, _ := strings.Cut(ref.Name, "/")
	switch {
	case dir == aside:
		return nil, fmt.Errorf("set aside by Postfix as damaged; inspect it with postcat: %w", importer.ErrLeft)
	case info.Mode()&0o100 == 0:
		// Postfix sets the bit when the file is complete, before it acknowledges the message.
		return nil, fmt.Errorf("it was never completed nor acknowledged: %w", importer.ErrLeft)
	}
	h, err := readHead(f, info.Size())
	if err != nil {
		return nil, err
	}
	h.reopen(s.bounced(path.Base(ref.Name)))
	if h.arrival.IsZero() {
		h.arrival = info.ModTime()
	}
	l := &importer.Message{
		Key:     fmt.Sprintf("%s@%d.%06d", path.Base(ref.Name), h.arrival.Unix(), h.arrival.Nanosecond()/1000),
		Arrival: h.arrival, Local: dir == "maildrop", FullName: h.fullName, BodyType: h.bodyType, Notes: h.notes,
		Write: func(w io.Writer) error { return writeContent(f, info.Size(), w) },
	}
	if p := h.part(); len(p.Recipients) > 0 {
		if dir == "hold" {
			p.Held = "it was on hold"
		}
		l.Parts = []importer.Part{p}
	}
	return l, nil
}

// bounced returns the offsets of those recipients whose failure was not reported to the sender.
func (s *Source) bounced(id string) map[int64]bool {
	for _, name := range s.logs[id] {
		if !strings.HasPrefix(name, "bounce/") {
			continue
		}
		const limit = 16 << 20
		text, err := s.q.Read(name, limit)
		if err != nil {
			continue // gone: they were reported
		}
		return parseBounces(text)
	}
	return nil
}

// Remove unlinks what Postfix has noted about a message, then its queue file.
func (s *Source) Remove(ref importer.Ref) error {
	// Crash: as long as the queue file is there, the next import goes on.
	for _, name := range s.logs[path.Base(ref.Name)] {
		if err := s.q.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return s.q.Remove(ref.Name)
}
