// Package opensmtpd reads the queue of an OpenSMTPD: below queue/, a directory for each
// message, with the file message and a file for each recipient's envelope.
//
// It owns nothing there; a message's directory is emptied and removed when Remove is
// called. Envelopes and messages may be compressed, not encrypted. An envelope of the type
// bounce is a report that was not made yet: for one of a failure the recipient is tried
// again, so that the report is ours; one of a delay or of success is left out.
//
// Diagnostics: importer.ErrLeft: OpenSMTPD has not accepted the message, or has set it
// aside. Others say what is wrong with its files.
package opensmtpd

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"zmailer/internal/admin/importer"
)

// Source is the queue.
type Source struct{ q *importer.Queue }

// Open opens the spool directory, in which queue/ is.
func Open(dir string) (*Source, error) {
	q, err := importer.OpenQueue(dir, "queue")
	if err != nil {
		return nil, err
	}
	return &Source{q}, nil
}

// Close closes it.
func (s *Source) Close() error { return s.q.Close() }

// Programs returns those that work in the queue; one of its processes has it as its root.
func (s *Source) Programs() []string { return []string{"smtpd"} }

const (
	queue   = "queue"
	offline = "offline"
	content = "message"
	corrupt = "corrupt"
	// maxEnvelope bounds an envelope file. Bytes.
	maxEnvelope = 1 << 20
)

// List names the messages by queue/XX/MSGID, and what waits in offline/ and corrupt/.
func (s *Source) List(ctx context.Context) ([]importer.Ref, error) {
	var list []importer.Ref
	buckets, err := s.q.List(queue)
	if err != nil {
		return nil, err
	}
	for _, bucket := range buckets {
		bucket, isDir := strings.CutSuffix(bucket, "/")
		if !isDir || !isHex(bucket, 2) {
			continue
		}
		messages, err := s.q.List(path.Join(queue, bucket))
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if m, isDir := strings.CutSuffix(m, "/"); isDir && isHex(m, 8) {
				list = append(list, importer.Ref{Name: path.Join(queue, bucket, m)})
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{offline, corrupt} {
		names, err := s.q.List(dir)
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		for _, n := range names {
			list = append(list, importer.Ref{Name: path.Join(dir, strings.TrimSuffix(n, "/"))})
		}
	}
	return list, nil
}

func isHex(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" }

// Open reads one.
func (s *Source) Open(ref importer.Ref) (*importer.Message, error) {
	switch dir, _, _ := strings.Cut(ref.Name, "/"); dir {
	case offline:
		return nil, fmt.Errorf("it was submitted while smtpd was not running; start smtpd once: %w", importer.ErrLeft)
	case corrupt:
		return nil, fmt.Errorf("OpenSMTPD has put it aside as damaged: %w", importer.ErrLeft)
	}
	id := path.Base(ref.Name)
	names, err := s.q.List(ref.Name)
	if err != nil {
		return nil, err
	}
	if names == nil {
		return nil, fs.ErrNotExist
	}
	if len(names) == 0 {
		return nil, &importer.Remains{Why: "an empty directory", Key: id}
	}
	var g group
	for _, name := range names {
		if !isHex(name, 16) || !strings.HasPrefix(name, id) {
			continue
		}
		text, err := s.q.Read(path.Join(ref.Name, name), maxEnvelope)
		if errors.Is(err, fs.ErrNotExist) {
			continue // delivered meanwhile
		}
		if err == nil {
			text, err = expanded(text)
		}
		var e *envelope
		if err == nil {
			e, err = parseEnvelope(text)
		}
		if err != nil {
			return nil, fmt.Errorf("envelope %s: %w", name, err)
		}
		g.add(e)
	}
	f, _, err := s.q.Open(path.Join(ref.Name, content), false)
	if err != nil {
		return nil, err
	}
	l := &importer.Message{Parts: g.parts(), Arrival: g.arrival, Notes: g.notes()}
	if l.Key, err = key(id, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l.Close = f.Close
	l.Write = func(w io.Writer) error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return copyContent(w, f)
	}
	return l, nil
}

// key returns a message's number, which may come again, with some of its content.
func key(id string, f io.ReaderAt) (string, error) {
	const enough = 4 << 10
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, enough)); err != nil {
		return "", err
	}
	return id + "." + hex.EncodeToString(h.Sum(nil)[:4]), nil
}

// expanded returns a small file without its compression.
func expanded(b []byte) ([]byte, error) {
	if !bytes.HasPrefix(b, gzipped()) {
		return b, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	b, err = io.ReadAll(io.LimitReader(z, maxEnvelope+1))
	if err == nil && len(b) > maxEnvelope {
		err = fmt.Errorf("more than %d bytes", maxEnvelope)
	}
	return b, err
}

func gzipped() []byte { return []byte{0x1f, 0x8b} }

// copyContent copies a message without its compression.
func copyContent(w io.Writer, r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	first, err := in.Peek(len(gzipped()))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if bytes.Equal(first, gzipped()) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, z)
		return err
	}
	// An encrypted one begins with the number of its format.
	if len(first) > 0 && first[0] < '\t' {
		return errors.New("the message is encrypted (queue encryption): remove the setting, and let smtpd write it again")
	}
	_, err = io.Copy(w, in)
	return err
}

// Remove takes a message's envelopes away, then the message, then its directory.
func (s *Source) Remove(ref importer.Ref) error {
	names, err := s.q.List(ref.Name)
	if err != nil {
		return err
	}
	// Envelopes first: without one, a message means nothing to smtpd.
	// Crash: a message with some envelopes or none, or an empty directory, stays; the next
	// import knows that it took it, and removes that.
	for _, last := range []bool{false, true} {
		for _, n := range names {
			if (n == content) != last {
				continue
			}
			if err := s.q.Remove(path.Join(ref.Name, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return s.q.Remove(ref.Name)
}
