// Package faultfs makes a durable.FS fail where a test says: a full disk, a bad
// block, no descriptors left, a file that goes away in between.
//
//	disk := faultfs.New(cutfs.New())
//	rule := disk.Fail(faultfs.Sync, "public/*", unix.EIO, 1)
//
// It owns nothing on the disk below it and survives nothing.
//
// Diagnostics: an injected error is wrapped like the disk's own, with operation and
// path, so errors.Is finds it.
package faultfs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"

	"zmailer/internal/disk/durable"
)

// Op is an operation that can fail.
type Op string

// Operations. Open is for an existing or a new file; Create only for an Open with
// O_CREATE, and both match such a one.
const (
	Any     Op = "any"
	Open    Op = "open"
	Create  Op = "create"
	Read    Op = "read" // Read and ReadAt
	Write   Op = "write"
	WriteAt Op = "writeat"
	Sync    Op = "fsync"
	Chmod   Op = "chmod" // Chmod and SetModTime
	Stat    Op = "stat"  // of a name and of an open file
	Close   Op = "close"
	Flock   Op = "flock"  // TryLock, TryShare, WaitLock, Unlock
	Rename  Op = "rename" // Rename and RenameNew; the glob is for either name
	Link    Op = "link"   // the glob is for either name
	Remove  Op = "remove"
	Mkdir   Op = "mkdir"
	ReadDir Op = "readdir"
	SyncDir Op = "syncdir"
	Lock    Op = "lock"

	WriteOut Op = "writeout"
)

// Always is a number of times that does not end.
const Always = -1

var _ durable.FS = (*FS)(nil)

// FS passes everything on to another FS but what a rule stops. Its methods may be
// used by many goroutines.
type FS struct {
	below durable.FS

	mu    sync.Mutex
	rules []*Rule
}

// Rule is one thing that goes wrong.
type Rule struct {
	fs    *FS
	op    Op
	glob  string
	times int
	hits  int
	do    func(name string) error
}

// New wraps an FS.
func New(below durable.FS) *FS { return &FS{below: below} }

// Fail lets an operation on the names that match glob (path.Match on the whole
// name, as opened) fail with err, so many times, or Always.
func (f *FS) Fail(op Op, glob string, err error, times int) *Rule {
	return f.On(op, glob, times, func(string) error { return err })
}

// On calls do before an operation, so many times; an error stops the operation. It
// may change the disk meanwhile, as another process would.
func (f *FS) On(op Op, glob string, times int, do func(name string) error) *Rule {
	if _, err := path.Match(glob, ""); err != nil {
		panic(fmt.Sprintf("faultfs: pattern %q: %v", glob, err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &Rule{fs: f, op: op, glob: glob, times: times, do: do}
	f.rules = append(f.rules, r)
	return r
}

// Hits returns how often the rule was used.
func (r *Rule) Hits() int {
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	return r.hits
}

// End takes the rule away.
func (r *Rule) End() {
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	r.fs.rules = slices.DeleteFunc(r.fs.rules, func(other *Rule) bool { return other == r })
}

// check finds the first rule for an operation and uses it.
func (f *FS) check(ops []Op, names ...string) error {
	r, name := f.match(ops, names)
	if r == nil {
		return nil
	}
	err := r.do(name)
	switch {
	case err == nil:
		return nil
	case len(names) == 2:
		return &os.LinkError{Op: string(ops[0]), Old: names[0], New: names[1], Err: err}
	}
	return &fs.PathError{Op: string(ops[0]), Path: name, Err: err}
}

func (f *FS) match(ops []Op, names []string) (*Rule, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.times == 0 || r.op != Any && !slices.Contains(ops, r.op) {
			continue
		}
		for _, name := range names {
			if ok, _ := path.Match(r.glob, name); !ok { // the pattern was tried in On
				continue
			}
			if r.times > 0 {
				r.times--
			}
			r.hits++
			return r, name
		}
	}
	return nil, ""
}
