package smtpclient

import (
	"bytes"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// dataBuffer is how much of a message is gathered for one write. A message of
	// this size at most leaves in one write with its final dot.
	dataBuffer = 64 << 10
	// readBuffer is how much of a body is read at once.
	readBuffer = 32 << 10
	// dataSlack is kept free in the buffer: a line end before the dot, and the dot.
	dataSlack = len("\r\n.\r\n")
)

// dataWriter turns stored bytes into what follows DATA (RFC 5321 §4.5.2): LF
// becomes CRLF and a dot that begins a line is doubled. Every other byte, a bare CR
// or a NUL as well, goes out as it is. It uses the same memory for any message.
type dataWriter struct {
	to    io.Writer
	block time.Duration // longest wait for one write
	buf   *outBuffer    // nil: nothing is on the way
	n     int           // bytes in buf
	mid   bool          // inside a line
	began time.Time     // when the message did
	sent  int64         // bytes of it that were written
	rate  int64         // bytes a second that have to be; 0: any
	whole time.Duration // longest time for all of it; 0: any
}

// outBuffer is what a connection needs while something is on the way on it: one that is
// kept for later has none.
type outBuffer struct {
	out [dataBuffer + dataSlack]byte
	in  [readBuffer]byte
}

var outBuffers = sync.Pool{New: func() any { return new(outBuffer) }}

// rest gives the buffer away.
func (w *dataWriter) rest() {
	if w.buf != nil {
		outBuffers.Put(w.buf)
		w.buf = nil
	}
}

// start begins a message.
func (w *dataWriter) start(to io.Writer, cfg *Config) {
	if w.buf == nil {
		w.buf = outBuffers.Get().(*outBuffer)
	}
	w.to, w.block, w.rate, w.whole = to, cfg.Timeouts.Block, cfg.MinRate, cfg.MaxTime
	w.n, w.mid, w.sent, w.began = 0, false, 0, time.Now()
}

// Write adds stored bytes.
func (w *dataWriter) Write(p []byte) (int, error) {
	total, out := len(p), &w.buf.out
	for len(p) > 0 {
		if !w.mid && p[0] == '.' {
			if w.n < dataBuffer {
				out[w.n] = '.'
				w.n++
			} else if err := w.put([]byte{'.'}); err != nil {
				return 0, err
			}
		}
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			w.mid = true
			if err := w.put(p); err != nil {
				return 0, err
			}
			return total, nil
		}
		// The common case: the line and its end fit.
		if w.n+i+2 <= dataBuffer {
			w.n += copy(out[w.n:], p[:i])
			out[w.n], out[w.n+1] = '\r', '\n'
			w.n += 2
		} else {
			if err := w.put(p[:i]); err != nil {
				return 0, err
			}
			if err := w.put([]byte{'\r', '\n'}); err != nil {
				return 0, err
			}
		}
		w.mid = false
		p = p[i+1:]
	}
	return total, nil
}

// put adds bytes as they are. The buffer is written only when more must go in, so
// that something is always left to go with the final dot.
func (w *dataWriter) put(p []byte) error {
	for len(p) > 0 {
		if w.n >= dataBuffer {
			if err := w.flush(); err != nil {
				return err
			}
		}
		n := copy(w.buf.out[w.n:dataBuffer], p)
		w.n += n
		p = p[n:]
	}
	return nil
}

// readBody adds all of r. The error of the reader comes back as readErr, that of
// the connection as err.
func (w *dataWriter) readBody(r io.Reader) (readErr, err error) {
	if r == nil {
		return nil, nil
	}
	if whole, ok := r.(*bytes.Reader); ok {
		_, err := whole.WriteTo(w)
		return nil, err
	}
	in := w.buf.in[:]
	for {
		n, rerr := r.Read(in)
		if _, err := w.Write(in[:n]); err != nil {
			return nil, err
		}
		if rerr == io.EOF {
			return nil, nil
		}
		if rerr != nil {
			return rerr, nil
		}
	}
}

// finish adds the final dot, after a line end if the last line lacks one. It writes
// nothing: there is room for it.
func (w *dataWriter) finish() {
	if w.mid {
		w.n += copy(w.buf.out[w.n:], "\r\n")
		w.mid = false
	}
	w.n += copy(w.buf.out[w.n:], ".\r\n")
}

// flush writes the buffer. A write that fails has kept the last byte back.
func (w *dataWriter) flush() error {
	if nc, ok := w.to.(net.Conn); ok {
		if err := nc.SetWriteDeadline(w.deadline(time.Now())); err != nil {
			return err
		}
	}
	n, err := w.to.Write(w.buf.out[:w.n])
	w.sent += int64(n)
	w.n = 0
	return err
}

// deadline returns the end of a write that begins now. A server that takes a block now and
// then would hold the connection for as long as it likes otherwise.
func (w *dataWriter) deadline(now time.Time) time.Time {
	end := now.Add(w.block)
	earlier := func(d time.Duration) {
		if t := w.began.Add(d); t.Before(end) {
			end = t
		}
	}
	if w.rate > 0 {
		earlier(w.block + time.Duration(float64(w.sent+int64(w.n))/float64(w.rate)*float64(time.Second)))
	}
	if w.whole > 0 {
		earlier(w.whole)
	}
	return end
}
