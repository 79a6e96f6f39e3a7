// Package helpertest has connections as helper.Start makes them, with both ends in one process.
// It owns nothing.
//
// Diagnostics: t.Fatal.
package helpertest

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// Pair returns a connection's two ends, which are closed when the test has ended.
func Pair(t *testing.T) (one, other *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	assert.Must(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(f)
		f.Close()
		assert.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		ends[i] = conn.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
