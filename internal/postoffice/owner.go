package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// OwnerTable is owners/, one locked file for each live process.
type OwnerTable struct{ *spool }

// Owner is a number that this process holds for its life by a lock on
// owners/NUMBER. It is in claimed names and in recipients' locks.
type Owner struct {
	p    *OwnerTable
	n    int
	lock durable.Lock
}

// errTaken means that a number is held, or was by a process that died with it.
var errTaken = errors.New("the number is in use")

// Take takes the pid's number if it fits and is free, else the lowest free one.
// A number whose file a dead process left is not free: claims and locks in that
// number would look like ours and never be taken over, and in a container a daemon
// gets the same pid at each start. role is for the postmaster who reads the file.
func (p *OwnerTable) Take(role string) (*Owner, error) { return p.takeAny(role, os.Getpid(), nil) }

// takeAny takes a number that is not one of the used ones.
func (p *OwnerTable) takeAny(role string, pid int, used map[int]bool) (*Owner, error) {
	content := p.ownerContent(role, pid)
	for n := 0; n <= MaxOwner; n++ {
		number := n
		if n == 0 {
			number = pid
		}
		if number > MaxOwner || used[number] {
			continue
		}
		if o, err := p.takeNumber(number, content); !errors.Is(err, errTaken) {
			return o, err
		}
	}
	return nil, fmt.Errorf("take an owner number: all of 1 to %d are in use", MaxOwner)
}

// takeUnused takes a number that no name in the postoffice bears: a postoffice that
// was restored without owners/ has names of owners that left no file there.
func (p *OwnerTable) takeUnused(role string) (*Owner, error) {
	used := map[int]bool{}
	note := func(name string) error {
		if n, ok := ParseName(strings.TrimPrefix(path.Base(name), "..")); ok {
			used[n.Owner] = true
		}
		return nil
	}
	if err := p.routers().each(func(_, name string) { _ = note(name) }); err != nil {
		return nil, err
	}
	if err := errors.Join(p.tree(Queue).list(note, nil), p.tree(Transport).list(note, nil)); err != nil {
		return nil, err
	}
	return p.takeAny(role, os.Getpid(), used)
}

func (p *OwnerTable) takeNumber(n int, content []byte) (*Owner, error) {
	left, err := p.exists(ownerFile(n))
	if err != nil {
		return nil, fmt.Errorf("take owner number %d: %w", n, err)
	}
	if left {
		return nil, errTaken
	}
	// Crash: the kernel gives the lock back; the file stays and shows that whatever
	// bears the number is stale.
	l, err := p.fs.Lock(ownerFile(n), content)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		if err := p.useSpare(n); err != nil {
			return nil, err
		}
		l, err = p.fs.Lock(ownerFile(n), content)
	}
	if errors.Is(err, durable.ErrLocked) {
		return nil, errTaken
	}
	if err != nil {
		return nil, fmt.Errorf("take owner number %d: %w", n, err)
	}
	// Crash: with the directory synced the number outlives a power loss; without
	// it a claim made in this number could be taken for that of a foreign pid.
	if err := p.fs.SyncDir(Owners); err != nil {
		return nil, errors.Join(fmt.Errorf("take owner number %d: %w", n, err), l.Release())
	}
	return &Owner{p: p, n: n, lock: l}, nil
}

// spares is how many files owners/.spare-N there are, empty, for processes that start while the
// file system has no free inode: an agent that could not start would deliver nothing, and what
// is not delivered frees none.
const spares = 8

func spareFile(n int) string { return Owners + "/" + sparePrefix + strconv.Itoa(n) }

const sparePrefix = ".spare-"

// IsSpare reports whether a name in owners/ is that of a spare file.
func IsSpare(name string) bool {
	n, ok := strings.CutPrefix(name, sparePrefix)
	k, number := decimal(n)
	return ok && number && k >= 1 && k <= spares
}

// KeepSpares makes the spare files that are missing. Only the scheduler calls it.
func (p *OwnerTable) KeepSpares() error {
	for n := range spares {
		// Crash: it is there, or made by the next call.
		f, err := p.fs.Open(spareFile(n+1), os.O_WRONLY|os.O_CREATE, durable.LockMode)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return fmt.Errorf("make a spare file: %w", err)
		}
	}
	return nil
}

// useSpare makes a spare file the one of a number that has none.
func (p *OwnerTable) useSpare(number int) error {
	for n := range spares {
		// Crash: a number whose process is dead and that nothing bears, which the scheduler
		// removes; or the spare file. Nothing bears the number before it is synced (takeNumber).
		err := p.fs.RenameNew(spareFile(n+1), ownerFile(number))
		if errors.Is(err, durable.ErrNoRenameNew) {
			// Crash: a spare file that the scheduler makes anew. The caller takes its inode.
			err = p.fs.Remove(spareFile(n + 1))
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, fs.ErrExist):
			return errTaken
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("take owner number %d: %w", number, err)
		}
	}
	return fmt.Errorf("take owner number %d: no spare file is left in %s/: %w", number, Owners, unix.ENOSPC)
}

func ownerFile(n int) string { return Owners + "/" + strconv.Itoa(n) }

// Number returns what is in names and locks.
func (o *Owner) Number() int { return o.n }

// Release ends ownership; claims still held are stale from now on.
func (o *Owner) Release() error {
	// Crash: without this a claim whose end is not on the disk could come back when the
	// number's file is gone, and be taken for that of a foreign pid.
	if err := o.p.routers().sync(); err != nil {
		return errors.Join(fmt.Errorf("give back owner number %d: %w", o.n, err), o.Leave())
	}
	return o.lock.Release()
}

// Leave ends ownership as the death of the process does: the number's file stays, so
// that whatever bears the number is known to be stale, and the scheduler removes it
// when nothing does.
func (o *Owner) Leave() error { return o.lock.Abandon() }

// AnyAlive reports whether a process of the postoffice lives.
func (p *OwnerTable) AnyAlive() (bool, error) {
	entries, err := p.fs.ReadDir(Owners)
	if err != nil {
		return false, fmt.Errorf("look for living processes: %w", err)
	}
	for _, e := range entries {
		if n, ok := decimal(e.Name); ok && n <= MaxOwner {
			if alive, err := p.Alive(int(n)); err != nil || alive {
				return alive, err
			}
		}
	}
	return false, nil
}

// Alive reports whether the process that owns n lives. A number without a file
// in owners/ is a foreign program's pid (ZMailer's agents lock with it).
func (p *OwnerTable) Alive(n int) (bool, error) {
	if n <= 0 || n > MaxOwner {
		return false, nil
	}
	f, err := p.fs.Open(ownerFile(n), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		// Our own processes always have a file; only a foreign one has none.
		err := unix.Kill(n, 0)
		return err == nil || err == unix.EPERM, nil
	}
	if err != nil {
		return true, fmt.Errorf("look at owner %d: %w", n, err)
	}
	defer f.Close()
	if before, err := p.isOfBefore(f); err != nil || before {
		if err != nil {
			err = fmt.Errorf("look at owner %d: %w", n, err)
		}
		return !before, err
	}
	// Shared: of two that look at once neither takes the other for the owner.
	free, err := f.TryShare()
	if err != nil {
		return true, fmt.Errorf("look at owner %d: %w", n, err)
	}
	return !free, nil
}

// Exclusive takes the lock of a program that may run once per postoffice (A1), as
// ".pid.<role>". Its holder's pid is in the error.
func (p *OwnerTable) Exclusive(role string) (release func() error, err error) {
	name := ".pid." + role
	l, err := p.fs.Lock(name, []byte(strconv.Itoa(os.Getpid())+"\n"))
	if err != nil {
		holder, rerr := p.readAll(name)
		if rerr != nil || len(holder) == 0 {
			return nil, fmt.Errorf("start %s: %w", role, err)
		}
		return nil, fmt.Errorf("start %s: %w: pid %s", role, err, strings.TrimSpace(string(holder)))
	}
	return l.Release, nil
}

// DeadOwner is a number that a dead process has left: a file in owners/ that no process holds.
type DeadOwner struct {
	number  int
	ino     uint64
	modTime int64 // nanoseconds since 1970
}

// Sweep removes the files in owners/ that dead processes have left and whose
// number nothing bears any more: no name in router/, no lock in a specification.
// locks gives the owners in a specification's locks. Only those of before are removed,
// which is what the call some minutes ago gave as left: what mended their claims and
// locks is on the disk by now, or a power loss could bring those back when the number
// means a foreign program's pid. Only the scheduler calls it.
//
// No one can begin to bear a number while this looks: its owner is dead, and a new
// process takes no number whose file is there. A process that is just taking a number
// has made the file and not locked it yet, or is refused by our look and takes the
// next one; the file is only removed under its lock, and a lock on a file without a
// name is none (durable.FS.Lock).
func (p *OwnerTable) Sweep(locks func(spec []byte) []int, before []DeadOwner) (found []DeadOwner, _ []Recovered, err error) {
	found, done, err := p.left()
	if err != nil || len(found) == 0 {
		return nil, done, err
	}
	borne, err := p.borne(locks)
	if err != nil {
		return nil, done, err
	}
	found = slices.DeleteFunc(found, func(l DeadOwner) bool { return borne[l.number] })
	old := slices.DeleteFunc(slices.Clone(found), func(l DeadOwner) bool { return !slices.Contains(before, l) })
	if len(old) == 0 {
		return found, done, nil
	}
	// Crash: a name in router/ that is lost here still finds its owner's file.
	if err := p.routers().sync(); err != nil {
		return found, done, fmt.Errorf("sweep owners: %w", err)
	}
	for _, l := range old {
		removed, err := p.removeDead(l)
		done.add(ownerFile(l.number), removed, err)
	}
	return found, done, nil
}

// left lists the files in owners/ that no process holds, and those that cannot be read.
func (p *OwnerTable) left() (list []DeadOwner, bad report, err error) {
	entries, err := p.fs.ReadDir(Owners)
	if err != nil {
		return nil, nil, fmt.Errorf("sweep owners: %w", err)
	}
	for _, e := range entries {
		n, ok := decimal(e.Name)
		if !ok || n > MaxOwner || (e.Type != 0 && e.Type != fs.ModeIrregular) {
			continue
		}
		f, info, err := p.hold(int(n), durable.File.TryShare)
		bad.add(ownerFile(int(n)), nil, err)
		if f != nil {
			// Opened for reading: close has nothing to lose but the lock.
			_ = f.Close()
			list = append(list, DeadOwner{int(n), info.Ino, info.ModTime.UnixNano()})
		}
	}
	return list, bad, nil
}

// hold takes the lock of a dead owner's file, shared to look or alone to remove
// it; nil: it lives, or the file is gone.
func (p *OwnerTable) hold(n int, try func(durable.File) (bool, error)) (durable.File, durable.Info, error) {
	f, info, err := p.openFree(ownerFile(n), try)
	if errors.Is(err, ErrGone) {
		err = nil
	}
	return f, info, err
}

// borne returns the numbers in names in the router directories and in locks in transport/.
func (p *OwnerTable) borne(locks func(spec []byte) []int) (map[int]bool, error) {
	borne := map[int]bool{}
	err := p.routers().each(func(_, name string) {
		base, _ := strings.CutPrefix(name, "..")
		if n, ok := ParseName(base); ok && n.Owner != 0 {
			borne[n.Owner] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("sweep owners: %w", err)
	}
	var b []byte // one for all: there may be millions
	err = p.tree(Transport).list(func(name string) (err error) {
		b, err = p.readInto(b, Transport+"/"+name)
		if errors.Is(err, ErrGone) {
			return nil // finished, or moved to its hash directory by a scheduler that mended its locks first
		}
		if err != nil {
			return err
		}
		for _, n := range locks(b) {
			borne[n] = true
		}
		return nil
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("sweep owners: %w", err)
	}
	return borne, nil
}

// readInto is readAll that uses the memory of b, which grows when it is too small.
func (p *OwnerTable) readInto(b []byte, name string) ([]byte, error) {
	f, err := p.openRead(name)
	if err != nil {
		return b, err
	}
	defer f.Close()
	for b = b[:0]; ; {
		b = slices.Grow(b, 4<<10)
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// removeDead removes a file in owners/ if it is still the one that was found.
func (p *OwnerTable) removeDead(l DeadOwner) (*Recovered, error) {
	f, info, err := p.hold(l.number, durable.File.TryLock)
	if err != nil || f == nil {
		return nil, err
	}
	// The lock keeps others from taking the number by this file until its name is gone.
	defer func() { _ = f.Close() }()
	if info.Ino != l.ino || info.ModTime.UnixNano() != l.modTime {
		return nil, nil // taken, used and left again meanwhile
	}
	named, err := p.fs.Stat(ownerFile(l.number))
	if err != nil || named.Ino != info.Ino {
		return nil, gone(err)
	}
	// Crash: there, and swept another time, or not.
	if err := p.remove(ownerFile(l.number)); err != nil {
		return nil, err
	}
	return &Recovered{Action: Swept, Name: ownerFile(l.number), Detail: "its process is dead, and nothing bears the number"}, nil
}
