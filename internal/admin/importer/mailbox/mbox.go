package mailbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/admin/importer"
	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// Mbox is the messages in an mbox file, each behind a line that begins with "From ".
type Mbox struct {
	q     *importer.Queue
	dot   *importer.LockFile // nil: none
	f     *os.File
	e     Envelope
	size  int64
	count map[string]int   // of a content so far: the same content may occur twice
	keys  map[int64]string // by where it begins
	left  int              // messages that were not removed
}

// OpenMbox opens one and locks it, as programs do that deliver to it and read it: by
// FILE.lock with the name of this host, by flock and by fcntl. Without a host there is no
// FILE.lock: for one who only looks.
func OpenMbox(file string, e Envelope, host string) (*Mbox, error) {
	q, err := importer.OpenQueue(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	m := &Mbox{q: q, e: e, count: map[string]int{}, keys: map[int64]string{}}
	if err := m.open(filepath.Base(file), host); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// open takes the locks and opens the file. One that may not be written to is only read.
func (m *Mbox) open(name, host string) error {
	// What is no mbox gets no lock file beside it.
	seen, writable, err := m.look(name)
	if err == nil && writable && host != "" {
		m.dot, err = m.q.LockFile(name, host)
	}
	if err != nil {
		return err
	}
	return m.take(name, seen, writable)
}

// take opens the file that was looked at, and locks it.
func (m *Mbox) take(name string, seen os.FileInfo, writable bool) error {
	f, info, err := m.q.Open(name, writable)
	if err != nil {
		return err
	}
	m.f = f
	if !os.SameFile(seen, info) {
		return fmt.Errorf("%s was replaced meanwhile; try again: %w", name, importer.ErrRunning)
	}
	if writable {
		if err = lock(f); err == nil {
			info, err = f.Stat() // somebody may have been writing before
		}
	}
	if err != nil {
		return err
	}
	m.size = info.Size()
	return nil
}

// look returns which file it is, and whether it may be written to; a file that is no mbox
// is an error.
func (m *Mbox) look(name string) (info os.FileInfo, writable bool, err error) {
	f, info, err := m.q.Open(name, true)
	writable = err == nil
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		f, info, err = m.q.Open(name, false)
	}
	if err != nil {
		return nil, false, err
	}
	// Nothing was written.
	defer func() { _ = f.Close() }()
	first := make([]byte, len(fromLine))
	n, err := f.ReadAt(first, 0)
	if info.Size() > 0 && (string(first[:n]) != fromLine || err != nil && !errors.Is(err, io.EOF)) {
		return nil, false, fmt.Errorf("%w: %s does not begin with %q", importer.ErrNoQueue, name, fromLine)
	}
	return info, writable, nil
}

// fromLine begins the line before a message.
const fromLine = "From "

func lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
	}
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("locked by another process; try again: %w", importer.ErrRunning)
	}
	return err
}

// Close closes it.
func (m *Mbox) Close() error {
	var err error
	if m.f != nil {
		err = m.f.Close()
	}
	return errors.Join(err, m.dot.Release(), m.q.Close())
}

// Programs are none: the lock is enough.
func (m *Mbox) Programs() []string { return nil }

// List finds where messages begin. One without a line of its own is not there.
func (m *Mbox) List(ctx context.Context) ([]importer.Ref, error) {
	in := bufio.NewReaderSize(io.NewSectionReader(m.f, 0, m.size), 256<<10)
	var list []importer.Ref
	at, empty, whole := int64(0), true, true // the line before was empty, and ended
	for {
		line, err := in.ReadSlice('\n')
		begins := whole && empty && bytes.HasPrefix(line, []byte(fromLine))
		if begins {
			if n := len(list); n > 0 {
				list[n-1].Size = at - list[n-1].At
			}
			list = append(list, importer.Ref{Name: fmt.Sprintf("message %d", len(list)+1), At: at})
		}
		at += int64(len(line))
		whole = len(line) > 0 && line[len(line)-1] == '\n'
		empty = len(bytes.TrimRight(line, "\r\n")) == 0
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if begins && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if n := len(list); n > 0 {
		list[n-1].Size = m.size - list[n-1].At
	}
	m.left = len(list)
	return list, nil
}

// Open reads one.
func (m *Mbox) Open(ref importer.Ref) (*importer.Message, error) {
	section := func() *io.SectionReader { return io.NewSectionReader(m.f, ref.At, ref.Size) }
	in := bufio.NewReader(section())
	first, err := in.ReadString('\n')
	if err != nil {
		return nil, errors.New("it contains only its first line")
	}
	body := func() *io.SectionReader {
		return io.NewSectionReader(m.f, ref.At+int64(len(first)), m.end(ref)-int64(len(first)))
	}
	fields, err := header(body())
	if err != nil {
		return nil, err
	}
	if internal(fields) {
		return nil, fmt.Errorf("it is an internal message of a mail program: %w", importer.ErrLeft)
	}
	key, err := m.key(ref, section())
	if err != nil {
		return nil, err
	}
	sender, at := postmark(first)
	if s, ok := returnPath(fields); ok {
		sender = s
	}
	p, err := m.e.part(fields, sender)
	if err != nil {
		return nil, err
	}
	return &importer.Message{Key: key, Arrival: at, Parts: []importer.Part{p}, Write: func(w io.Writer) error {
		return writer{bcc: m.e.Extract, quoted: true}.write(w, body())
	}}, nil
}

// end returns the length of a message without the empty line before the next one.
func (m *Mbox) end(ref importer.Ref) int64 {
	last := make([]byte, 2)
	if ref.Size < 2 {
		return ref.Size
	}
	if _, err := m.f.ReadAt(last, ref.At+ref.Size-2); err == nil && string(last) == "\n\n" {
		return ref.Size - 1
	}
	return ref.Size
}

// key returns a message's content, and which it is of those with the same.
func (m *Mbox) key(ref importer.Ref, r io.Reader) (string, error) {
	if k, ok := m.keys[ref.At]; ok {
		return k, nil
	}
	digest, err := sum(io.LimitReader(r, m.end(ref)))
	if err != nil {
		return "", err
	}
	m.count[digest]++
	m.keys[ref.At] = fmt.Sprintf("%s.%d", digest, m.count[digest])
	return m.keys[ref.At], nil
}

// internal reports whether a message is the one in which some programs keep their notes
// about a mailbox.
func internal(fields []envelope.Field) bool {
	for i := range fields {
		if strings.EqualFold(fields[i].Name, "Subject") {
			return strings.HasPrefix(fields[i].Value(), "DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA")
		}
	}
	return false
}

// postmark reads "From SENDER Mon Jan  2 15:04:05 2006".
func postmark(line string) (sender string, at time.Time) {
	text := strings.TrimSpace(strings.TrimPrefix(line, fromLine))
	sender, date, _ := strings.Cut(text, " ")
	for _, form := range []string{time.ANSIC, time.UnixDate, "Mon Jan _2 15:04:05 2006 -0700", "Mon Jan _2 15:04 2006"} {
		if t, err := time.Parse(form, strings.TrimSpace(date)); err == nil {
			at = t
			break
		}
	}
	box, err := address.Parse(sender)
	if err != nil || strings.EqualFold(sender, "MAILER-DAEMON") || sender == "-" {
		return "", at
	}
	return box.String(), at
}

// Remove counts; when all messages were removed and nothing has come in, the file is
// emptied.
func (m *Mbox) Remove(importer.Ref) error {
	if m.left--; m.left > 0 {
		return importer.ErrLater
	}
	info, err := m.f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != m.size {
		return errors.New("the mailbox was changed meanwhile; import again")
	}
	// Crash: full or empty; all of it was taken, and the record says so.
	if err := m.f.Truncate(0); err != nil {
		return err
	}
	return m.f.Sync()
}
