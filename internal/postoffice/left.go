package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"zmailer/internal/disk/durable"
)

// Left is a number that a dead process has left: a file in owners/ that nobody holds.
type Left struct {
	number  int
	ino     uint64
	modTime int64 // nanoseconds since 1970
}

// SweepOwners removes the files in owners/ that dead processes have left and whose
// number nothing bears any more: no name in router/, no lock in a specification.
// locks gives the owners in a specification's locks. Only those of before are removed,
// which is what the call some minutes ago gave as left: what mended their claims and
// locks is on the disk by now, or a power loss could bring those back when the number
// means a foreign program's pid. Only the scheduler calls it.
//
// Nobody can begin to bear a number while this looks: its owner is dead, and a new
// process takes no number whose file is there. A process that is just taking a number
// has made the file and not locked it yet, or is refused by our look and takes the
// next one; the file is only removed under its lock, and a lock on a file without a
// name is none (durable.FS.Lock).
func (p *PostOffice) SweepOwners(locks func(spec []byte) []int, before []Left) (found []Left, done []Recovered, err error) {
	if found, done, err = p.leftOwners(); err != nil || len(found) == 0 {
		return nil, done, err
	}
	borne, err := p.borneOwners(locks)
	if err != nil {
		return nil, done, err
	}
	found = slices.DeleteFunc(found, func(l Left) bool { return borne[l.number] })
	old := slices.DeleteFunc(slices.Clone(found), func(l Left) bool { return !slices.Contains(before, l) })
	if len(old) == 0 {
		return found, done, nil
	}
	// Crash: a name in router/ that is lost here still finds its owner's file.
	if err := p.syncRouters(); err != nil {
		return found, done, fmt.Errorf("sweep owners: %w", err)
	}
	for _, l := range old {
		removed, err := p.removeOwner(l)
		if err != nil {
			done = append(done, Recovered{Action: Unreadable, Name: ownerFile(l.number), Detail: err.Error()})
		}
		if removed {
			done = append(done, Recovered{Action: Swept, Name: ownerFile(l.number), Detail: "its process is dead, and nothing bears the number"})
		}
	}
	return found, done, nil
}

// leftOwners lists the files in owners/ that nobody holds, and those that cannot be read.
func (p *PostOffice) leftOwners() (list []Left, bad []Recovered, err error) {
	entries, err := p.fs.ReadDir(Owners)
	if err != nil {
		return nil, nil, fmt.Errorf("sweep owners: %w", err)
	}
	for _, e := range entries {
		n, ok := decimal(e.Name)
		if !ok || n > MaxOwner || (e.Type != 0 && e.Type != fs.ModeIrregular) {
			continue
		}
		f, info, err := p.holdOwner(int(n), durable.File.TryShare)
		if err != nil {
			bad = append(bad, Recovered{Action: Unreadable, Name: ownerFile(int(n)), Detail: err.Error()})
			continue
		}
		if f == nil {
			continue
		}
		// Opened for reading: close has nothing to lose but the lock.
		_ = f.Close()
		list = append(list, Left{int(n), info.Ino, info.ModTime.UnixNano()})
	}
	return list, bad, nil
}

// holdOwner takes the lock of a dead owner's file, shared to look or alone to remove
// it; nil: it lives, or the file is gone.
func (p *PostOffice) holdOwner(n int, try func(durable.File) (bool, error)) (durable.File, durable.Info, error) {
	f, err := p.fs.Open(ownerFile(n), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, durable.Info{}, nil
	}
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

// borneOwners are the numbers in names in the router directories and in locks in transport/.
func (p *PostOffice) borneOwners(locks func(spec []byte) []int) (map[int]bool, error) {
	borne := map[int]bool{}
	err := p.eachRouterName(func(_, name string) {
		base, _ := strings.CutPrefix(name, "..")
		if n, ok := ParseName(base); ok && n.Owner != 0 {
			borne[n.Owner] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("sweep owners: %w", err)
	}
	var b []byte // one for all: there may be millions
	err = p.ListTransport(func(name string) (err error) {
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
	})
	if err != nil {
		return nil, fmt.Errorf("sweep owners: %w", err)
	}
	return borne, nil
}

// removeOwner removes a file in owners/ if it is still the one that was found.
func (p *PostOffice) removeOwner(l Left) (bool, error) {
	f, info, err := p.holdOwner(l.number, durable.File.TryLock)
	if err != nil || f == nil {
		return false, err
	}
	// The lock keeps others from taking the number by this file until its name is gone.
	defer func() { _ = f.Close() }()
	if info.Ino != l.ino || info.ModTime.UnixNano() != l.modTime {
		return false, nil // taken, used and left again meanwhile
	}
	named, err := p.fs.Stat(ownerFile(l.number))
	if errors.Is(err, fs.ErrNotExist) || err == nil && named.Ino != info.Ino {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// Crash: there, and swept another time, or not.
	if err := p.remove(ownerFile(l.number)); err != nil {
		return false, fmt.Errorf("remove owner number %d: %w", l.number, err)
	}
	return true, nil
}
