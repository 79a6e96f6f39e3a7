package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"zmailer/internal/disk/durable"
)

// ImportArea is imports/. Messages of another system's queue are written there, and not in
// public/, because no sweep removes them there: a file that a record names and that does not
// exist any more was submitted, and nothing else can have become of it.
type ImportArea struct{ *spool }

// NewDraft begins such a message as imports/tag.T. tag must hold no dot. Its Prepare
// leaves its name to SyncDrafts, which is called before a record names it.
func (p *ImportArea) NewDraft(tag string) (*Draft, error) {
	return openDraft(p.spool, draftName(Imports, tag))
}

// SyncDrafts makes the names of prepared imports durable, many at once.
func (p *ImportArea) SyncDrafts() error {
	// Crash: the names must be there when the record that names them is.
	if err := p.fs.SyncDir(Imports); err != nil {
		return fmt.Errorf("prepare imports: %w", err)
	}
	return nil
}

// Submit moves imports/name, which Prepare left, to router/ or, with a cause, to
// freezer/. ErrGone: it was moved before. SyncSubmitted makes it durable.
func (p *ImportArea) Submit(name, cause string) (Accepted, error) {
	from := Imports + "/" + name
	f, err := p.openRead(from)
	if err != nil {
		return Accepted{}, fmt.Errorf("submit import: %w", err)
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = f.Close() }()
	// Crash: in imports/ with the mode of a message; the record names it, and it is
	// submitted by the next import.
	if err := f.Chmod(p.mode(true)); err != nil {
		return Accepted{}, fmt.Errorf("submit import: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return Accepted{}, fmt.Errorf("submit import: %w", err)
	}
	a := Accepted{ID: IDOf(info), Size: info.Size}
	dir, end := p.routers().first(), ""
	if cause != "" {
		dir, end = Freezer, "."+CauseWord(cause)
	}
	// Crash: in imports/, named by the record, or where it belongs.
	if a.Name, err = p.moveInMine(from, dir, info.Ino, end); err != nil {
		return Accepted{}, fmt.Errorf("submit import: %w", err)
	}
	return a, nil
}

// SyncSubmitted makes durable what Submit has moved: before that nothing may say that
// it was taken.
func (p *ImportArea) SyncSubmitted() error {
	return errors.Join(p.fs.SyncDir(p.routers().first()), p.fs.SyncDir(Freezer), p.fs.SyncDir(Imports))
}

// List lists the messages in imports/ whose names begin with a tag.
func (p *ImportArea) List(tag string) ([]string, error) {
	entries, err := p.fs.ReadDir(Imports)
	if err != nil {
		return nil, fmt.Errorf("list imports: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name, tag+".") {
			names = append(names, e.Name)
		}
	}
	return names, nil
}

// Drop removes imports/name, which no record names.
func (p *ImportArea) Drop(name string) error {
	// Crash: there or not; the next import writes its message again.
	if err := p.remove(Imports + "/" + name); err != nil {
		return fmt.Errorf("drop import: %w", err)
	}
	return nil
}

// ImportRecord is imports/NAME, lines that say what was taken from one queue. Who has it
// open holds its flock.
type ImportRecord struct{ record }

// torn ends a line that a loss of power has cut: no reader takes it for a whole one.
const torn = " torn\n"

// OpenRecord opens the record of a queue, with what is in it; a new one begins
// with head. durable.ErrLocked: another import of that queue is under way.
func (p *ImportArea) OpenRecord(name string, head []byte) (*ImportRecord, []byte, error) {
	if _, err := p.makeDir(Imports); err != nil {
		return nil, nil, fmt.Errorf("open import record: %w", err)
	}
	// Crash: an empty record, or one with its head: nothing was taken.
	f, err := durable.OpenLocking(p.fs, Imports+"/"+name, os.O_RDWR|os.O_APPEND)
	if err != nil {
		return nil, nil, fmt.Errorf("open import record: %w", err)
	}
	r := &ImportRecord{record{f}}
	text, err := r.begin(head)
	if err == nil {
		// Crash: what is noted in it must not be lost with its name.
		err = errors.Join(p.fs.SyncDir(Imports), p.fs.SyncDir("."))
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open import record %s: %w", name, err), f.Close())
	}
	return r, text, nil
}

func (r *ImportRecord) begin(head []byte) ([]byte, error) {
	if err := lock(r.f); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(r.f)
	switch {
	case err != nil:
		return nil, err
	case len(text) == 0:
		return head, r.Append(head)
	case text[len(text)-1] != '\n':
		// A line that was cut was not synced, and nothing was done upon it.
		return append(text, torn...), r.Append([]byte(torn))
	}
	// Crash: lines of an import that was killed may be in memory alone; what is done upon them
	// must not outlive them.
	return text, r.f.Sync()
}

// ReadRecord returns what is in the record of a queue; none, if there is none.
func (p *ImportArea) ReadRecord(name string) ([]byte, error) {
	b, err := p.readAll(Imports + "/" + name)
	if errors.Is(err, ErrGone) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read import record %s: %w", name, err)
	}
	return b, nil
}
