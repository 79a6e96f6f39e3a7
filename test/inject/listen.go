package inject

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif with its struct seccomp_data.
type notification struct {
	id     uint64
	thread uint32
	_      uint32
	number int32
	_      uint32
	_      uint64
	args   [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// listen answers a listener's calls until no process is watched by it any more.
func (i *Injector) listen(fd int) error {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return fmt.Errorf("poll the listener: %w", err)
		}
		if p[0].Revents&unix.POLLIN == 0 {
			return nil // POLLHUP: the last one has ended
		}
		var n notification
		err := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			continue // it was killed meanwhile
		case err != nil:
			return fmt.Errorf("receive a call: %w", err)
		}
		if err := i.answer(fd, &n); err != nil {
			return err
		}
	}
}

// answer decides one call. A process that has been killed meanwhile needs none.
func (i *Injector) answer(fd int, n *notification) error {
	r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	call, err := i.describe(n)
	valid := func() bool { return ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&r.id)) == nil }
	if err != nil && valid() {
		i.fail(err)
	}
	// What was read is the caller's only if the caller still waited afterwards: its
	// number may be another's by now.
	if err == nil && call != nil && valid() {
		if err := i.perform(i.decide(call), call, n, &r); err != nil {
			i.fail(err)
		}
	}
	if r.id == 0 {
		return nil
	}
	err = ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("answer a call: %w", err)
	}
	return nil
}

// perform does what was decided and makes the answer; with the id 0 there is none,
// because the process was killed in its call.
func (i *Injector) perform(a Action, c *Call, n *notification, r *response) error {
	if a.Part > 0 {
		done, err := i.writePart(c, n, a.Part)
		if err != nil {
			return err
		}
		r.val, r.flags = int64(done), 0
	}
	if a.Kill {
		r.id = 0
		// A thread with a fatal signal leaves the call without executing it.
		if err := unix.Kill(c.Pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("kill %s %d: %w", c.Program, c.Pid, err)
		}
		return nil
	}
	if a.Errno != 0 {
		r.val, r.err, r.flags = 0, -int32(a.Errno), 0
	}
	return nil
}

// writePart writes the first bytes of what a call wants to write, by a duplicate of
// its descriptor.
func (i *Injector) writePart(c *Call, n *notification, size int) (int, error) {
	if i.calls[int(n.number)].bytes != buffer {
		return 0, fmt.Errorf("a part of %s: only write, pwrite64 and sendto can be cut", c.Name)
	}
	data := make([]byte, min(size, int(n.args[2])))
	if _, err := readMemory(c.Thread, n.args[1], data); err != nil {
		return 0, err
	}
	pidfd, err := unix.PidfdOpen(c.Pid, 0)
	if err != nil {
		return 0, fmt.Errorf("open process %d: %w", c.Pid, err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(n.args[0]), 0)
	if err != nil {
		return 0, fmt.Errorf("duplicate descriptor %d of process %d: %w", n.args[0], c.Pid, err)
	}
	defer unix.Close(fd)
	var done int
	if c.Name == "pwrite64" {
		done, err = unix.Pwrite(fd, data, int64(n.args[3]))
	} else {
		done, err = unix.Write(fd, data)
	}
	if err != nil {
		return 0, fmt.Errorf("write a part of %s: %w", c.Object, err)
	}
	return done, nil
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch {
		case e == 0:
			return nil
		case e == unix.EINTR && request != unix.SECCOMP_IOCTL_NOTIF_RECV:
			continue
		}
		return e
	}
}
