package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// A file system without RENAME_NOREPLACE, as GlusterFS, NFS or CephFS, moves a message in one
// of two ways (docs/spool.md, "Without RENAME_NOREPLACE"):
//
//   - To a name that no other process can be about to make, because the number of this process,
//     the message's spool ID or a number taken at random is in it: by rename(2), if the name is
//     free. Claim and hand-over are moves of this kind.
//   - To any other name by link(2) and unlink(2). A process that is killed between them leaves
//     the file with both names.
//
// Both names may be moved on, so no one may route a file before it has one name again: a
// router that has claimed a file with several removes the others, or gives the claim back
// (settle). What is claimed has one name, and all later names come from that one. A process
// that moves a file which others may move, too, has its flock meanwhile, and whoever removes a
// name needs the flock, except for names that are older in any case.

// hasOneName reports whether a file has one name, apart from those of copies in postman/.
func (p *spool) hasOneName(info durable.Info) bool { return info.Nlink == 1 || p.hasCopies(info) }

// renames calls RenameNew until it turns out that the file system has none. done is false then.
func (p *spool) renames(from, to string) (done bool, err error) {
	if p.linked.Load() {
		return false, nil
	}
	err = p.fs.RenameNew(from, to)
	if errors.Is(err, durable.ErrNoRenameNew) {
		p.linked.Store(true)
		return false, nil
	}
	// The kernel finds a name that is taken before the file system is asked.
	if errors.Is(err, fs.ErrExist) && p.areOne(from, to) {
		if linked, lerr := p.linksNames(); linked {
			return false, lerr
		}
	}
	return true, err
}

// areOne reports whether two names are those of one file.
func (p *spool) areOne(a, b string) bool {
	x, err := p.fs.Stat(a)
	y, berr := p.fs.Stat(b)
	return err == nil && berr == nil && x.Ino == y.Ino && x.Dev == y.Dev
}

// linksNames reports whether the file system has no RenameNew. It is for files that have more
// names than they should: it may have to try a rename.
func (p *spool) linksNames() (bool, error) {
	if p.linked.Load() {
		return true, nil
	}
	err := durable.TryRenameNew(p.fs, p.routers().first())
	if errors.Is(err, durable.ErrNoRenameNew) {
		p.linked.Store(true)
		return true, nil
	}
	return false, err
}

// moveOwn is move to a name that no other process can be about to make.
func (p *spool) moveOwn(from, to string) error {
	return p.moving(from, to, func() error { return p.renameOwn(from, to) })
}

func (p *spool) renameOwn(from, to string) error {
	if done, err := p.renames(from, to); done {
		return err
	}
	// Crash: the old name or the new one.
	return durable.MoveFree(p.fs, from, to)
}

// moveMine is move from a name that no other process moves: a claim of this process, or a
// draft. The file has this one name.
func (p *spool) moveMine(from, to string) error {
	return p.moving(from, to, func() error { return p.renameMine(from, to) })
}

func (p *spool) renameMine(from, to string) error {
	if done, err := p.renames(from, to); done {
		return err
	}
	if err := p.linkTo(from, to); err != nil {
		return err
	}
	// Crash: the new name alone.
	err := p.fs.Remove(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // who has the new name has removed it: see settle
	}
	return p.unlinked(err, from, to)
}

// renameAny moves a file that other processes may move, too.
func (p *spool) renameAny(from, to string) error {
	if done, err := p.renames(from, to); done {
		return err
	}
	f, err := p.openRead(from)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return durable.MoveNew(p.fs, from, to) // no message
	}
	if err != nil {
		return err
	}
	// Opened for reading: close has nothing to lose but the lock.
	defer func() { _ = f.Close() }()
	free, err := f.TryLock()
	if err != nil {
		return err
	}
	if !free {
		return fmt.Errorf("%s is being moved by another process: %w", from, fs.ErrNotExist)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode.IsRegular() {
		return durable.MoveNew(p.fs, from, to)
	}
	if err := p.dropOthers(f, from, info); err != nil {
		return err
	}
	if err := p.linkTo(from, to); err != nil {
		return err
	}
	// Crash: the new name alone.
	return p.unlinked(p.fs.Remove(from), from, to)
}

// linkTo gives a file its second name. One that it has already is no error.
func (p *spool) linkTo(from, to string) error {
	// Crash: both names. Whoever claims the file under one removes the other.
	err := p.fs.Link(from, to)
	if errors.Is(err, fs.ErrExist) && p.areOne(from, to) {
		return nil // a process was killed before it removed the old name
	}
	return err
}

// unlinked takes the new name back if the old one could not be removed. err is fs.ErrNotExist
// if another process has claimed the file under its old name.
func (p *spool) unlinked(err error, from, to string) error {
	if err == nil {
		return nil
	}
	now, serr := p.fs.Stat(to)
	if errors.Is(serr, fs.ErrNotExist) && !errors.Is(err, fs.ErrNotExist) {
		return nil // it was claimed under the new name: the claim has removed the old one, or will
	}
	was, werr := p.fs.Stat(from)
	if serr == nil && (errors.Is(werr, fs.ErrNotExist) || werr == nil && was.Ino == now.Ino) {
		// Crash: both names, or what the caller of an error finds: the old one.
		if rerr := p.fs.Remove(to); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// settle gives a claimed file, which is open, one name again: the claim's. ErrUnsettled: the
// process that moves it is between its two steps. ErrGone: another process has settled it
// under another name.
func (p *spool) settle(f durable.File, claim string, info durable.Info) (durable.Info, error) {
	if !info.Mode.IsRegular() || !p.trusts(info.UID) || p.hasOneName(info) {
		return info, nil
	}
	free, err := f.TryLock()
	if err != nil {
		return info, err
	}
	if free {
		err = errors.Join(p.dropOthers(f, claim, info), f.Unlock())
	} else {
		err = p.dropNames(info, claim, p.olderDirs(), isOlder)
	}
	if err != nil {
		return info, gone(err)
	}
	if info, err = f.Stat(); err == nil && !free && !p.hasOneName(info) {
		err = ErrUnsettled
	}
	return info, err
}

// dropOthers removes all names of a file but one. The caller has its flock. A name that is
// moved while the directories are listed may not be seen: then it looks once more.
func (p *spool) dropOthers(f durable.File, keep string, info durable.Info) error {
	named, err := p.fs.Stat(keep)
	if err != nil {
		return err
	}
	if named.Ino != info.Ino || named.Dev != info.Dev {
		return fmt.Errorf("%s is another file by now: %w", keep, fs.ErrNotExist)
	}
	for range 2 {
		for _, dirs := range []func() ([]string, error){p.messageDirs, p.queueDirs} {
			if info, err = f.Stat(); err != nil || p.hasOneName(info) {
				return err
			}
			list, err := dirs()
			if err != nil {
				return err
			}
			if err := p.dropNames(info, keep, list, func(string) bool { return true }); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropNames removes the names of a file in some directories, apart from one and from those of
// copies.
func (p *spool) dropNames(info durable.Info, keep string, dirs []string, which func(name string) bool) error {
	names, err := p.namesIn(info, dirs)
	for _, name := range names {
		if name == keep || !which(name) {
			continue
		}
		// Crash: as before; the next look removes it.
		if rerr := p.remove(name); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// namesIn lists the names of a file in some directories.
func (p *spool) namesIn(info durable.Info, dirs []string) (names []string, err error) {
	for _, dir := range dirs {
		lerr := durable.ReadDirFunc(p.fs, dir, func(part []durable.Entry) error {
			for _, e := range part {
				if e.Ino != info.Ino || dir == Postman && isCopy(e.Name) {
					continue
				}
				if now, err := p.fs.Stat(dir + "/" + e.Name); err == nil && now.Ino == info.Ino && now.Dev == info.Dev {
					names = append(names, dir+"/"+e.Name)
				}
			}
			return nil
		})
		if lerr != nil && !errors.Is(lerr, fs.ErrNotExist) {
			err = errors.Join(err, lerr)
		}
	}
	return names, err
}

// olderDirs are the directories with names that are older than a claim in any case: see isOlder.
func (p *spool) olderDirs() []string {
	dirs, _ := p.routers().all() // without them there is no claim
	return append(dirs, Public, Imports, Removed)
}

func isOlder(name string) bool {
	return !IsRouterDir(path.Dir(name)) || strings.HasPrefix(path.Base(name), pickupPrefix)
}

// messageDirs are the directories of messages that are not in queue/.
func (p *spool) messageDirs() ([]string, error) {
	dirs, err := p.routers().all()
	return append(dirs, Public, Deferred, Freezer, Postman, Imports, Removed), err
}

// queueDirs are queue/ and its hash directories.
func (p *spool) queueDirs() ([]string, error) {
	dirs := []string{Queue}
	var add func(dir string, depth int) error
	add = func(dir string, depth int) error {
		return durable.ReadDirFunc(p.fs, dir, func(part []durable.Entry) error {
			for _, e := range part {
				if !e.Type.IsDir() || !isHashDir(e.Name) {
					continue
				}
				dirs = append(dirs, dir+"/"+e.Name)
				if depth > 1 {
					if err := add(dir+"/"+e.Name, depth-1); err != nil && !errors.Is(err, fs.ErrNotExist) {
						return err
					}
				}
			}
			return nil
		})
	}
	return dirs, add(Queue, 2)
}

// isMoved reports whether a name is one that a process was killed before it removed: the file,
// which is open and whose flock the caller has, has another name in a later directory. It
// removes the name then.
func (p *spool) isMoved(name string, info durable.Info) (bool, error) {
	if info.Nlink < 2 || !p.trusts(info.UID) {
		return false, nil
	}
	if linked, err := p.linksNames(); err != nil || !linked {
		return false, err
	}
	for range 2 { // as in dropOthers
		for _, dirs := range []func() ([]string, error){p.messageDirs, p.queueDirs} {
			list, err := dirs()
			if err != nil {
				return false, err
			}
			names, err := p.namesIn(info, list)
			if err != nil {
				return false, err
			}
			for _, other := range names {
				if other != name && path.Dir(other) != Public && !strings.HasPrefix(path.Base(other), pickupPrefix) {
					// Crash: as before; the next look removes it.
					return true, p.remove(name)
				}
			}
		}
	}
	return false, nil
}
