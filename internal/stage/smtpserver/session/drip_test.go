package session

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// counting counts the reads that returned something.
type counting struct {
	io.ReadWriter
	reads int
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.ReadWriter.Read(b)
	if n > 0 {
		c.reads++
	}
	return n, err
}

// Net1: a client that sends a command byte by byte does not wake the server for each, and gets
// its reply. A handshake that follows gets each of its bytes at once.
func TestClientThatDripsIsReadInPieces(t *testing.T) {
	t.Parallel()
	listener := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	client := assert.Get(net.Dial("tcp", listener.Addr().String()))(t)
	defer client.Close()
	c := New(Config{ReadTimeout: time.Minute, WriteTimeout: time.Minute}).NewConn(assert.Get(listener.Accept())(t), nil)
	defer c.close()
	reads := &counting{ReadWriter: c.stream}
	c.stream = reads

	// As if the line had begun so long ago.
	c.dripped = dripAfter + time.Millisecond
	const line = "NOOP abc"
	go func() {
		for _, b := range []byte(line + "\r\n") {
			if _, err := client.Write([]byte{b}); err != nil {
				return
			}
		}
	}()
	got := assert.Get(c.readLine(maxCommandLine))(t)
	if string(got) != line {
		t.Errorf("got %q, want %q", got, line)
	}
	if reads.reads >= len(line) {
		t.Errorf("%d bytes took %d reads", len(line), reads.reads)
	}
	if !c.held {
		t.Error("nothing was held")
	}
	if !c.limit(time.Minute) {
		t.Fatal("the connection has ended")
	}
	raw := assert.Get(c.conn.(*net.TCPConn).SyscallConn())(t)
	var low int
	assert.Must(t, raw.Control(func(fd uintptr) {
		low = assert.Get(unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT))(t)
	}))
	if low != 1 {
		t.Errorf("a handshake is woken for %d bytes, want 1", low)
	}
}
