// Package postoffice owns the directories under $POSTOFFICE: which names exist in
// them, what each name means, and the one rename, link, unlink or append that
// turns one state of a message into the next (docs/spool.md). No other package
// builds a spool path.
//
// What survives a crash: every state that a method leaves behind, at any point
// inside it, is one that RecoverRouter or RecoverQueue takes up again.
//
// Diagnostics: ErrGone: somebody else moved the file on; look for other work.
// ErrOccupied: the name that a file must get is taken by another file, as after a
// restore. ErrCrossDevice, ErrNotPostoffice: found by Open; tell the administrator.
// Anything else is the disk's error, wrapped with the operation and the name.
package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/durable"
)

var (
	// ErrGone means that the file is no longer there under that name.
	ErrGone = errors.New("somebody else has taken it")
	// ErrOccupied means that the name a file should get belongs to another file.
	ErrOccupied = errors.New("the name is taken by another file; see zmctl check")
	// ErrCrossDevice means that two of the directories are on different file systems.
	ErrCrossDevice = errors.New("directories on different file systems")
	// ErrNotPostoffice means that a directory is missing.
	ErrNotPostoffice = errors.New("not a postoffice; zmctl init makes one")
)

// Directories of a postoffice.
const (
	Public    = "public"    // being written
	Router    = "router"    // accepted, and claimed by a router
	Queue     = "queue"     // message files that are routed
	Transport = "transport" // their work specifications
	Deferred  = "deferred"  // routing trouble; zmctl resubmit
	Postman   = "postman"   // copies for the postmaster
	Freezer   = "freezer"   // held by policy
	Owners    = "owners"    // one locked file per live process
)

// Modes of the directories. Any uid submits: public/ and router/ are sticky, so
// that only a file's owner or the postoffice's can rename it.
var directories = []struct {
	name string
	mode fs.FileMode
}{
	{Public, 0o777 | fs.ModeSticky},
	{Router, 0o777 | fs.ModeSticky},
	{Queue, 0o755},
	{Transport, 0o755},
	{Deferred, 0o755},
	{Postman, 0o750},
	{Freezer, 0o750},
	{Owners, 0o755},
}

// Config says how a postoffice is to be used.
type Config struct {
	FS         durable.FS
	HashLevels int  // 0, 1 or 2 levels of directories in queue/ and transport/
	Strict     bool // sync=strict: directories are synced too
}

// PostOffice is an open postoffice. Its methods may be used by many goroutines.
type PostOffice struct {
	fs     durable.FS
	levels int
	strict bool
}

// Init makes the directories that are missing.
func Init(f durable.FS) error {
	for _, d := range directories {
		if err := f.Mkdir(d.name, d.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make postoffice: %w", err)
		}
	}
	return nil
}

// Open checks that every directory is there and on one file system, because the
// pipeline's promise is one rename per step (M50).
func Open(c Config) (*PostOffice, error) {
	if c.HashLevels < 0 || c.HashLevels > 2 {
		return nil, fmt.Errorf("open postoffice: %d hash levels; 0, 1 or 2 are possible", c.HashLevels)
	}
	var first durable.Info
	for i, d := range directories {
		info, err := c.FS.Stat(d.name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open postoffice: %w: %w", ErrNotPostoffice, err)
		}
		if err != nil {
			return nil, fmt.Errorf("open postoffice: %w", err)
		}
		if !info.Mode.IsDir() {
			return nil, fmt.Errorf("open postoffice: %s is no directory: %w", d.name, ErrNotPostoffice)
		}
		if i == 0 {
			first = info
		}
		if info.Dev != first.Dev {
			return nil, fmt.Errorf("open postoffice: %s and %s: %w; put both on one, a message is handed over by rename",
				directories[0].name, d.name, ErrCrossDevice)
		}
	}
	return &PostOffice{fs: c.FS, levels: c.HashLevels, strict: c.Strict}, nil
}

// OpenDir opens the postoffice in a directory of the real file system.
func OpenDir(dir string, hashLevels int, strict bool) (*PostOffice, error) {
	f, err := durable.NewOS(dir)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("open postoffice: %w: %w", ErrNotPostoffice, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open postoffice: %w", err)
	}
	p, err := Open(Config{FS: f, HashLevels: hashLevels, Strict: strict})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// FS is the file system below the postoffice, for those who only look.
func (p *PostOffice) FS() durable.FS { return p.fs }

// HashLevels is the configured depth of queue/ and transport/.
func (p *PostOffice) HashLevels() int { return p.levels }

// syncDirs makes names in directories durable if sync=strict asks for it.
func (p *PostOffice) syncDirs(dirs ...string) error {
	if !p.strict {
		return nil
	}
	for _, d := range dirs {
		if err := p.fs.SyncDir(d); err != nil {
			return err
		}
	}
	return nil
}

// move renames to a name that must be free. ErrGone: the source went away.
// The caller says what a reader finds when the power goes.
func (p *PostOffice) move(from, to string) error {
	err := p.fs.RenameNew(from, to)
	if errors.Is(err, fs.ErrNotExist) && strings.Contains(to, "/") {
		// Source or target directory is missing: a hash directory is made on demand.
		if _, serr := p.fs.Stat(from); serr == nil {
			if merr := p.makeParents(to); merr != nil {
				return merr
			}
			err = p.fs.RenameNew(from, to)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrGone, err)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %w", ErrOccupied, err)
	}
	return err
}

// makeParents makes the hash directories above name.
func (p *PostOffice) makeParents(name string) error {
	parts := strings.Split(path.Dir(name), "/")
	for i := 2; i <= len(parts); i++ {
		dir := strings.Join(parts[:i], "/")
		if err := p.fs.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// remove unlinks; a file that is gone already is no error.
func (p *PostOffice) remove(name string) error {
	err := p.fs.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// exists tells whether a name is there.
func (p *PostOffice) exists(name string) (bool, error) {
	_, err := p.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// openRead opens a file of the postoffice for reading, without waiting for the
// other end of a FIFO that somebody has put there.
func (p *PostOffice) openRead(name string) (durable.File, error) {
	f, err := p.fs.Open(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return f, err
}
