package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// spool is what the parts have in common: the file system, how it is used, and the one
// rename, link or unlink that each of their steps consists of.
type spool struct {
	fs      durable.FS
	levels  int
	strict  bool
	epoch   uint64 // see Config
	owner   uint32 // uid of the directory
	submits bool   // see Config
	inbox   bool   // router/ is open to users; the daemons use router0/
	// shared: new files in public/ get the group of the daemons, who are not root.
	shared  bool
	largest int64 // bytes of a submission; 0: no limit
	// group has drafts share commits; nil: each has its own.
	group *durable.Group
	// renumbering is called before a message gets another inode number's name.
	renumbering func(id SpoolID, from uint64)
	removing    func() // see OnRemove
	// ensured are the directories whose names this process has made durable.
	ensured sync.Map
	// linked: the file system was found to have no RenameNew; see links.go.
	linked atomic.Bool
}

// move renames to a name that must be free. ErrGone: the source went away.
// The caller says what a reader finds when the power goes; where the file system has no
// RenameNew that may be both names, too. See moveOwn and moveMine.
func (p *spool) move(from, to string) error {
	return p.moving(from, to, func() error { return p.renameAny(from, to) })
}

// moving calls a rename, and makes the hash directories that it misses.
func (p *spool) moving(from, to string, rename func() error) error {
	err := rename()
	if errors.Is(err, fs.ErrNotExist) && strings.Contains(to, "/") {
		// Source or target directory is missing: a hash directory is made on demand.
		if _, serr := p.fs.Stat(from); serr == nil {
			if merr := p.makeParents(to); merr != nil {
				return merr
			}
			err = rename()
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrOccupied, err)
	}
	return gone(err)
}

// moveIn moves a message to a directory under the number of its inode or, where another
// file has that name, under a number taken at random: an occupied name costs another name
// and nothing else. It returns the new path. end follows the number.
func (p *spool) moveIn(from, dir string, ino uint64, end string) (string, error) {
	return moveInBy(p.move, from, dir, ino, end)
}

// moveInMine is moveIn as moveMine is move.
func (p *spool) moveInMine(from, dir string, ino uint64, end string) (string, error) {
	return moveInBy(p.moveMine, from, dir, ino, end)
}

func moveInBy(move func(from, to string) error, from, dir string, ino uint64, end string) (string, error) {
	to := dir + "/" + inodeName(ino) + end
	// Crash: the caller's to say: the old name or the new one.
	err := move(from, to)
	for range 8 {
		if !errors.Is(err, ErrOccupied) {
			break
		}
		to = dir + "/" + inodeName(randomNumber()) + end
		// Crash: as before.
		err = move(from, to)
	}
	return to, err
}

// remove unlinks; a file that is gone already is no error.
func (p *spool) remove(name string) error {
	err := p.fs.Remove(name)
	if err == nil && p.removing != nil {
		p.removing()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// exists reports whether a name is there.
func (p *spool) exists(name string) (bool, error) {
	_, err := p.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}

// same describes dir/name if it is the message id.
func (p *spool) same(dir, name string, id SpoolID) (durable.Info, error) {
	info, err := p.fs.Stat(dir + "/" + name)
	if err == nil && IDOf(info) != id {
		err = ErrGone
	}
	return info, gone(err)
}

// openRead opens a file of the postoffice for reading, without waiting for the
// other end of a FIFO that somebody has put there.
func (p *spool) openRead(name string) (durable.File, error) {
	f, err := p.fs.Open(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	return f, gone(err)
}

// openFree opens a file for reading with a flock that a living process may have, and
// describes it; nil: one has it.
func (p *spool) openFree(name string, try func(durable.File) (bool, error)) (durable.File, durable.Info, error) {
	f, err := p.openRead(name)
	if err != nil {
		return nil, durable.Info{}, err
	}
	free, err := try(f)
	var info durable.Info
	if err == nil && free {
		info, err = f.Stat()
	}
	if err != nil || !free {
		return nil, durable.Info{}, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// lock takes the flock of an open file. durable.ErrLocked: a living process has it.
func lock(f durable.File) error {
	free, err := f.TryLock()
	if err == nil && !free {
		err = durable.ErrLocked
	}
	return err
}

func (p *spool) readAll(name string) ([]byte, error) {
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// gone makes ErrGone of a file that is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// syncDirs makes names in directories durable if sync=strict asks for it.
func (p *spool) syncDirs(dirs ...string) error {
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

// syncDir makes the names in a directory durable. With sync=strict, where the sync of a
// directory says nothing of its own name, the names of the hash directories on the way to
// it are made durable first, once in each process: one that is there may be of a process
// that was killed before it could do that.
func (p *spool) syncDir(dir string) error {
	if p.strict {
		err := hashDirs(dir, func(dir, above string) error {
			if _, known := p.ensured.Load(dir); known {
				return nil
			}
			// Crash: before this a power loss takes the directory with all that is in it.
			// Nothing that is in it was called durable yet.
			if err := p.fs.SyncDir(above); err != nil {
				return err
			}
			p.ensured.Store(dir, true)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return p.fs.SyncDir(dir)
}

// syncBoth makes the names in two directories durable, whatever SYNC says.
func (p *spool) syncBoth(a, b string) error {
	return errors.Join(p.syncDir(a), p.syncDir(b))
}

// makeParents makes the hash directories above name.
func (p *spool) makeParents(name string) error {
	return hashDirs(dirOf(name), func(dir, _ string) error {
		// Crash: a directory that nothing is in yet, or none; see syncDir.
		err := p.fs.Mkdir(dir, modeOfHash)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		p.ensured.Delete(dir)
		return err
	})
}

// ensure makes a directory of the postoffice if it is missing.
func (p *spool) ensure(dir string) error {
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

// makeDir is ensure for who makes the directory's name durable together with what it
// writes there.
func (p *spool) makeDir(dir string) (made bool, err error) {
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

func (p *spool) renumber(info durable.Info, from uint64) {
	if p.renumbering != nil && info.Ino != from {
		p.renumbering(IDOf(info), from)
	}
}

// Who may put what where (docs/privileges.md): only public/ can be written by users, and
// router/ where the postoffice has a router0/ (ROUTERMODE=shared). Every other directory
// belongs to the daemons. A file is believed only if root or the postoffice's owner owns
// it and no one has given it another name; what a user has submitted is copied by PickUp
// before anything believes it.

// ErrSubmission means that a file in a router directory belongs to a user: PickUp is to
// copy it before it is routed.
var ErrSubmission = errors.New("a user's file; it is copied before it is routed")

// UntrustedError means that a daemon may not act on a file: another user owns it, it has
// another name, or it is not a regular file.
type UntrustedError struct {
	Name  string // below the postoffice
	UID   uint32 // owner
	Nlink uint64
	Mode  fs.FileMode
}

func (e *UntrustedError) Error() string {
	why := "uid " + strconv.FormatUint(uint64(e.UID), 10) + " owns it"
	switch {
	case !e.Mode.IsRegular():
		why = fmt.Sprintf("it is not a regular file (%s); %s", e.Mode, why)
	case e.Nlink != 1:
		why = fmt.Sprintf("it has %d names; %s", e.Nlink, why)
	}
	return e.Name + " is not trusted: " + why + " (docs/privileges.md)"
}

// trusts reports whether a uid is root's or the postoffice owner's, which the daemons run
// as.
func (p *spool) trusts(uid uint32) bool { return uid == 0 || uid == p.owner }

// checkTrust returns a *UntrustedError unless a file is a daemon's and has this one name,
// apart from those of copies in postman/.
func (p *spool) checkTrust(name string, info durable.Info) error {
	if info.Mode.IsRegular() && p.trusts(info.UID) && (info.Nlink == 1 || p.hasCopies(info)) {
		return nil
	}
	if info.Nlink == 0 {
		return fmt.Errorf("%s: %w", name, ErrGone) // removed since it was opened
	}
	return untrusted(name, info)
}

func untrusted(name string, info durable.Info) *UntrustedError {
	return &UntrustedError{Name: name, UID: info.UID, Nlink: info.Nlink, Mode: info.Mode}
}

// hasCopies reports whether the further names of a file are those of copies for the
// postmaster.
func (p *spool) hasCopies(info durable.Info) bool {
	entries, err := p.fs.ReadDir(Postman)
	if err != nil {
		return false
	}
	copies := uint64(0)
	for _, e := range entries {
		if e.Ino == info.Ino && isCopy(e.Name) {
			copies++
		}
	}
	return info.Nlink == 1+copies
}

// mark is the mode bit of a complete message of a daemon in public/. There it shows that
// the file was made by one of our programs and is not another file of root's under a name
// that a user has given to it.
const mark = fs.ModeSticky

func dirOf(name string) string { return name[:strings.LastIndexByte(name, '/')] }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// numberAfter reads a name of a prefix and an inode number.
func numberAfter(prefix, name string) (ino uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	return decimal(rest)
}

// apart returns the time between two times. A file's time that is far ahead of the clock is
// from before the clock was set back, and no younger than one that is as far behind.
func apart(a, b time.Time) time.Duration { return a.Sub(b).Abs() }

// CauseWord makes of a reason a word that is safe in a file's name.
func CauseWord(s string) string {
	out := []byte(strings.ToLower(s))
	for i, b := range out {
		if !(b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-') {
			out[i] = '-'
		}
	}
	if len(out) > 40 {
		out = out[:40]
	}
	if len(out) == 0 {
		return "unknown"
	}
	return string(out)
}
