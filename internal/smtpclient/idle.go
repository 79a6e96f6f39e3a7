package smtpclient

import (
	"crypto/tls"
	"fmt"
	"net"
	"syscall"
)

// gone tells a connection with nothing on the way that has ended, or on which the server
// has said something unasked: 421 before it hangs up, or an answer too many. Before a
// chunk the socket is looked at, since what is written into a closed connection is in
// doubt; before questions what has been read already says enough.
func (c *Conn) gone(look bool) bool {
	if c.r.Buffered() == 0 {
		if !look || c.Served() == 0 || !ended(c.nc) {
			return false
		}
	}
	r, err := c.reply(PhaseMail)
	if err == nil && r.Code != 421 {
		_ = c.fail(PhaseMail, fmt.Errorf("%w: unasked: %s", ErrNoReply, r))
	}
	c.Close()
	return true
}

// ended looks whether a connection has something to read, or its end. What TLS has to
// read may be its own, so that there only the end counts.
func ended(nc net.Conn) bool {
	secure, inside := nc.(*tls.Conn)
	if inside {
		nc = secure.NetConn()
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	found := false
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		found = err == nil && (n == 0 || !inside) || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return found
}
