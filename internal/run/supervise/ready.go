package supervise

import (
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ListenReady opens the socket on which programs report that they are ready, in the way
// they report it to systemd (sd_notify(3)), and adds it to Env. Without it a program counts
// as ready after a second. stop closes it.
func (s *Supervisor) ListenReady() (stop func()) {
	// The kernel chooses an abstract name, which is no file.
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return func() {}
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
		if err == nil {
			err = cerr
		}
	}
	if err != nil {
		_ = conn.Close() // no program knows it yet
		return func() {}
	}
	s.Env = append(s.Env, "NOTIFY_SOCKET="+conn.LocalAddr().String())
	go s.readReports(conn)
	return func() { _ = conn.Close() }
}

// readReports reads until the socket is closed.
func (s *Supervisor) readReports(conn *net.UnixConn) {
	text, extra := make([]byte, 4096), make([]byte, 256)
	for {
		n, m, _, _, err := conn.ReadMsgUnix(text, extra)
		if err != nil {
			return
		}
		pid := sender(extra[:m])
		if pid == 0 || !slices.Contains(strings.Split(string(text[:n]), "\n"), "READY=1") {
			continue
		}
		for _, p := range s.programs {
			p.ready(pid)
		}
	}
}

// sender returns the pid that the kernel attached to a message; 0 if it attached none.
func sender(extra []byte) int {
	list, err := unix.ParseSocketControlMessage(extra)
	if err != nil {
		return 0
	}
	for i := range list {
		if cred, err := unix.ParseUnixCredentials(&list[i]); err == nil {
			return int(cred.Pid)
		}
	}
	return 0
}
