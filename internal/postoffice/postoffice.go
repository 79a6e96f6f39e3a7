// Package postoffice owns the directories under $POSTOFFICE: which names exist in
// them, what each name means, and the one rename, link, unlink or append that
// turns one state of a message into the next (docs/spool.md). No other package
// builds a spool path.
//
// What survives a crash: every state that a method leaves behind, at any point
// inside it, is one that RecoverRouter or RecoverQueue takes up again.
//
// Diagnostics: ErrGone: somebody else moved the file on; look for other work.
// ErrSubmission: Claim found a user's file; PickUp copies it. *DisbeliefError: the file is
// not one that a daemon may act on (docs/privileges.md); Quarantine puts it away.
// ErrOccupied: the name that a file must get is taken by another file, as after a
// restore. ErrIrregular: Claim found no regular file. ErrUnsettled: Claim left a file that somebody copies in just now.
// ErrCrossDevice, ErrNotPostoffice: found by Open; tell the administrator.
// Anything else is the disk's error, wrapped with the operation and the name.
package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

var (
	// ErrGone means that the file is no longer there under that name.
	ErrGone = errors.New("somebody else has taken it")
	// ErrOccupied means that the name a file should get belongs to another file.
	ErrOccupied = errors.New("the name is taken by another file; see zmctl check")
	// ErrReplaced means that the name belongs to another file than was opened: somebody
	// has put an edited copy in its place.
	ErrReplaced = errors.New("it was replaced by another file")
	// ErrUnsettled means that a file which was copied in may still be written.
	ErrUnsettled = errors.New("it was put there by hand and may still be written; tried again")
	// ErrIrregular means that a name in router/ is no regular file: no message.
	ErrIrregular = errors.New("not a regular file")
	// ErrCrossDevice means that two of the directories are on different file systems.
	ErrCrossDevice = errors.New("directories on different file systems")
	// ErrNotPostoffice means that a directory is missing.
	ErrNotPostoffice = errors.New("not a postoffice; zmctl init makes one")
)

// Directories of a postoffice.
const (
	Public    = "public"    // being written
	Router    = "router"    // accepted, and claimed by a router
	Router0   = "router0"   // used instead of router/ where that is open to users
	Queue     = "queue"     // message files that are routed
	Transport = "transport" // their work specifications
	Deferred  = "deferred"  // routing trouble; zmctl resubmit
	Postman   = "postman"   // copies for the postmaster
	Freezer   = "freezer"   // held by policy
	Owners    = "owners"    // one locked file per live process

	Quarantine = "quarantine" // files that nobody could use, put away for a person
	Removed    = "removed"    // messages that a person removed, kept for a while
	Ledger     = "ledger"     // what was accepted and what became of it
	Orders     = "orders"     // what people did with many messages at once

	Imports = "imports" // what is being taken from another system's queue, and what was

	STS    = "sts"    // MTA-STS policies of other domains
	TLSRPT = "tlsrpt" // what became of TLS, a file for each day
)

// modeOfHash is the mode of the hash directories in queue/ and transport/.
const modeOfHash = 0o750

// modeOfInbox is the mode of router/ where other programs than ours put messages there
// (ROUTERMODE=shared). They list it, as ZMailer's do.
const modeOfInbox = 0o777 | fs.ModeSticky

// Modes of the directories. Any uid submits: public/ can be written by all. It is sticky,
// so that only a file's owner or the postoffice's can rename it, and no user can list it.
// Every other directory is closed to users (docs/privileges.md).
var directories = []struct {
	name string
	mode fs.FileMode
	// later: a postoffice made by an earlier version does not have it. Who needs it
	// makes it with Ensure.
	later bool
}{
	{Public, 0o733 | fs.ModeSticky, false},
	{Router, 0o750, false},
	{Queue, 0o750, false},
	{Transport, 0o750, false},
	{Deferred, 0o750, false},
	{Postman, 0o750, false},
	{Freezer, 0o750, false},
	{Owners, 0o750, false},
	{Quarantine, 0o750, true},
	{Removed, 0o750, true},
	{Ledger, 0o750, true},
	{Orders, 0o750, true},
	{Imports, 0o700, true},
	{STS, 0o750, true},
	{TLSRPT, 0o750, true},
}

// Config says how a postoffice is to be used.
type Config struct {
	FS         durable.FS
	HashLevels int  // 0, 1 or 2 levels of directories in queue/ and transport/
	Strict     bool // sync=strict: directories are synced too
	// Submits: this process is a user's. It leaves messages in public/, where a router picks
	// them up.
	Submits bool
}

// PostOffice is an open postoffice. Its methods may be used by many goroutines.
type PostOffice struct {
	fs      durable.FS
	levels  int
	strict  bool
	owner   uint32 // uid of the directory
	submits bool   // see Config
	inbox   bool   // router/ is open to users; the daemons use router0/
	// shared: new files in public/ get the group of the daemons, who are not root.
	shared  bool
	largest int64 // bytes of a submission; 0: no limit
	// group has drafts share commits; nil: each has its own.
	group *durable.Group
	// renumbering is told before a message gets another inode number's name.
	renumbering func(id SpoolID, from uint64)
	removing    func() // see OnRemove
	// reasons are the messages that this process knows a text of; see Explain.
	reasons inodes
	// ensured are the directories whose names this process has made durable.
	ensured sync.Map
}

// OnRenumber has fn told of each message that is about to be named after its inode
// number because its file was copied or restored: id is its spool ID from then on, from
// the number that it had. Set it before the postoffice is used.
func (p *PostOffice) OnRenumber(fn func(id SpoolID, from uint64)) { p.renumbering = fn }

// OnRemove has fn told of each file that is removed. Set it before the postoffice is used.
func (p *PostOffice) OnRemove(fn func()) { p.removing = fn }

func (p *PostOffice) renumber(info durable.Info, from uint64) {
	if p.renumbering != nil && info.Ino != from {
		p.renumbering(IDOf(info), from)
	}
}

// Init makes the directories that are missing.
func Init(f durable.FS) error {
	for _, d := range directories {
		if err := f.Mkdir(d.name, d.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make postoffice: %w", err)
		}
	}
	// Crash: before this a power loss may take directories that nothing is in yet. A
	// message's own sync need not cover the directory that it is in.
	if err := f.SyncDir("."); err != nil {
		return fmt.Errorf("make postoffice: %w", err)
	}
	return nil
}

// Ensure makes a directory of the postoffice if it is missing.
func (p *PostOffice) Ensure(dir string) error {
	made, err := p.makeDir(dir)
	if _, known := p.ensured.Load(dir); err != nil || known && !made {
		return err
	}
	// Crash: as in Init. One that is there may be of a process that was killed before this.
	if err := p.syncDirs("."); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	p.ensured.Store(dir, true)
	return nil
}

// makeDir is Ensure for who makes the directory's name durable together with what it
// writes there.
func (p *PostOffice) makeDir(dir string) (made bool, err error) {
	for _, d := range directories {
		if d.name != dir {
			continue
		}
		// Crash: a directory that nothing is in yet, or none.
		err := p.fs.Mkdir(d.name, d.mode)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return false, fmt.Errorf("make %s: %w", dir, err)
		}
		return err == nil, nil
	}
	return false, fmt.Errorf("make %s: no directory of a postoffice", dir)
}

// Open checks that every directory is there and on one file system, because the
// pipeline's promise is one rename per step (M50).
func Open(c Config) (*PostOffice, error) {
	if c.HashLevels < 0 || c.HashLevels > 2 {
		return nil, fmt.Errorf("open postoffice: %d hash levels; 0, 1 or 2 are possible", c.HashLevels)
	}
	top, err := c.FS.Stat(".")
	if err != nil {
		return nil, fmt.Errorf("open postoffice: %w", err)
	}
	var first durable.Info
	for i, d := range directories {
		info, err := c.FS.Stat(d.name)
		if errors.Is(err, fs.ErrNotExist) && d.later {
			continue
		}
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
			first = info // public/
		}
		if info.Dev != first.Dev {
			return nil, fmt.Errorf("open postoffice: %s and %s: %w; put both on one, a message is handed over by rename",
				directories[0].name, d.name, ErrCrossDevice)
		}
	}
	p := &PostOffice{fs: c.FS, levels: c.HashLevels, strict: c.Strict, owner: top.UID, submits: c.Submits, shared: first.Mode&fs.ModeSetgid != 0}
	if p.inbox, err = p.exists(Router0); err != nil {
		return nil, fmt.Errorf("open postoffice: %w", err)
	}
	if !c.Strict { // a disk of which no order is taken for granted commits each file itself
		p.group = durable.NewGroup(c.FS)
	}
	return p, p.checkRouterDirs(first.Dev)
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
	var top durable.Info
	p := (*PostOffice)(nil)
	if top, err = f.Stat("."); err == nil {
		self := uint32(os.Geteuid())
		p, err = Open(Config{FS: f, HashLevels: hashLevels, Strict: strict, Submits: self != 0 && self != top.UID})
	}
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
		if err := p.syncDir(d); err != nil {
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

// remove unlinks; a file that is gone already is no error.
func (p *PostOffice) remove(name string) error {
	err := p.fs.Remove(name)
	if err == nil && p.removing != nil {
		p.removing()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// exists tells whether a name is there.
func (p *PostOffice) exists(name string) (bool, error) {
	_, err := p.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
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
