// Package postoffice owns the directories under $POSTOFFICE: which names exist in
// them, what each name means, and the one rename, link, unlink or append that
// turns one state of a message into the next (docs/spool.md). No other package
// builds a spool path. PostOffice has a field for each part of it: a message goes from
// Submissions to Router to Queue; Aside and Removed hold messages that left that path; Owners
// and Operations record which processes and which operators work on it. Repair fixes states
// that only manual changes create.
//
// What survives a crash: every state that a method leaves behind, at any point
// inside it, is one from which RouterQueue.Recover or DeliveryQueue.Recover resumes.
//
// Diagnostics: ErrGone: another process moved the file on; look for other work.
// ErrSubmission: Claim found a user's file; PickUp copies it. *UntrustedError: the file is
// not one that a daemon may act on (docs/privileges.md); Quarantine puts it away.
// ErrOccupied: the name that a file must get is taken by another file, as after a
// restore. ErrIrregular: Claim found no regular file. ErrUnsettled: Claim left
// a file that is still being copied in.
// ErrCrossDevice, ErrNotPostoffice: found by Open; report them to the administrator.
// Anything else is the disk's error, wrapped with the operation and the name.
package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/fenced"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/lease"
)

var (
	// ErrGone means that the file is no longer there under that name.
	ErrGone = errors.New("the file is gone; another process has moved it")
	// ErrOccupied means that the name a file should get belongs to another file.
	ErrOccupied = errors.New("another file has the name; see zmctl check")
	// ErrReplaced means that the name belongs to another file than was opened, as when an
	// operator has put an edited copy in its place.
	ErrReplaced = errors.New("another file has replaced it")
	// ErrUnsettled means that a file which was copied in may still be written.
	ErrUnsettled = errors.New("a file copied in by hand may still be written; tried again later")
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

	Quarantine = "quarantine" // files that no program could use, put away for an operator
	Removed    = "removed"    // messages that an operator removed, kept for a while
	Ledger     = "ledger"     // what was accepted and what became of it
	Orders     = "orders"     // what operators did with many messages at once

	Imports = "imports" // what is being taken from another system's queue, and what was

	Clients = "clients" // what smtpserver remembers about clients

	STS    = "sts"    // MTA-STS policies of other domains
	TLSRPT = "tlsrpt" // what became of TLS, a file for each day
	Verify = "verify" // what next hops know of recipients

	Suspended = "suspended" // what operators have suspended

	LastGood = lastgood.Dir // copies of tables and keys as they were when they could be used
)

// modeOfHash is the mode of the hash directories in queue/ and transport/.
const modeOfHash = 0o750

// modeOfInbox is the mode of router/ where other programs than ours put messages there
// (ROUTERMODE=shared). They list it, as ZMailer's do.
const modeOfInbox = 0o777 | fs.ModeSticky

// Modes of the directories. Any uid submits: public/ can be written by all. It is sticky,
// so that only a file's owner or the postoffice's can rename it, and no user can list it.
// In suspended/ submit reads a file that it knows the name of. Every other directory is closed
// to users (docs/privileges.md).
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
	{Clients, 0o750, true},
	{LastGood, 0o700, true},
	{Verify, 0o750, true},
	{Suspended, 0o711, true},
}

// Config says how a postoffice is to be used.
type Config struct {
	FS         durable.FS
	HashLevels int  // 0, 1 or 2 levels of directories in queue/ and transport/
	Strict     bool // sync=strict: directories are synced too
	// Submits: this process is a user's. It leaves messages in public/, where a router picks
	// them up.
	Submits bool
	// Epoch is the number of the claim under which this process works, in a postoffice that
	// several machines may serve: numbers in owners/ of older epochs are those of dead processes,
	// whatever the file system says of their locks. 0: there is one machine.
	Epoch uint64
}

// PostOffice is an open postoffice. Each part of it is a type of its own. The methods of all
// parts may be used by many goroutines.
type PostOffice struct {
	*spool
	Submissions *Submissions   // public/: what is being written and what users submitted
	Imports     *ImportArea    // imports/: messages of another system's queue
	Router      *RouterQueue   // router/: what is to be routed
	Queue       *DeliveryQueue // queue/ and transport/: what is to be delivered
	Aside       *AsideArea     // deferred/, freezer/, postman/, quarantine/: what waits for an operator
	Removed     *RemovedArea   // removed/: what an operator removed
	Owners      *OwnerTable    // owners/: the live processes
	Operations  *OperationsLog // orders/: what operators did
	Epochs      *EpochTable    // epochs/: which machine serves it
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
		switch {
		case errors.Is(err, fs.ErrNotExist) && d.later:
			continue
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("open postoffice: %w: %w", ErrNotPostoffice, err)
		case err != nil:
			return nil, fmt.Errorf("open postoffice: %w", err)
		case !info.Mode.IsDir():
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
	p := &spool{fs: c.FS, levels: c.HashLevels, strict: c.Strict, epoch: c.Epoch, owner: top.UID, submits: c.Submits, shared: first.Mode&fs.ModeSetgid != 0}
	if p.inbox, err = p.exists(Router0); err != nil {
		return nil, fmt.Errorf("open postoffice: %w", err)
	}
	if !c.Strict { // a disk of which no order is taken for granted commits each file itself
		p.group = durable.NewGroup(c.FS)
	}
	return assemble(p), p.routers().check(first.Dev)
}

// assemble makes the parts over a spool.
func assemble(p *spool) *PostOffice {
	o := &PostOffice{spool: p, Submissions: &Submissions{p}, Imports: &ImportArea{p}, Aside: &AsideArea{spool: p},
		Removed: &RemovedArea{p}, Owners: &OwnerTable{p}, Operations: &OperationsLog{p}, Epochs: &EpochTable{p}}
	o.Queue = &DeliveryQueue{p, o.Owners}
	o.Router = &RouterQueue{spool: p, aside: o.Aside, owners: o.Owners, submissions: o.Submissions, crashes: &crashMarkers{p}}
	return o
}

// OpenDir opens the postoffice in a directory of the real file system.
func OpenDir(dir string, hashLevels int, strict bool) (*PostOffice, error) {
	return OpenLeased(dir, hashLevels, strict, nil, 0)
}

// OpenLeased is OpenDir for a program that changes the postoffice only while this machine holds
// its lease. Without a page it is OpenDir.
func OpenLeased(dir string, hashLevels int, strict bool, page *lease.Page, guards fenced.Guards) (*PostOffice, error) {
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
		p, err = Open(Config{FS: fenced.New(f, page, guards), HashLevels: hashLevels, Strict: strict, Submits: self != 0 && self != top.UID})
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// OnRenumber has fn called for each message that is about to be named after its inode
// number because its file was copied or restored: id is its spool ID from then on, from
// the number that it had. Set it before the postoffice is used.
func (p *PostOffice) OnRenumber(fn func(id SpoolID, from uint64)) { p.renumbering = fn }

// OnRemove has fn called for each file that is removed. Set it before the postoffice is used.
func (p *PostOffice) OnRemove(fn func()) { p.removing = fn }

// FS returns the file system below the postoffice, for those who only look.
func (p *PostOffice) FS() durable.FS { return p.fs }

// HashLevels returns the configured depth of queue/ and transport/.
func (p *PostOffice) HashLevels() int { return p.levels }

// Strict reports whether directories are synced too, SYNC=strict.
func (p *PostOffice) Strict() bool { return p.strict }

// Owner returns the uid that the postoffice belongs to.
func (p *PostOffice) Owner() uint32 { return p.owner }

// Ensure makes a directory of the postoffice if it is missing.
func (p *PostOffice) Ensure(dir string) error { return p.ensure(dir) }

// Mode returns the mode that a directory of the postoffice is made with, and whether every
// postoffice has it; ok is false for other names.
func Mode(dir string) (mode fs.FileMode, always, ok bool) {
	for _, d := range directories {
		if d.name == dir {
			return d.mode, !d.later, true
		}
	}
	if IsRouterDir(dir) {
		return modeOfRouterDir, false, true
	}
	return 0, false, false
}

// Directories lists the directories of every postoffice. Dirs lists what further
// ones one has.
func Directories() []string {
	var list []string
	for _, d := range directories {
		list = append(list, d.name)
	}
	return list
}

// ModeOf returns the mode that a directory of this postoffice is to have.
func (p *PostOffice) ModeOf(dir string) fs.FileMode {
	mode, _, _ := Mode(dir)
	switch {
	case dir == Public && p.shared:
		return mode | fs.ModeSetgid // see ChangeOwner
	case dir == Router && p.inbox:
		mode = modeOfInbox
		if p.shared {
			mode |= fs.ModeSetgid
		}
	}
	return mode
}

// Closed is the action of Recovered for a directory that others could use until now.
const Closed = "closed"

// Secure takes from others the rights that a directory of the postoffice must not give
// them, as in one that an earlier version made. It adds no rights. What cannot be changed
// is among the results as Unreadable.
func (p *PostOffice) Secure() ([]Recovered, error) {
	dirs, err := p.securedDirs()
	if err != nil {
		return nil, fmt.Errorf("close directories: %w", err)
	}
	var done report
	for _, dir := range dirs {
		r, err := p.secureDir(dir)
		done.add(dir, r, gone(err))
	}
	return done, nil
}

func (p *PostOffice) securedDirs() ([]string, error) {
	dirs := Directories()
	routers, err := p.routers().all()
	for _, dir := range routers {
		if dir != Router {
			dirs = append(dirs, dir)
		}
	}
	return dirs, err
}

func (p *PostOffice) secureDir(dir string) (*Recovered, error) {
	want := p.ModeOf(dir)
	info, err := p.fs.Stat(dir)
	if err != nil || !info.Mode.IsDir() {
		return nil, err
	}
	mode := info.Mode &^ fs.ModeType
	closed := mode &^ (fs.ModePerm &^ want.Perm())
	if want.Perm()&0o002 != 0 {
		closed |= fs.ModeSticky
	}
	if closed == mode {
		return nil, nil
	}
	// Crash: open to others as before, or closed.
	if err := p.setMode(dir, closed); err != nil {
		return nil, fmt.Errorf("others can use it: %w", err)
	}
	return &Recovered{Action: Closed, Name: dir, Detail: fmt.Sprintf("mode %s was %s", closed, mode)}, nil
}

func (p *spool) setMode(dir string, mode fs.FileMode) error {
	f, err := p.fs.Open(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close())
}

// Share makes router/ a directory in which other programs than ours leave messages, as in
// ZMailer: what was router/ is router0/ from then on, which the daemons use. No daemon may
// run meanwhile.
func (p *PostOffice) Share() error {
	if err := p.share(); err != nil {
		return fmt.Errorf("open router/ to users: %w", err)
	}
	return nil
}

func (p *PostOffice) share() error {
	there, err := p.exists(Router0)
	if err != nil {
		return err
	}
	if !there {
		// Crash: router/ is missing. Nothing starts, and the next init makes it and goes on.
		if err := durable.MoveFree(p.fs, Router, Router0); err != nil {
			return err
		}
		if err := p.fs.Mkdir(Router, modeOfRouterDir); err != nil {
			return err
		}
		if err := p.fs.SyncDir("."); err != nil {
			return err
		}
	}
	p.inbox = true
	// Crash: router/ is closed and empty; the next init opens it.
	return p.setMode(Router, p.ModeOf(Router))
}
