package inject

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// marker is the variable that is set for this program when it is started to install the
// filter: the number of the socket for the listener. credential is the user that the
// program is to run as, UID:GID; the filter is installed by root, who alone may.
const (
	marker     = "INJECT_LISTENER_SOCKET"
	credential = "INJECT_CREDENTIAL"
)

// Main returns at once in a program that was started as usual. Started by Start, it
// installs the filter and becomes the program that is to be watched.
func Main() {
	socket := os.Getenv(marker)
	if socket == "" {
		return
	}
	if err := launch(socket); err != nil {
		fmt.Fprintln(os.Stderr, "inject:", err)
		os.Exit(127)
	}
}

// launch is given the program's path and its arguments, beginning with argv[0].
func launch(socket string) error {
	fd, err := strconv.Atoi(socket)
	if err != nil || len(os.Args) < 3 {
		return fmt.Errorf("%s=%s: started without a socket or a program", marker, socket)
	}
	unix.CloseOnExec(fd)
	// No one answers yet when the listener is sent, so a thread without the filter
	// sends it. This one keeps its filter through execve(2); the others end there.
	runtime.LockOSThread()
	listeners, sent := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		l := <-listeners
		sent <- unix.Sendmsg(fd, []byte{0}, unix.UnixRights(l), nil, 0)
	}()
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, marker+"=") || strings.HasPrefix(v, credential+"=")
	})
	l, err := install()
	if err != nil {
		return err
	}
	listeners <- l
	if err := <-sent; err != nil {
		return fmt.Errorf("hand over the listener: %w", err)
	}
	if err := become(os.Getenv(credential)); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", os.Args[1], syscall.Exec(os.Args[1], os.Args[2:], env))
}

// become gives this thread, and so what it executes, another user and no further groups.
func become(who string) error {
	if who == "" {
		return nil
	}
	var uid, gid int
	if _, err := fmt.Sscanf(who, "%d:%d", &uid, &gid); err != nil {
		return fmt.Errorf("%s=%s: %w", credential, who, err)
	}
	for _, call := range [][3]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETGID, uintptr(gid)}, {unix.SYS_SETUID, uintptr(uid)}} {
		if _, _, e := unix.RawSyscall(call[0], call[1], call[2], 0); e != 0 {
			return fmt.Errorf("become uid %d: %w", uid, e)
		}
	}
	return nil
}

// startFiltered starts cmd by way of this program and returns the listener. It
// returns when the socket's other end is closed: cmd's program is being executed.
func startFiltered(cmd *exec.Cmd) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return -1, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "listener socket")
	defer unix.Close(ours)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(slices.Clone(cmd.Env), marker+"="+strconv.Itoa(3+len(cmd.ExtraFiles)))
	if a := cmd.SysProcAttr; a != nil && a.Credential != nil {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d:%d", credential, a.Credential.Uid, a.Credential.Gid))
		changed := *a
		changed.Credential = nil
		cmd.SysProcAttr = &changed
	}
	cmd.Args = append([]string{self, cmd.Path}, cmd.Args...)
	cmd.Path = self
	cmd.ExtraFiles = append(slices.Clone(cmd.ExtraFiles), theirs)
	err = errors.Join(cmd.Start(), theirs.Close())
	if err != nil {
		return -1, err
	}
	l, err := receiveListener(ours)
	if err != nil {
		_ = cmd.Process.Kill()
		return -1, errors.Join(err, cmd.Wait())
	}
	return l, nil
}

// receiveListener waits for the listener, then for the execution of the program,
// which closes the socket.
func receiveListener(socket int) (int, error) {
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := recvmsg(socket, buf, oob)
	if err != nil {
		return -1, fmt.Errorf("receive the listener: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) == 0 {
		return -1, errors.Join(errors.New("the filter was not installed"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(fds[0])
	if _, _, _, _, err := recvmsg(socket, buf, nil); err != nil {
		unix.Close(fds[0])
		return -1, fmt.Errorf("await the program: %w", err)
	}
	return fds[0], nil
}

func recvmsg(fd int, p, oob []byte) (n, oobn, flags int, from unix.Sockaddr, err error) {
	for {
		n, oobn, flags, from, err = unix.Recvmsg(fd, p, oob, 0)
		if err != unix.EINTR {
			return n, oobn, flags, from, err
		}
	}
}
