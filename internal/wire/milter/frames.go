package milter

import (
	"bufio"
	"encoding/binary"
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
)

// frames is a filter's connection as go-milter sees it. The packets of a new body go to
// a writer instead, and the library never sees them: it would keep them all. Time limits
// never pass the one for the content.
type frames struct {
	net.Conn
	r *bufio.Reader

	ready []byte // of the packet's begin, for the library
	left  int    // bytes of the packet behind that
	begin [5]byte

	body  io.Writer // nil: no message's end is awaited
	limit time.Time
	kept  int         // bytes of changes that the library keeps
	stop  func() bool // no more waiting for the end of the context
	err   error       // why reading ends, if it is not the connection's error
}

func newFrames(c net.Conn) *frames { return &frames{Conn: c, r: bufio.NewReader(c)} }

// await has body take what comes as a new body until the end of the content.
func (f *frames) await(body io.Writer) { f.body, f.kept = body, 0 }

// limitTo sets the time by which the content must be through; zero: none.
func (f *frames) limitTo(t time.Time) { f.limit = t }

func (f *frames) earlier(t time.Time) time.Time {
	if f.limit.IsZero() || !t.IsZero() && t.Before(f.limit) {
		return t
	}
	return f.limit
}

func (f *frames) SetReadDeadline(t time.Time) error  { return f.Conn.SetReadDeadline(f.earlier(t)) }
func (f *frames) SetWriteDeadline(t time.Time) error { return f.Conn.SetWriteDeadline(f.earlier(t)) }

// Close implements net.Conn.
func (f *frames) Close() error {
	if f.stop != nil {
		f.stop()
	}
	return f.Conn.Close()
}

func (f *frames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(f.ready) == 0 && f.left == 0 {
		if f.err != nil {
			return 0, f.err
		}
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	if len(f.ready) > 0 {
		n := copy(p, f.ready)
		f.ready = f.ready[n:]
		return n, nil
	}
	n, err := f.r.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}

// next reads a packet's begin; one of a new body whole.
func (f *frames) next() error {
	if _, err := io.ReadFull(f.r, f.begin[:4]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(f.begin[:4])
	if n == 0 || n > 1<<20 {
		f.ready = f.begin[:4] // the library reports the error
		return nil
	}
	code, err := f.r.ReadByte()
	if err != nil {
		return err
	}
	f.begin[4] = code
	if code == 'b' && f.body != nil {
		_, err := f.body.Write(nil) // there is a new body, if it be empty
		if err == nil {
			_, err = io.CopyN(f.body, f.r, int64(n)-1)
		}
		if err != nil {
			f.err = err
			return err
		}
		return nil
	}
	// p is a filter at work; the library passes over it.
	if code != 'p' && f.body != nil {
		if f.kept += int(n) + overhead; f.kept > maxChanges {
			f.err = ErrTooMuch
			return f.err
		}
	}
	f.ready, f.left = f.begin[:5], int(n)-1
	return nil
}
