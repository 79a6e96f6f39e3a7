package mailbox

import "golang.org/x/sys/unix"

// The calls below are made again when a signal interrupts them: EINTR is no error
// of the file, and must not defer a recipient. close(2) is not among
// them: Linux has released the descriptor by then.

func again(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

func count(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	return count(func() (int, error) { return unix.Openat(dir, name, flags, mode) })
}

func linkat(olddir int, old string, newdir int, name string, flags int) error {
	return again(func() error { return unix.Linkat(olddir, old, newdir, name, flags) })
}

func unlinkat(dir int, name string) error {
	return again(func() error { return unix.Unlinkat(dir, name, 0) })
}

func mkdirat(dir int, name string, mode uint32) error {
	return again(func() error { return unix.Mkdirat(dir, name, mode) })
}

func fsync(fd int) error { return again(func() error { return unix.Fsync(fd) }) }

func ftruncate(fd int, size int64) error {
	return again(func() error { return unix.Ftruncate(fd, size) })
}

func write(fd int, b []byte) (int, error) {
	return count(func() (int, error) { return unix.Write(fd, b) })
}

func read(fd int, b []byte) (int, error) {
	return count(func() (int, error) { return unix.Read(fd, b) })
}

func pread(fd int, b []byte, at int64) (int, error) {
	return count(func() (int, error) { return unix.Pread(fd, b, at) })
}

// setLock sets a lock of fcntl(2) without waiting.
func setLock(fd int, l *unix.Flock_t) error {
	return again(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, l) })
}
