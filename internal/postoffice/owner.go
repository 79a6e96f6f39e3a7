package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// Owner is a number that this process holds for its life by a lock on
// owners/NUMBER. It stands in claimed names and in recipients' locks.
type Owner struct {
	p    *PostOffice
	n    int
	lock durable.Lock
}

// errTaken means that a number is held, or was by a process that died with it.
var errTaken = errors.New("the number is in use")

// NewOwner takes the pid's number if it fits and is free, else the lowest free one.
// A number whose file a dead process left is not free: claims and locks in that
// number would look like ours and never be taken over, and in a container a daemon
// gets the same pid at each start. role is for the postmaster who reads the file.
func (p *PostOffice) NewOwner(role string) (*Owner, error) { return p.newOwner(role, os.Getpid()) }

func (p *PostOffice) newOwner(role string, pid int) (*Owner, error) {
	content := fmt.Appendf(nil, "%s pid %d\n", role, pid)
	if pid <= MaxOwner {
		if o, err := p.takeOwner(pid, content); !errors.Is(err, errTaken) {
			return o, err
		}
	}
	for n := 1; n <= MaxOwner; n++ {
		if o, err := p.takeOwner(n, content); !errors.Is(err, errTaken) {
			return o, err
		}
	}
	return nil, fmt.Errorf("take an owner number: all of 1 to %d are in use", MaxOwner)
}

func (p *PostOffice) takeOwner(n int, content []byte) (*Owner, error) {
	left, err := p.exists(ownerFile(n))
	if err != nil {
		return nil, fmt.Errorf("take owner number %d: %w", n, err)
	}
	if left {
		return nil, errTaken
	}
	// Crash: the kernel gives the lock back; the file stays and tells that whatever
	// bears the number is stale.
	l, err := p.fs.Lock(ownerFile(n), content)
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

func ownerFile(n int) string { return Owners + "/" + strconv.Itoa(n) }

// Number is what stands in names and locks.
func (o *Owner) Number() int { return o.n }

// Release ends ownership; claims still held are stale from now on.
func (o *Owner) Release() error {
	// Crash: without this a claim whose end is not on the disk could come back when the
	// number's file is gone, and be taken for that of a foreign pid.
	if err := o.p.syncRouters(); err != nil {
		return errors.Join(fmt.Errorf("give back owner number %d: %w", o.n, err), o.Leave())
	}
	return o.lock.Release()
}

// Leave ends ownership as the death of the process does: the number's file stays, so
// that whatever bears the number is known to be stale, and the scheduler removes it
// when nothing does.
func (o *Owner) Leave() error { return o.lock.Abandon() }

// AnyOwner reports whether a process of the postoffice lives.
func (p *PostOffice) AnyOwner() (bool, error) {
	entries, err := p.fs.ReadDir(Owners)
	if err != nil {
		return false, fmt.Errorf("look for living processes: %w", err)
	}
	for _, e := range entries {
		if n, ok := decimal(e.Name); ok && n <= MaxOwner {
			if alive, err := p.OwnerAlive(int(n)); err != nil || alive {
				return alive, err
			}
		}
	}
	return false, nil
}

// OwnerAlive tells whether the process that owns n lives. A number without a file
// in owners/ is a foreign program's pid (ZMailer's agents lock with it).
func (p *PostOffice) OwnerAlive(n int) (bool, error) {
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
	// Shared: of two that look at once neither takes the other for the owner.
	free, err := f.TryShare()
	if err != nil {
		return true, fmt.Errorf("look at owner %d: %w", n, err)
	}
	return !free, nil
}

// Exclusive takes the lock of a program that may run once per postoffice (A1), as
// ".pid.<role>". Its holder's pid is in the error.
func (p *PostOffice) Exclusive(role string) (release func() error, err error) {
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
