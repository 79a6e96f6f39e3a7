package smtpclient

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// gone tells a connection with nothing on the way that has ended, or on which the server
// has said something unasked: 421 before it hangs up, or an answer too many. Before a
// chunk the socket is looked at, since what is written into a closed connection is in
// doubt; before questions what has been read already says enough.
func (c *Conn) gone(look bool) bool {
	if c.r.Buffered() == 0 {
		if !look || c.Served() == 0 || !c.spoke() {
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

const (
	// glance is how long TLS may take to make something of the bytes that have come.
	glance = 10 * time.Millisecond
	// glances bounds them: a server that sends TLS's own for ever is none to stay with.
	glances = 100
)

// spoke looks whether the server has said something or ended the connection. What TLS has
// to read may be its own, as session tickets are, or the end that it tells before TCP does
// (RFC 8446 §6.1): it is read to know.
func (c *Conn) spoke() bool {
	secure, inside := c.nc.(*tls.Conn)
	if !inside {
		return readable(c.nc)
	}
	defer c.nc.SetReadDeadline(time.Time{})
	for range glances {
		if !readable(secure.NetConn()) {
			return false
		}
		_ = c.nc.SetReadDeadline(time.Now().Add(glance))
		_, err := c.r.Peek(1)
		if late := net.Error(nil); !errors.As(err, &late) || !late.Timeout() {
			return true
		}
	}
	return true
}

// readable looks whether a socket has something to read, or its end.
func readable(nc net.Conn) bool {
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
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		found = err == nil || err != syscall.EAGAIN && err != syscall.EINTR
	})
	return found
}
