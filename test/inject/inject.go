// Package inject stops the system calls of real programs before they are executed and
// decides on each: it goes on, it fails with an error, it does a part of its work, or
// its process is killed right there. It is for tests; it needs Linux and root.
//
// A program that Start starts, and every process that descends from it, hands its
// state-changing calls to this process by a seccomp filter with a listener
// (seccomp_unotify(2)). Each is described as a Call: which program, which call, and
// the class of the object that it is about to change, such as "router/I -> router/I-P".
// The same classes are made from the paths that strace prints, so that the two can
// be compared.
//
// Main must be the first thing that the main function, or TestMain, of a program does
// that uses Start: the program starts itself again to install the filter.
package inject

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// Call is a system call that a process is about to make.
type Call struct {
	Pid     int    // the process
	Thread  int    // that makes the call
	Program string // base name of its executable: router, scheduler, ...
	Name    string // of the call: renameat2, write, fsync, ...
	Path    string // class of the object, "A -> B" for renames and links; see Classes
	Object  string // the object itself, as the kernel names it
	Size    int    // bytes that a write wants to write
	Data    []byte // the first bytes of them, at most maxHead
}

// Pair is what makes calls the same for a table: one kind of step of one program.
type Pair struct{ Program, Name, Path string }

// Pair returns the call's.
func (c *Call) Pair() Pair { return Pair{c.Program, c.Name, c.Path} }

func (p Pair) String() string { return p.Program + " " + p.Name + " " + p.Path }

// Action is what becomes of a call. The zero value lets it go on.
type Action struct {
	// Kill: the process gets SIGKILL and the call is not executed.
	Kill bool
	// Errno: the call is not executed and fails with this; 0 for none.
	Errno unix.Errno
	// Part, for write, pwrite64 and sendto: only so many bytes are written. With Kill the
	// process dies with just these written; else the call returns their number, as a disk that
	// fills does.
	Part int
}

// Injector watches programs. Set the fields, then Start programs, then Close.
type Injector struct {
	Classes Classes
	// OnCall decides. It is called for one call at a time; until it returns no watched
	// process makes another state-changing call, so what it kills dies at one moment.
	// It must not wait for what a watched process does. nil: everything goes on.
	OnCall func(Call) Action

	mu        sync.Mutex // held while a call is decided
	calls     map[int]shape
	seen      map[Pair]int
	err       error // first trouble of our own
	listeners sync.WaitGroup
}

// Supported returns why the injector cannot work here, nil if it can.
func Supported() error {
	if os.Geteuid() != 0 {
		return errors.New("the injector needs root: it reads other processes' memory")
	}
	action := uint32(unix.SECCOMP_RET_USER_NOTIF)
	if err := seccomp(unix.SECCOMP_GET_ACTION_AVAIL, 0, &action); err != nil {
		return fmt.Errorf("the kernel has no seccomp user notification: %w", err)
	}
	return nil
}

// Start starts a command so that its calls are watched, and returns when it has
// executed its program. Its end is waited for as usual.
func (i *Injector) Start(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	i.mu.Lock()
	if i.calls == nil {
		i.calls = table()
	}
	i.mu.Unlock()
	listener, err := startFiltered(cmd)
	if err != nil {
		return fmt.Errorf("watch %s: %w", cmd.Path, err)
	}
	i.listeners.Go(func() {
		defer unix.Close(listener)
		if err := i.listen(listener); err != nil {
			i.fail(err)
		}
	})
	return nil
}

// Seen counts the calls that went by, by pair.
func (i *Injector) Seen() map[Pair]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := make(map[Pair]int, len(i.seen))
	for p, n := range i.seen {
		list[p] = n
	}
	return list
}

// Forget has Seen count from now on.
func (i *Injector) Forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen = nil
}

// Close waits until every watched process has ended, and returns the first trouble
// that the injector itself had.
func (i *Injector) Close() error {
	i.listeners.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

func (i *Injector) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
	}
}

// decide counts a call and asks what becomes of it.
func (i *Injector) decide(c *Call) Action {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.seen == nil {
		i.seen = map[Pair]int{}
	}
	i.seen[c.Pair()]++
	if i.OnCall == nil {
		return Action{}
	}
	return i.OnCall(*c)
}
