package mailbox

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"zmailer/internal/durable"
)

// maildirFS is a Maildir's directory tree.
type maildirFS interface {
	durable.FS
	Close() error
}

func openMaildir(dir string) (maildirFS, error) { return durable.NewOS(dir) }

// toMaildir adds the message to a Maildir: written in tmp/, synced, moved to new/
// (the Maildir specification, "How a message is delivered").
func (m *Mailbox) toMaildir(dir string, t target, l *letter) error {
	box, err := m.openMade(dir, t)
	if err != nil {
		return err
	}
	defer box.Close()
	name, f, err := m.createIn(box, l)
	if err != nil {
		return err
	}
	err = m.fill(f, l)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = l.sent()
	}
	if err == nil {
		// Crash: whole and synced in tmp/ (to be removed by its reader, the recipient
		// in doubt) or in new/.
		err = moveNew(box, "tmp/"+name, "new/"+name)
		for errors.Is(err, fs.ErrExist) {
			err = moveNew(box, "tmp/"+name, "new/"+m.maildirName(l))
		}
	}
	if err != nil {
		// Crash: a file in tmp/ that nobody reads.
		if rerr := box.Remove("tmp/" + name); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return err
	}
	// Crash: before this a power loss may take the name in new/ and keep the tag that
	// is set next, and the message would be in neither place. An error repeats the
	// message rather than lose it.
	return box.SyncDir("new")
}

// fill writes and syncs the file in tmp/.
func (m *Mailbox) fill(f durable.File, l *letter) error {
	w := m.writers.Get().(*bufio.Writer)
	defer m.writers.Put(w)
	w.Reset(f)
	defer w.Reset(nil)
	if err := l.write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// Crash: before the move to new/ the whole message is on the disk: no reader
	// ever finds a part of it.
	return f.Sync()
}

// moveNew renames to a name that must be free, by link(2) where the file system
// (NFS) knows no such rename.
func moveNew(box durable.FS, from, to string) error {
	err := box.RenameNew(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		// new/ is missing where tmp/ is not.
		if err := makeSubs(box); err != nil {
			return err
		}
		err = box.RenameNew(from, to)
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Crash: the message under both names, of which tmp/ is nobody's.
	if err := box.Link(from, to); err != nil {
		return err
	}
	// The message is delivered; what stays in tmp/ its reader removes.
	_ = box.Remove(from)
	return nil
}

// openMade opens a Maildir and makes it if it is not there.
func (m *Mailbox) openMade(dir string, t target) (maildirFS, error) {
	box, err := m.open(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return box, err
	}
	if err := m.makeStore(dir, t); err != nil {
		return nil, err
	}
	return m.open(dir)
}

// createIn makes a file with a new name in tmp/. Should the name be taken, by a
// process with our pid on a host of our name, the next is tried.
func (m *Mailbox) createIn(box maildirFS, l *letter) (string, durable.File, error) {
	name, made := m.maildirName(l), false
	for {
		// Crash: an empty file in tmp/ that nobody reads.
		f, err := box.Open("tmp/"+name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		switch {
		case err == nil:
			return name, f, nil
		case errors.Is(err, fs.ErrExist):
			name = m.maildirName(l)
		case errors.Is(err, fs.ErrNotExist) && !made:
			made = true
			if err := makeSubs(box); err != nil {
				return "", nil, err
			}
		default:
			return "", nil, err
		}
	}
}

// makeSubs makes those of a Maildir's three directories that are missing.
func makeSubs(box durable.FS) error {
	for _, sub := range []string{"tmp", "new", "cur"} {
		if err := box.Mkdir(sub, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make Maildir: %w", err)
		}
	}
	return nil
}

// maildirName is a name that no other delivery on any host uses: seconds, then
// microseconds, pid and the count of this process, then the host; and the size for
// readers that sum up.
func (m *Mailbox) maildirName(l *letter) string {
	return strconv.FormatInt(l.now.Unix(), 10) +
		".M" + strconv.Itoa(l.now.Nanosecond()/1000) +
		"P" + strconv.Itoa(os.Getpid()) +
		"Q" + strconv.FormatUint(m.count.Add(1), 10) +
		"." + m.host +
		",S=" + strconv.FormatInt(l.size(), 10)
}
