package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// rotate gives the journal the next number. Writers notice by and by; what they write
// until then is in the numbered one.
func rotate(f durable.FS) error {
	have, err := survey(f)
	if err != nil {
		return fmt.Errorf("rotate journal: %w", err)
	}
	if have.journal == 0 {
		return nil
	}
	next, err := through(f)
	if err != nil {
		return fmt.Errorf("rotate journal: %w", err)
	}
	for _, n := range have.numbers {
		next = max(next, n)
	}
	// Crash: under the old or the new name; both are read. Without the journal the next
	// writer makes one.
	err = durable.MoveFree(f, journalName, numbered(next+1))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rotate journal: %w", err)
	}
	return nil
}

// through returns the number of the last journal that base holds.
func through(f durable.FS) (int, error) {
	b := newBook()
	b.brief = true
	err := b.readBase(f)
	return b.Through, err
}

// fold brings the lines of journals that no one writes any more into base: what is done
// with is counted and forgotten, the rest is there line by line. Only the scheduler
// calls it. It returns how many journals are gone.
func fold(po *postoffice.PostOffice) (int, error) {
	f := po.FS()
	have, err := survey(f)
	if err != nil || len(have.numbers) == 0 {
		return 0, err
	}
	b := newBook()
	if err := b.readBase(f); err != nil {
		return 0, err
	}
	// In order: a line must not come before those that were written before it.
	var held []durable.File
	defer func() {
		for _, h := range held {
			// Read only: close has nothing to lose.
			_ = h.Close()
		}
	}()
	var done []int
	for _, n := range have.numbers {
		h, err := alone(f, numbered(n))
		if err != nil {
			return 0, err
		}
		if h == nil {
			break // a writer still has it
		}
		held = append(held, h)
		if n > b.Through {
			if err := readOpen(h, b.applyLines); err != nil {
				return 0, err
			}
		}
		done = append(done, n)
	}
	if len(done) == 0 {
		return 0, nil
	}
	if last := done[len(done)-1]; last > b.Through {
		b.resolve()
		if err := b.forget(po); err != nil {
			return 0, err
		}
		b.Through = last
		if err := b.writeBase(f); err != nil {
			return 0, err
		}
	}
	for _, n := range done {
		// Crash: journals that base holds already are left, and removed the next time.
		if err := f.Remove(numbered(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	return len(done), nil
}

// alone opens a journal if no process writes to it; nil: one does.
func alone(f durable.FS, name string) (durable.File, error) {
	h, err := f.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	free, err := h.TryLock()
	if err == nil && free {
		return h, nil
	}
	return nil, errors.Join(err, h.Close())
}

// forget counts the records that are done with and drops them. One whose files are
// still there may end a second time and is kept until they are gone, one that may come
// back out of removed/, and one whose numbers do not agree until an operator has settled it.
func (b *Book) forget(po *postoffice.PostOffice) error {
	left := map[uint64]bool{} // inode numbers
	note := func(name string) error {
		if n, ok := postoffice.ParseName(name); ok {
			left[n.Ino] = true
		}
		return nil
	}
	if err := errors.Join(po.Queue.ListMessages(note), po.Queue.List(note)); err != nil {
		return err
	}
	entries, err := po.FS().ReadDir(postoffice.Removed)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		left[e.Ino] = true
	}
	for id, r := range b.Records {
		if r.Open() || r.uneven() || r.Unreported > 0 || left[id.Ino] {
			continue
		}
		b.Sum.add(r)
		delete(b.Records, id)
	}
	return nil
}

func (b *Book) writeBase(f durable.FS) (err error) {
	h, err := f.Open(newBase, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = h.Write(b.appendBase(nil))
	if err == nil {
		err = h.Sync()
	}
	if err := errors.Join(err, h.Close()); err != nil {
		return err
	}
	// Crash: base as it was, with the journals that go into it, or as it is to be.
	if err := f.Rename(newBase, baseName); err != nil {
		return err
	}
	// Crash: the journals are removed after this: never before base has their lines.
	return f.SyncDir(postoffice.Ledger)
}
