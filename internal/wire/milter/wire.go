package milter

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	// maxChanges bounds what a filter may want to have changed of one message but for
	// its body. Bytes.
	maxChanges = 8 << 20
	// overhead is what a change costs in memory beside its text. Bytes.
	overhead = 256
	// maxPacket is the longest packet that a filter may send; libmilter sends none above
	// 64 kB unless it was told to. Bytes.
	maxPacket = 1 << 20
)

// wire writes and reads packets of the protocol: a length of four bytes, a command, its data.
// What is written is sent before the next answer is awaited.
type wire struct {
	conn net.Conn
	r    *bufio.Reader
	out  []byte
	data []byte // of the packet that was read last
	stop func() bool
}

func newWire(ctx context.Context, c net.Conn) *wire {
	w := &wire{conn: c, r: bufio.NewReader(c)}
	// A wait for the filter ends with ctx.
	w.stop = context.AfterFunc(ctx, func() { _ = c.Close() })
	return w
}

func (w *wire) close() error {
	w.stop()
	return w.conn.Close()
}

// begin begins a packet, and end ends it.
func (w *wire) begin(command byte) (at int) {
	at = len(w.out)
	w.out = append(w.out, 0, 0, 0, 0, command)
	return at
}

func (w *wire) end(at int) {
	binary.BigEndian.PutUint32(w.out[at:], uint32(len(w.out)-at-4))
}

// text appends a string with its NUL.
func (w *wire) text(s string) {
	for i := range len(s) {
		b := s[i]
		if b == 0 {
			b = '?' // it would end the string
		}
		w.out = append(w.out, b)
	}
	w.out = append(w.out, 0)
}

// flushAt is how much is written before it is sent although no answer is awaited.
const flushAt = 64 << 10

// flush sends what was written.
func (w *wire) flush(deadline time.Time) error {
	if len(w.out) == 0 {
		return nil
	}
	if err := w.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// next reads the begin of a packet; n is the length of its data, which data reads or copyTo
// passes on.
func (w *wire) next(deadline time.Time) (code byte, n int, err error) {
	if err := w.conn.SetReadDeadline(deadline); err != nil {
		return 0, 0, err
	}
	var begin [4]byte
	if _, err := io.ReadFull(w.r, begin[:]); err != nil {
		return 0, 0, hungUp(err)
	}
	length := binary.BigEndian.Uint32(begin[:])
	if length == 0 || length > maxPacket {
		return 0, 0, fmt.Errorf("%w: a packet of %d bytes", errProtocol, length)
	}
	code, err = w.r.ReadByte()
	return code, int(length) - 1, hungUp(err)
}

// hungUp names the end of the connection.
func hungUp(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errHungUp
	}
	return err
}

// read reads a packet's data, which is valid until the next read.
func (w *wire) read(n int) ([]byte, error) {
	if cap(w.data) < n {
		w.data = make([]byte, n)
	}
	w.data = w.data[:n]
	if _, err := io.ReadFull(w.r, w.data); err != nil {
		return nil, hungUp(err)
	}
	return w.data, nil
}

// copyTo writes a packet's data to out.
func (w *wire) copyTo(out io.Writer, n int) error {
	_, err := out.Write(nil) // there is a new body, even if it is empty
	if err == nil {
		_, err = io.CopyN(out, w.r, int64(n))
	}
	return err
}

// errProtocol means that a filter sends what the protocol does not allow, and errHungUp that
// it has closed the connection.
var (
	errProtocol = errors.New("protocol error")
	errHungUp   = errors.New("the filter has closed the connection")
)
