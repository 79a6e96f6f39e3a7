// Package cutfs is a disk in memory for tests of crashes: a durable.FS that counts
// the operations that change it, stops the process after any one of them, and then
// shows what the next process finds, with or without what was not synced.
//
// What survives is the contract of this package; docs/notes/cutfs.md has it with
// the kernel's reasons. In short, for Restart after a loss of power:
//
//   - Changes of names and modes (create, mkdir, rename, link, unlink, chmod,
//     truncate) reach the disk each as a whole: a rename leaves the file its old name
//     or its new one. Which of those that no sync covers survive is the Model's: a
//     prefix of all (Journal), or any set in which each file and each name keeps the
//     order of its own changes (Loose, POSIX).
//   - File.Sync covers the file's data and mode, and its names but in model POSIX;
//     SyncDir every change in that directory; in model Journal both cover every
//     change before those as well, which SyncAll makes use of.
//   - Data that was not synced survives or not, independently of the changes above:
//     a file may have its name and its execute bit and no content.
//
// Locks are flocks of open files and end with the process.
//
// Diagnostics: ErrCut: the process is dead; every operation of it errs so from then
// on. Other errors are those of durable.FS.
package cutfs

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
)

// ErrCut means that the process was stopped before this operation.
var ErrCut = errors.New("the process is dead")

var _ durable.FS = (*FS)(nil)

// FS is the disk as one process sees it. Its methods may be used by many
// goroutines.
type FS struct {
	disk   *disk
	number int // of the process, for the log
	uid    uint32

	// Guarded by disk.mu.
	ops  int
	left int // operations until the cut; -1: no cut
	// settle: operations until everything reaches the disk, and one; 0: never.
	settle int
	tear   bool
	dead   bool
	open   map[*File]bool
}

// New makes an empty disk.
func New() *FS {
	d := &disk{
		current: newImage(), stored: newImage(), files: map[int]*content{}, inodes: map[uint64]bool{},
		early: map[*change]bool{}, freed: map[uint64]int{}, order: newOrder(), block: 4096,
		opens: map[int]int{}, flocks: map[int]*File{}, nextID: 1, now: time.Now,
	}
	d.unlock = sync.NewCond(&d.mu)
	return d.process()
}

// Process is another process on the same disk. It has its own count of operations
// and its own death.
func (f *FS) Process() *FS {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.process()
}

// SetClock gives the time of the files' times; each is still later than the one
// before, by a nanosecond at least. The default is time.Now.
func (f *FS) SetClock(now func() time.Time) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.now = now
}

// OnlyLinks makes the disk one without RenameNew and Exchange, as GlusterFS is.
func (f *FS) OnlyLinks() {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.onlyLinks = true
}

// SetUID makes the process that of another user: what it creates belongs to it. Rights
// are not checked. The default is the user who runs the test.
func (f *FS) SetUID(uid uint32) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.uid = uid
}

// CutAfter lets n more state-changing operations happen; the next one and all
// operations after it, reads too, fail with ErrCut. Ops counts from here.
func (f *FS) CutAfter(n int) { f.cut(n, false) }

// CutInside is CutAfter, but if the operation that is cut is a write, its first
// half is done. kill -9 does that to a write(2) that crosses a page.
func (f *FS) CutInside(n int) { f.cut(n, true) }

func (f *FS) cut(n int, tear bool) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.ops, f.left, f.tear = 0, n, tear
}

// Kill ends the process: its locks are free, its operations fail with ErrCut.
func (f *FS) Kill() {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.die()
}

// Ops returns how many state-changing operations this process did since New, Process,
// Restart or CutAfter.
func (f *FS) Ops() int {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.ops
}

// Dead reports whether the cut has come.
func (f *FS) Dead() bool {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.dead
}

// Log is every state-changing operation on the disk, one a line, with the process's
// number, the operation's number in it, and its names.
func (f *FS) Log() string {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return strings.Join(f.disk.log, "\n")
}

// step counts an operation that is about to change the disk. disk.mu is held.
func (f *FS) step(format string, args ...any) error {
	if f.dead {
		return ErrCut
	}
	text := fmt.Sprintf(format, args...)
	f.disk.doing = text
	if f.settle > 0 {
		if f.settle--; f.settle == 0 {
			f.disk.writeBack()
		}
	}
	if f.left == 0 {
		f.disk.log = append(f.disk.log, fmt.Sprintf("%d: cut before: %s", f.number, text))
		f.die()
		return ErrCut
	}
	if f.left > 0 {
		f.left--
	}
	f.ops++
	f.disk.log = append(f.disk.log, fmt.Sprintf("%d: %d %s", f.number, f.ops, text))
	return nil
}

// die frees what the kernel frees. disk.mu is held.
func (f *FS) die() {
	if f.dead {
		return
	}
	f.dead = true
	for file := range f.open {
		file.release()
		f.disk.closed(file.id)
	}
	clear(f.open)
	// Whoever waits in this process is to see that it is dead.
	f.disk.unlock.Broadcast()
}
