package postoffice

import (
	"errors"
	"io/fs"
	"strings"
)

// hashDirs calls fn for each hash directory on the way to a directory below queue/ or
// transport/, that directory included and the upper first.
func hashDirs(dir string, fn func(dir, above string) error) error {
	for end, c := range dir + "/" {
		above := strings.LastIndexByte(dir[:end], '/')
		if c != '/' || above < 0 {
			continue
		}
		if err := fn(dir[:end], dir[:above]); err != nil {
			return err
		}
	}
	return nil
}

// makeParents makes the hash directories above name.
func (p *PostOffice) makeParents(name string) error {
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

// syncDir makes the names in a directory durable. With sync=strict, where the sync of a
// directory says nothing of its own name, the names of the hash directories on the way to
// it are made durable first, once in each process: one that is there may be of a process
// that was killed before it could do that.
func (p *PostOffice) syncDir(dir string) error {
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

// Strict reports whether directories are synced too, SYNC=strict.
func (p *PostOffice) Strict() bool { return p.strict }
