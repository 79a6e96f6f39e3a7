package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// notePrefix begins the name of an empty file in transport/, beside the specification
// that it names: a person's command has changed that, and the scheduler is to read it
// again. The scheduler removes the note then.
const notePrefix = "look."

// NoteChange asks the scheduler to read transport/name again.
func (p *PostOffice) NoteChange(name string) error {
	// Crash: with the note the scheduler looks now, without it when an attempt for the
	// message finds that it has changed.
	f, err := p.fs.Open(path.Join(Transport, path.Dir(name), notePrefix+path.Base(name)), os.O_WRONLY|os.O_CREATE, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note a change of %s: %w: %w", name, ErrGone, err)
	}
	if err != nil {
		return fmt.Errorf("note a change of %s: %w", name, err)
	}
	return f.Close()
}

// ParseNote gives the name, below transport/, of the specification that a note there
// is about. ok is false for names that are no notes.
func ParseNote(name string) (about string, ok bool) {
	base, ok := strings.CutPrefix(path.Base(name), notePrefix)
	if !ok {
		return "", false
	}
	if _, ok := ParseName(base); !ok {
		return "", false
	}
	return path.Join(path.Dir(name), base), true
}

// DropNote removes the note about transport/name, if there is one.
func (p *PostOffice) DropNote(name string) error {
	// Crash: it is looked at once more.
	if err := p.remove(path.Join(Transport, path.Dir(name), notePrefix+path.Base(name))); err != nil {
		return fmt.Errorf("drop the note about %s: %w", name, err)
	}
	return nil
}

// ListTransportAndNotes is ListTransport, and calls note with the names that may be those of
// notes (ParseNote) or of copies that were left (ParseCopy).
func (p *PostOffice) ListTransportAndNotes(fn, note func(name string) error) error {
	return p.listHashed(Transport, "", 2, fn, note)
}
