package peer

import (
	"fmt"
	"net"
	"time"
)

// FreeAddr is an address of loopback, host:port, that nobody listens on.
func FreeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// AwaitListener connects until somebody greets.
func AwaitListener(addr string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.SetDeadline(deadline)
			_, err = c.Read(make([]byte, 512))
			c.Close()
			if err == nil {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nobody listens on %s: %w", addr, err)
		}
		time.Sleep(20 * time.Millisecond) // a port has no event to wait for
	}
}
