package table

import (
	"bufio"
	"context"
	"net"
	"syscall"
)

// socketConnections is how many connections to a server are opened without a wait, and
// kept.
const socketConnections = 4

// openSocket makes a table of a socketmap server. Nothing is asked yet.
func openSocket(s Source, o Options) (Table, error) {
	a, err := parseSocket(s.Rest)
	if err != nil {
		return nil, err // Parse has taken it
	}
	if a.name == "" {
		a.name = o.Name
	}
	r := newRemote(s.Text, a.name, socketConnections, o)
	r.connect = func(ctx context.Context) (*conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, a.network, a.address)
		if err != nil {
			return nil, err
		}
		return &conn{
			r: bufio.NewReader(c), w: c,
			from:        c.(syscall.Conn), // TCP and Unix connections are
			setDeadline: c.SetDeadline,
			close:       func(bool) { c.Close() },
		}, nil
	}
	return r, nil
}
