package mailbox

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// maildirFS is a Maildir's directory tree.
type maildirFS interface {
	durable.FS
	Close() error
}

// toMaildir adds the message to a Maildir: written in tmp/, synced, moved to new/
// (the Maildir specification, "How a message is delivered").
func (m *Mailbox) toMaildir(dir string, t target, l *message) error {
	box, err := m.openMade(dir, t)
	if err != nil {
		return err
	}
	defer box.Close()
	name := m.maildirName(l)
	if l.recipient.Sent != nil {
		where, err := m.settle(box, name, l)
		if err == nil && where != "" {
			err = m.syncStore(dir, t)
		}
		if err != nil || where != "" {
			return err
		}
	}
	if t.spool {
		if err := m.quotaOf(&t).maildirRoom(box, name, l.size(), l.now); err != nil {
			return err
		}
	}
	f, err := createIn(box, name, &t)
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
		// Crash: whole and synced in tmp/, to be removed by the next attempt, or in new/,
		// where that finds it.
		err = moveNew(box, "tmp/"+name, "new/"+name, t.dirMode())
	}
	delivered := errors.Is(err, fs.ErrExist)
	if err != nil {
		// Crash: a file in tmp/, which is never read.
		rerr := box.Remove("tmp/" + name)
		if !delivered || rerr != nil {
			return errors.Join(err, rerr)
		}
	}
	// Crash: before this a power loss may take the name in new/ and keep the tag that
	// is set next, and the message would be in neither place. An error repeats the
	// attempt, which finds the message.
	err = box.SyncDir("new")
	if err == nil {
		err = m.syncStore(dir, t)
	}
	if err != nil {
		return &uncertain{err}
	}
	if t.spool {
		m.quotaOf(&t).note(box, l.size())
	}
	return nil
}

// settle finds out where an agent that died has delivered the message: "new", "cur",
// where its reader has put it since, or "", if it has not come to that. If it is in
// none of the places that show this, it is unknown.
func (m *Mailbox) settle(box maildirFS, name string, l *message) (where string, err error) {
	for _, sub := range []string{"new", "tmp"} {
		switch _, err := box.Stat(sub + "/" + name); {
		case err == nil && sub == "tmp":
			return "", nil
		case err == nil:
			// Crash: as in toMaildir: the name must be durable before the tag that is set next.
			return sub, box.SyncDir(sub)
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
	}
	entries, err := box.ReadDir("cur")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, e := range entries {
		// Behind the colon are its reader's marks.
		if base, _, _ := strings.Cut(e.Name, ":"); base == name {
			return "cur", box.SyncDir("cur")
		}
	}
	return "", l.inDoubt()
}

// fill writes and syncs the file in tmp/.
func (m *Mailbox) fill(f durable.File, l *message) error {
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
func moveNew(box durable.FS, from, to string, mode uint32) error {
	err := box.RenameNew(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		// new/ is missing where tmp/ is not.
		if err := makeSubs(box, mode); err != nil {
			return err
		}
		err = box.RenameNew(from, to)
	}
	if !errors.Is(err, durable.ErrNoRenameNew) {
		return err
	}
	// Crash: the message under both names; the one in tmp/ is never read.
	if err := box.Link(from, to); err != nil {
		return err
	}
	// The message is delivered; what stays in tmp/ its reader removes.
	_ = box.Remove(from)
	return nil
}

// openMade opens a Maildir and makes it if it is not there.
func (m *Mailbox) openMade(dir string, t target) (maildirFS, error) {
	box, err := m.open(dir, m.owner(t), t.spool)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && m.adoptStore(dir, t) {
		box, err = m.open(dir, m.owner(t), t.spool)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return box, err
	}
	if err := m.makeStore(dir, t); err != nil {
		return nil, err
	}
	return m.open(dir, m.owner(t), t.spool)
}

// createIn makes the file in tmp/. One of that name was left by an attempt that was
// killed: the recipient is locked, so no live process writes it. It is removed and
// not written over, for it may be in new/ as well, see moveNew.
func createIn(box maildirFS, name string, t *target) (durable.File, error) {
	made, cleared := false, false
	for {
		// Crash: an empty file in tmp/ that the next attempt removes.
		f, err := box.Open("tmp/"+name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		switch {
		case errors.Is(err, fs.ErrExist) && !cleared:
			cleared = true
			// Crash: as if the attempt had not been made.
			if err := box.Remove("tmp/" + name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		case errors.Is(err, fs.ErrNotExist) && !made:
			made = true
			if err := makeSubs(box, t.dirMode()); err != nil {
				return nil, err
			}
		case err == nil && t.mode != 0:
			// Crash: a file in tmp/ for its user alone.
			if err := f.Chmod(fs.FileMode(t.mode)); err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return f, nil
		default:
			return f, err
		}
	}
}

// makeSubs makes those of a Maildir's three directories that are missing.
func makeSubs(box durable.FS, mode uint32) error {
	for _, sub := range []string{"tmp", "new", "cur"} {
		if err := box.Mkdir(sub, fs.FileMode(mode)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make Maildir: %w", err)
		}
	}
	// Crash: before this they may be gone with all that is in them. An attempt that was
	// killed before it is made up for by syncStore.
	if err := box.SyncDir("."); err != nil {
		return fmt.Errorf("make Maildir: %w", err)
	}
	return nil
}

// syncStore makes the names of a Maildir durable, once in each process: those of its three
// directories, its own, and those above it.
func (m *Mailbox) syncStore(dir string, t target) error {
	return m.syncName(dir+"/new", t)
}

// adoptStore gives a Maildir that a killed agent has left as root's to its user, and reports
// whether it did.
func (m *Mailbox) adoptStore(dir string, t target) bool {
	above, err := openAbove(dir, m.owner(t))
	if err != nil {
		return false
	}
	defer unix.Close(above)
	return m.adopt(above, path.Base(dir), unix.S_IFDIR, t)
}

// maildirName returns a name that no other delivery on any host uses, and every attempt at
// this one: the message's seconds, then its spool ID and the recipient, or the first of those
// who share the copy, then the host;
// and the size for readers that sum up.
func (m *Mailbox) maildirName(l *message) string {
	id := l.delivery.ID()
	return strconv.FormatInt(id.Time().Unix(), 10) +
		"." + id.String() + "R" + strconv.FormatInt(l.lead.Offset, 10) +
		"." + m.host +
		",S=" + strconv.FormatInt(l.size(), 10)
}
