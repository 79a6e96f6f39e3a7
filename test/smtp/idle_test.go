package smtp

import (
	"crypto/tls"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bufio"
)

// An idle connection needs little memory: the buffer for content is not its own.
func TestIdleConnectionsNeedLittleMemory(t *testing.T) {
	n := 10000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	n = min(n, int(limit.Cur)-100)
	if testing.Short() || n < 1000 {
		t.Skipf("%d connections are too few", n)
	}
	for port, most := range map[string]int{"mx": 12, "submissions": 40} {
		s := startServer(t)
		before := resident(t, s.pid)
		conns := make([]net.Conn, 0, n)
		count := n
		if port == "submissions" {
			count = n / 5 // handshakes take long
		}
		for range count {
			c, err := net.Dial("tcp", s.ports[port])
			if err != nil {
				t.Fatal(err)
			}
			if port == "submissions" {
				c = tls.Client(c, s.tls)
			}
			conns = append(conns, c)
			if _, err := c.Write([]byte("EHLO client.example\r\n")); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReaderSize(c, 512)
			for range 2 {
				if _, err := readReply(r); err != nil {
					t.Fatalf("connection %d: %v", len(conns), err)
				}
			}
		}
		each := float64(resident(t, s.pid)-before) / float64(count) / 1024
		t.Logf("%s: %d idle connections of %.1f kB", port, count, each)
		if each > float64(most) {
			t.Errorf("%s: an idle connection takes %.1f kB, want at most %d", port, each, most)
		}
		for _, c := range conns {
			c.Close()
		}
	}
}

// resident returns the memory of a process, in bytes.
func resident(t *testing.T, pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
