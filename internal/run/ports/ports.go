// Package ports opens TCP addresses, also beside open ones that they are to replace, so that no
// connection is refused when a reload changes an address from 127.0.0.1:25 to :25. It owns nothing
// on disk.
//
// Diagnostics: all errors are the system's. EADDRINUSE is an address of another process; fs.ErrPermission
// one that needs a right.
package ports

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen opens an address. 0.0.0.0 is every address of IPv4, [::] every one of IPv6, and an empty
// host both. share: others of this user that allow it, too, may overlap.
func Listen(ctx context.Context, addr string, share bool) (net.Listener, error) {
	// Our own time limits find a dead client; probes would only cost system calls.
	lc := net.ListenConfig{KeepAlive: -1}
	// A socket of Multipath TCP hides the one with the address, which Own and Drain are about.
	lc.SetMultipathTCP(false)
	if share {
		lc.Control = func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = setShared(fd, true) }), err)
		}
	}
	return lc.Listen(ctx, network(addr), addr)
}

// network returns what net listens with: with tcp it would take IPv6, too, for 0.0.0.0, so that
// [::] beside it could not be opened.
func network(addr string) string {
	p, err := netip.ParseAddrPort(addr)
	switch {
	case err != nil:
		return "tcp"
	case p.Addr().Unmap().Is4():
		return "tcp4"
	}
	return "tcp6"
}

// Share lets other sockets of this user overlap with a TCP listener, or not any more.
func Share(l net.Listener, on bool) (err error) {
	t, ok := l.(*net.TCPListener)
	if !ok {
		return errors.ErrUnsupported
	}
	return errors.Join(control(t, func(fd uintptr) { err = setShared(fd, on) }), err)
}

func setShared(fd uintptr, on bool) error {
	value := 0
	if on {
		value = 1
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, value))
}

// Own gives a TCP listener that root has opened to a user, whose processes may open another one beside
// it. Other listeners stay as they are.
func Own(l net.Listener, uid int) (err error) {
	t, ok := l.(*net.TCPListener)
	if !ok {
		return nil
	}
	return errors.Join(control(t, func(fd uintptr) { err = os.NewSyscallError("fchown", unix.Fchown(int(fd), uid, -1)) }), err)
}

func control(c syscall.Conn, f func(fd uintptr)) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}

// Drain gives accept the connections that wait in a listener, before it is closed: their clients
// would see them reset. No others come to it from now on: who begins to connect does so again by
// itself, and then finds what listens there instead.
func Drain(l net.Listener, accept func(net.Conn)) {
	c, ok := l.(syscall.Conn)
	if !ok {
		return
	}
	// A listener that is closed already has none.
	_ = control(c, func(fd uintptr) {
		// A program of one instruction, which drops every packet: between the last accept and the
		// close a connection would be lost. Unix sockets take no part in it.
		drop := unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}}
		_ = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &drop)
		for {
			n, _, err := unix.Accept4(int(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			if err != nil {
				return // EAGAIN: that was the last
			}
			f := os.NewFile(uintptr(n), "connection")
			conn, err := net.FileConn(f)
			_ = f.Close() // the connection has a descriptor of its own
			if err == nil {
				accept(conn)
			}
		}
	})
}
