package smtp

import (
	"net"

	"golang.org/x/sys/unix"
)

// awaitSent waits until the server's host has all that was sent, so that what follows is a
// segment of its own.
func awaitSent(c net.Conn) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	for range 1000 {
		left := 0
		_ = raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || left == 0 {
			return
		}
	}
}
