package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/ports"
)

// Opener opens a TCP address that this process has no right to. share: it is that of a socket
// that allows it, as ports.Share makes it.
type Opener func(addr string, share bool) (net.Listener, error)

// Change has addresses open that are named at a reload. It returns the listeners from now on, with
// those of addresses that stay, and those of them that are new; the rest of old is to be closed
// when the new ones are served. Settings whose addresses no one here has the right to open keep
// their old ones, and are returned as waiting. With an error nothing has changed.
func Change(ctx context.Context, old []*Listener, named []Port, help Opener, log *slog.Logger) (next, opened []*Listener, waiting []string, err error) {
	isKept := func(l *Listener) bool {
		return slices.ContainsFunc(named, func(p Port) bool {
			return p.Role == l.Role && (slices.Contains(p.Addrs, l.name) || slices.Contains(p.Open, l.Listener))
		})
	}
	var leaving []net.Listener // whose place may be taken
	for _, l := range old {
		if isKept(l) {
			next = append(next, l)
		} else {
			leaving = append(leaving, l.Listener)
		}
	}
	for _, p := range named {
		var fresh []*Listener
		for _, addr := range p.Addrs {
			if slices.ContainsFunc(old, func(l *Listener) bool { return l.Role == p.Role && l.name == addr }) {
				continue
			}
			var l net.Listener
			if l, err = openBeside(ctx, addr, leaving, help); err != nil {
				break
			}
			fresh = append(fresh, newListener(l, p.Role, addr, log))
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			waiting, err = append(waiting, p.Setting), CloseAll(fresh)
			for _, l := range old {
				if l.Role == p.Role && !isKept(l) {
					next = append(next, l)
				}
			}
			continue
		case err != nil:
			return nil, nil, nil, errors.Join(fmt.Errorf("%w (%s)", err, p.Setting), CloseAll(fresh), CloseAll(opened))
		}
		opened, next = append(opened, fresh...), append(next, fresh...)
	}
	if len(next) == 0 {
		return nil, nil, nil, errNoAddress
	}
	return next, opened, waiting, nil
}

// OpenBeside opens a TCP address that may overlap with those of listeners which are about to be
// closed, as :25 does with 127.0.0.1:25: no connection is refused meanwhile. One that another process
// listens on is an error.
func OpenBeside(ctx context.Context, addr string, leaving ...net.Listener) (net.Listener, error) {
	return openBeside(ctx, addr, leaving, nil)
}

func openBeside(ctx context.Context, addr string, leaving []net.Listener, help Opener) (net.Listener, error) {
	if strings.Contains(addr, "/") {
		return openAddr(ctx, addr)
	}
	l, err := openTCP(ctx, addr, false, help)
	if !errors.Is(err, unix.EADDRINUSE) {
		return l, err
	}
	// The kernel lets sockets of one user overlap while all of them allow it.
	for _, other := range leaving {
		if ports.Share(other, true) == nil {
			defer func() { _ = ports.Share(other, false) }() // it is closed soon
		}
	}
	if l, err = openTCP(ctx, addr, true, help); err != nil {
		return nil, err
	}
	if err := ports.Share(l, false); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", addr, err), l.Close())
	}
	return l, nil
}

// openTCP opens an address, or has it opened where this process may not.
func openTCP(ctx context.Context, addr string, shared bool, help Opener) (net.Listener, error) {
	l, err := ports.Listen(ctx, addr, shared)
	if help != nil && errors.Is(err, fs.ErrPermission) {
		return help(addr, shared)
	}
	return l, err
}
