package lease

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
)

// Writer publishes a node's lease. One process of a machine does: Create refuses a second one.
type Writer struct {
	file   *os.File // has the lock
	memory *memory
	head   [headWords]uint64
}

// Create returns the writer of a node's page. It goes on with a page that an earlier process has
// left, so that programs that have mapped it see what is published from now on; the page says that
// there is no lease until Publish. Anything else with the page's name is replaced.
func Create(dir, node string) (*Writer, error) {
	fail := func(err error) (*Writer, error) {
		return nil, fmt.Errorf("publish the lease of node %s: %w", node, err)
	}
	if err := config.CheckNode(node); err != nil {
		return fail(err)
	}
	boot, err := bootID()
	if err != nil {
		return fail(err)
	}
	d, err := openDir(dir, nil)
	if err != nil {
		return fail(err)
	}
	defer d.Close()
	w := &Writer{head: head(node, boot)}
	path := PathOf(dir, node)
	if w.file, err = openFile(path, unix.O_RDWR, nil); err == nil {
		if err = w.lock(); err != nil {
			return fail(errors.Join(err, w.file.Close()))
		}
		if w.memory, err = mapFile(w.file, unix.PROT_READ|unix.PROT_WRITE); err == nil {
			if _, err = w.memory.read(node, boot); err == nil {
				err = w.Withdraw()
			}
			if err == nil {
				return w, nil
			}
			err = unix.Munmap(w.memory.bytes())
		}
		err = errors.Join(err, w.file.Close())
		if err != nil {
			return fail(err)
		}
	}
	if err = w.make(d, node); err != nil {
		return fail(err)
	}
	return w, nil
}

// make makes a new page. It is complete before it has its name.
func (w *Writer) make(dir *os.File, node string) error {
	name := filepath.Base(PathOf("", node))
	draft := "." + name + ".new"
	at := int(dir.Fd())
	// Crash: a draft that the next writer removes.
	if err := unix.Unlinkat(at, draft, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: filepath.Join(dir.Name(), draft), Err: err}
	}
	fd, err := unix.Openat(at, draft, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "create", Path: filepath.Join(dir.Name(), draft), Err: err}
	}
	w.file = os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name))
	if err = w.fill(); err == nil {
		err = unix.Renameat(at, draft, at, name)
	}
	if err == nil {
		// Another writer that began at the same time may have removed our draft and made its own.
		var st unix.Stat_t
		if err = unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && identify(w.file) != (fileID{st.Dev, st.Ino}) {
			err = errors.New("another process publishes it")
		}
	}
	if err != nil {
		err = errors.Join(&os.PathError{Op: "make", Path: w.file.Name(), Err: err}, w.file.Close())
	}
	return err
}

func (w *Writer) fill() (err error) {
	if err = w.lock(); err != nil {
		return err
	}
	// Written, not only made longer: a file with a hole on a full file system would end the
	// process that stores into it.
	if _, err = w.file.Write(make([]byte, size)); err != nil {
		return err
	}
	if w.memory, err = mapFile(w.file, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	copy(w.memory[:], w.head[:])
	if err = w.Withdraw(); err != nil {
		return err
	}
	// Users' programs read it, too. The mode is set here, whatever the umask.
	return unix.Fchmod(int(w.file.Fd()), 0o644)
}

// lock makes this process the only writer of the page.
func (w *Writer) lock() error {
	if err := unix.Flock(int(w.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%s: another process publishes it", w.file.Name())
		}
		return &os.PathError{Op: "flock", Path: w.file.Name(), Err: err}
	}
	return nil
}

// Publish says that the node has the lease with a number until a deadline. A later lease must have
// another number: programs that were started under an earlier one do nothing under it. An error means
// that the page was damaged, and that no program sees a lease.
func (w *Writer) Publish(number uint64, deadline time.Duration) error {
	return w.put(record{number, deadline, Held})
}

// Withdraw says that the node has no lease.
func (w *Writer) Withdraw() error { return w.put(record{state: None}) }

func (w *Writer) put(r record) error {
	err := guarded(func() error {
		w.memory.write(&w.head, r)
		return nil
	})
	if err != nil {
		return fmt.Errorf("publish in %s: %w", w.file.Name(), err)
	}
	return nil
}

// Close says that the node has no lease, and ends the writer.
func (w *Writer) Close() error {
	return errors.Join(w.Withdraw(), unix.Munmap(w.memory.bytes()), w.file.Close())
}
