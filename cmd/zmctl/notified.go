package main

import (
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// listenReady makes the socket on which daemons say that they are ready, as they say it
// to systemd (sd_notify(3)), and gives what goes into their environment. Without one
// they count as ready when they have lived for a moment.
func (s *supervisor) listenReady() (env string, stop func()) {
	// Without a name the kernel chooses one that is no file.
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return "", func() {}
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
		if err == nil {
			err = cerr
		}
	}
	if err != nil {
		_ = conn.Close() // nobody knows of it yet
		return "", func() {}
	}
	go s.hear(conn)
	return "NOTIFY_SOCKET=" + conn.LocalAddr().String(), func() { _ = conn.Close() }
}

// hear takes what daemons say until the socket is closed.
func (s *supervisor) hear(conn *net.UnixConn) {
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
		s.mu.Lock()
		list := slices.Clone(s.daemons)
		s.mu.Unlock()
		for _, d := range list {
			d.ready(pid)
		}
	}
}

// sender is the process that sent a message, as the kernel says; 0 if it does not.
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
