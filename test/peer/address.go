package peer

import (
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

// Ports that FreeAddr gives: below those that the kernel gives to clients and to who
// listens on port 0 (ip_local_port_range begins at 32768), so that none of them takes one
// before it is listened on.
const (
	firstPort = 10000
	lastPort  = 32000
)

// FreeAddr returns an address of loopback, host:port, that no process listens on.
func FreeAddr() (string, error) {
	const tries = 100
	var err error
	for range tries {
		addr := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(lastPort-firstPort))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", err
}

// AwaitListener connects until somebody greets.
func AwaitListener(addr string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			// A process that was slow to start may greet the next connection.
			_ = c.SetDeadline(time.Now().Add(min(time.Until(deadline), 15*time.Second)))
			_, err = c.Read(make([]byte, 512))
			c.Close()
			if err == nil {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no process listens on %s: %w", addr, err)
		}
		time.Sleep(20 * time.Millisecond) // a port has no event to wait for
	}
}
