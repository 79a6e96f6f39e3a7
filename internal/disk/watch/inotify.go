package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// wanted is what the kernel is to report: new names, and nothing that happens to old
// ones. Each event wakes its reader (docs/notes/watch.md).
const wanted = renamed | unix.IN_CREATE

// renamed is the part of it that concerns names which files get by a rename.
const renamed = unix.IN_MOVED_TO | unix.IN_ONLYDIR

// room is for some hundred events in one read(2). Bytes.
const room = 32 << 10

// errOverflow means that the kernel has dropped events.
var errOverflow = errors.New("the kernel's queue of events is full")

// notifier is an inotify(7) descriptor. One goroutine at a time waits; the other methods
// may be used beside it.
type notifier struct {
	file *os.File
	conn syscall.RawConn
	fd   int
	mask uint32
	buf  []byte
	read func(fd int, b []byte) (int, error)

	mu       sync.Mutex
	dirs     map[int32]string // by watch descriptor, which the kernel does not give twice
	wds      map[string]int32
	deadline time.Time // as the file has it
}

func openNotifier() (*notifier, error) { return newNotifier(wanted) }

func newNotifier(mask uint32) (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	n := &notifier{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, mask: mask, buf: make([]byte, room), read: unix.Read,
		dirs: map[int32]string{}, wds: map[string]int32{}}
	if n.conn, err = n.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, n.file.Close())
	}
	return n, nil
}

// add watches a directory.
func (n *notifier) add(dir string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	wd, err := unix.InotifyAddWatch(n.fd, dir, n.mask)
	if err != nil {
		return err
	}
	n.dirs[int32(wd)], n.wds[dir] = dir, int32(wd)
	return nil
}

// remove ends the watch of a directory, if it has not ended by itself.
func (n *notifier) remove(dir string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if wd, ok := n.wds[dir]; ok {
		// An error means that the kernel has just ended it.
		_, _ = unix.InotifyRmWatch(n.fd, uint32(wd))
		delete(n.dirs, wd)
		delete(n.wds, dir)
	}
}

// has reports whether a directory is watched: the kernel forgets one that is removed.
func (n *notifier) has(dir string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.wds[dir]
	return ok
}

func (n *notifier) close() error { return n.file.Close() }

// until has wait end at a time; zero: at none.
func (n *notifier) until(t time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.deadline.Equal(t) {
		n.deadline = t
		// It errs when the file is closed; then wait does, too.
		_ = n.file.SetReadDeadline(t)
	}
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// wait reads events and gives their names to take until that has said true for one and
// all that were read are given. os.ErrDeadlineExceeded: the time of until has come.
// errOverflow: events are lost, and some may have been given.
//
// One read(2) that leaves room in the buffer has emptied the kernel's queue, and the
// poller reports all that comes later: a second read that says EAGAIN is not needed.
func (n *notifier) wait(take func(dir string, name []byte) bool) error {
	var failed error
	err := n.conn.Read(func(fd uintptr) (done bool) {
		done, failed = n.takeAll(int(fd), take)
		return done
	})
	if failed != nil {
		return failed
	}
	return err
}

// poll is wait for what is there already.
func (n *notifier) poll(take func(dir string, name []byte) bool) error {
	var failed error
	err := n.conn.Control(func(fd uintptr) { _, failed = n.takeAll(int(fd), take) })
	if failed != nil {
		return failed
	}
	return err
}

// takeAll reads until nothing is left or take has enough; done is false if it has not.
func (n *notifier) takeAll(fd int, take func(dir string, name []byte) bool) (done bool, err error) {
	for {
		m, err := n.read(fd, n.buf)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			return false, nil
		}
		if err != nil {
			return true, os.NewSyscallError("read", err)
		}
		enough, lost := n.split(n.buf[:m], take)
		if lost {
			return true, errOverflow
		}
		if enough {
			return true, nil
		}
		if m <= len(n.buf)-unix.SizeofInotifyEvent-unix.NAME_MAX-1 {
			return false, nil
		}
	}
}

// split gives the events in b to take.
func (n *notifier) split(b []byte, take func(dir string, name []byte) bool) (enough, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break // the kernel gives whole events
		}
		name := b[unix.SizeofInotifyEvent:end]
		b = b[end:]
		dir, known := n.dirs[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			lost = true
		case !known:
		case mask&unix.IN_IGNORED != 0:
			delete(n.dirs, wd)
			delete(n.wds, dir)
		case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
			if i := bytes.IndexByte(name, 0); i >= 0 {
				name = name[:i]
			}
			enough = take(dir, name) || enough
		}
	}
	return enough, lost
}
