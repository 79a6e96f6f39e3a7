package tasmtptest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pipeBuffer is how many bytes a Pipe holds in each direction before writes wait.
const pipeBuffer = 128 << 10

// Pipe returns the two ends of a connection in memory that behaves as TCP does: writes are
// buffered, bytes that were written before a close can still be read, and writes to an end
// that is closed fail. Its deadlines use the clock of the synctest bubble it is used in.
func Pipe() (client, server *PipeEnd) {
	a, b := newStream(), newStream()
	return &PipeEnd{in: a, out: b}, &PipeEnd{in: b, out: a}
}

// PipeEnd is one end of a Pipe.
type PipeEnd struct{ in, out *stream }

// stream is the bytes in one direction.
type stream struct {
	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	ended   bool // the writer has closed
	deaf    bool // the reader has closed
	read    limit
	write   limit
}

// limit is a deadline.
type limit struct {
	at    time.Time
	timer *time.Timer
}

func newStream() *stream {
	s := &stream{}
	s.changed.L = &s.mu
	return s
}

func (l *limit) over() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

// set changes a deadline. The stream's mutex is held.
func (s *stream) set(l *limit, at time.Time) {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.at = at; !at.IsZero() {
		l.timer = time.AfterFunc(time.Until(at), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
	s.changed.Broadcast()
}

func (e *PipeEnd) Read(p []byte) (int, error) {
	s := e.in
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.deaf:
			return 0, net.ErrClosed
		case s.read.over():
			return 0, os.ErrDeadlineExceeded
		case len(s.buf) > 0:
			n := copy(p, s.buf)
			s.buf = s.buf[n:]
			s.changed.Broadcast()
			return n, nil
		case s.ended:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (e *PipeEnd) Write(p []byte) (n int, err error) {
	s := e.out
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.ended:
			return n, net.ErrClosed
		case s.deaf:
			return n, syscall.EPIPE
		case s.write.over():
			return n, os.ErrDeadlineExceeded
		}
		if m := min(len(p), pipeBuffer-len(s.buf)); m > 0 {
			s.buf = append(s.buf, p[:m]...)
			n, p = n+m, p[m:]
			s.changed.Broadcast()
		}
		if len(p) == 0 {
			return n, nil
		}
		s.changed.Wait()
	}
}

// Close ends both directions.
func (e *PipeEnd) Close() error {
	e.out.close(func(s *stream) { s.ended = true })
	e.in.close(func(s *stream) { s.deaf = true })
	return nil
}

func (s *stream) close(mark func(*stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark(s)
	for _, l := range []*limit{&s.read, &s.write} {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	s.changed.Broadcast()
}

// AwaitClose waits until the other end is closed, and reads nothing meanwhile.
func (e *PipeEnd) AwaitClose() {
	s := e.in
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended && !s.deaf {
		s.changed.Wait()
	}
}

// SetDeadline sets both deadlines.
func (e *PipeEnd) SetDeadline(t time.Time) error {
	e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

// SetReadDeadline bounds Read.
func (e *PipeEnd) SetReadDeadline(t time.Time) error {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	e.in.set(&e.in.read, t)
	return nil
}

// SetWriteDeadline bounds Write.
func (e *PipeEnd) SetWriteDeadline(t time.Time) error {
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	e.out.set(&e.out.write, t)
	return nil
}

// LocalAddr returns an address of 127.0.0.1.
func (e *PipeEnd) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000} }

// RemoteAddr is another one.
func (e *PipeEnd) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 25} }
