package smtpserver

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

const (
	// wireBuffer holds what was read ahead of go-smtp. Bytes.
	wireBuffer = 32 << 10
	// maxCommandLine is the longest command with its line end: eight times what RFC
	// 5321 §4.5.3.1.4 asks for, which holds every extension's parameters. Bytes.
	maxCommandLine = 4 << 10
	// maxReplies bounds the replies held back while a client pipelines. Bytes.
	maxReplies = 16 << 10
)

// errDesync means that go-smtp does not read what we think it does. It cannot
// happen with the library this was written for; a message is never made from it.
var errDesync = errors.New("smtp: the command reader is out of step")

// endOfData is all that go-smtp is given of a message: the session has read the
// content from the wire itself.
const endOfData = ".\r\n"

// wire is a client's connection as go-smtp sees it. It hands over one command line
// at a time, so that between commands go-smtp's own buffer is empty: then a session
// can read content from the wire in large pieces, replies to pipelined commands go
// out in one write (RFC 2920 §3.2), command lines are limited and content is not,
// and the time limit runs from the last byte read rather than from the last command.
// BDAT is handed over as DATA; see chunks.
//
// It relies on go-smtp calling SetReadDeadline before each command line that it
// reads, and never between.
type wire struct {
	net.Conn               // as it was accepted: for addresses, deadlines and cut
	stream   io.ReadWriter // what is read and written: Conn, or TLS over it
	srv      *server
	entrance *entrance      // nil: a restart ends the connection
	client   client         // what is known of it before it greets; each session begins with a copy
	peer     netip.AddrPort // its address before XCLIENT, after PROXY
	session  *session       // nil before the first EHLO, HELO or LHLO

	buf        *[wireBuffer]byte // nil until the first read
	head, tail int               // what is unread in buf
	out        []byte            // replies not yet sent
	err        error             // sticks: nothing can be read any more
	asked      bool              // go-smtp wants a command line and has none yet
	bdat       *bdat             // the BDAT that go-smtp was told is DATA, until it is answered
	mute       int               // so many of go-smtp's reply lines are not for the client
	hello      string            // EHLO, HELO or LHLO while go-smtp has not answered it; see greet
	inLine     bool              // a command is being read, not content
	left       time.Duration     // how long what is being read may still be waited for
	armed      time.Time         // when it was waited for last
	faults     int               // refused commands since the last message, RCPT aside
	idle       int               // commands since then that do nothing
	nobodies   int               // recipients refused for good since then
	mostFaults int               // how many before the connection ends; 0: no limit
	stranger   bool              // it counts among server.strangers
	uncount    func()            // ends the count of this connection; may be nil
	restarting bool              // Close gives the connection to a new session; see restart
	ended      string            // rest of endOfData that go-smtp is to read
	line       []byte            // the last command line, without its end
	with       string            // SMTP, ESMTP or LMTP, as the client greeted

	mu         sync.Mutex // for what follows, which stop looks at
	busy       bool       // a transaction is open
	stopping   bool
	closed     bool
	readUntil  time.Time // deadlines that are set
	writeUntil time.Time
}

var wireBuffers = sync.Pool{New: func() any { return new([wireBuffer]byte) }}

func newWire(c net.Conn, s *server) *wire {
	w := &wire{Conn: c, stream: c, srv: s, client: client{role: RoleMX}}
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		w.client.addr = tcp.AddrPort()
		w.peer = w.client.addr
	}
	return w
}

// SetReadDeadline marks that go-smtp is about to read a command line.
func (w *wire) SetReadDeadline(time.Time) error {
	if w.asked {
		// The line asked for last never passed through here: go-smtp had more in its
		// buffer than one line.
		w.err = errDesync
	}
	w.asked = true
	return nil
}

// SetWriteDeadline does nothing: flush keeps the time.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// Read gives go-smtp a command line or the end of data.
func (w *wire) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case w.ended != "":
		n := copy(p, w.ended)
		w.ended = w.ended[n:]
		return n, nil
	case !w.asked && w.err == nil:
		w.err = errDesync
	}
	if w.err != nil {
		return 0, w.err
	}
	if w.bdat != nil {
		// go-smtp refused the command; its chunk comes nevertheless (RFC 3030 §2).
		if err := w.dropChunk(); err != nil {
			return 0, err
		}
	}
	for {
		if w.hasHadEnough() {
			return 0, w.err
		}
		line, err := w.nextLine()
		if err != nil {
			return 0, err
		}
		w.countIdle(line)
		if !w.answered(line) {
			return w.handLine(p, line), nil
		}
		if w.err != nil {
			return 0, w.err
		}
	}
}

// nextLine waits for a command line, its newline included, and leaves it in peek.
func (w *wire) nextLine() ([]byte, error) {
	// Between the chunks of a message a command is content: MinRate holds over all of them.
	between := w.bdat != nil
	if !between || w.inLine {
		w.left = w.srv.ReadTimeout
	}
	w.inLine = !between
	for {
		if i := bytes.IndexByte(w.peek(), '\n'); i >= 0 {
			if i+1 > maxCommandLine {
				return nil, smtp.ErrTooLongLine
			}
			return w.peek()[:i+1], nil
		}
		if len(w.peek()) >= maxCommandLine {
			return nil, smtp.ErrTooLongLine
		}
		if err := w.flush(); err == nil && w.hasHadEnough() {
			return nil, w.err
		}
		if err := w.fill(); err != nil {
			return nil, err
		}
	}
}

// handLine copies a line to p. Command lines fit into go-smtp's buffer, which is
// empty; if that should change, the line is handed over in parts.
func (w *wire) handLine(p, line []byte) int {
	if len(line) > len(p) {
		w.skip(len(p))
		return copy(p, line)
	}
	w.asked = false
	w.line = append(w.line[:0], bytes.TrimRight(line, "\r\n")...)
	w.skip(len(line))
	switch {
	case isCommand(w.line, "EHLO "):
		w.with, w.hello = "ESMTP", "EHLO"
		// To go-smtp it is the same but for a list, written line by line, that greet drops.
		return copy(p, "HE") + copy(p[len("HE"):], line[len("EH"):])
	case isCommand(w.line, "HELO "):
		w.with, w.hello = "SMTP", "HELO"
	case isCommand(w.line, "LHLO "):
		w.with, w.hello = "LMTP", "LHLO"
	case isCommand(w.line, "BDAT "):
		if b, ok := parseBDAT(w.line); ok {
			w.bdat = &b
			return copy(p, "DATA\r\n")
		}
	case isCommand(w.line, "MAIL "):
		if n := copyLargeSize(p, w.line); n > 0 {
			return n
		}
	case isCommand(w.line, "RCPT "):
		if n := copyPostmaster(p, w.line, w.srv.Hostname); n > 0 {
			return n
		}
	}
	return copy(p, line)
}

// isCommand tells that a line begins with a command, as go-smtp sees it.
func isCommand(line []byte, verb string) bool {
	return len(line) >= len(verb) && strings.EqualFold(string(line[:len(verb)]), verb)
}

// copyPostmaster gives go-smtp, which wants a domain in every address, one for the
// address that every server takes without (RFC 5321 §4.5.1). The session reads the
// line as it came.
func copyPostmaster(p, line []byte, host string) int {
	const bare = "<postmaster>"
	before, path, ok := bytes.Cut(line, []byte{'<'})
	if !ok || len(path) < len(bare)-1 || !strings.EqualFold(string(path[:len(bare)-1]), bare[1:]) {
		return 0
	}
	full := string(before) + "<postmaster@" + host + ">" + string(path[len(bare)-1:]) + "\r\n"
	if len(full) > len(p) {
		return 0
	}
	return copy(p, full)
}

// peek is what was read and not used yet.
func (w *wire) peek() []byte {
	if w.buf == nil {
		return nil
	}
	return w.buf[w.head:w.tail]
}

// skip uses n bytes of peek.
func (w *wire) skip(n int) { w.head += n }

// more waits for content, as fill does.
func (w *wire) more() error {
	if w.inLine {
		w.inLine, w.left = false, w.srv.ReadTimeout
	}
	return w.fill()
}

// fill sends what is to be sent, then waits for bytes from the client. An error
// sticks; io.EOF is the end of the connection for whatever reason.
func (w *wire) fill() error {
	if w.err != nil {
		return w.err
	}
	if err := w.flush(); err != nil {
		w.err = io.EOF
		return w.err
	}
	if !w.armRead() {
		return w.farewell()
	}
	if w.buf == nil {
		w.buf = wireBuffers.Get().(*[wireBuffer]byte)
	}
	if w.head > 0 {
		w.tail = copy(w.buf[:], w.buf[w.head:w.tail])
		w.head = 0
	}
	n, err := w.stream.Read(w.buf[w.tail:])
	if n > 0 {
		w.tail += n
		w.waited(n)
		return nil
	}
	return w.failed(err)
}

// failed makes the error that sticks from one of the connection.
func (w *wire) failed(err error) error {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		w.err = io.EOF
		return w.err
	}
	if w.toldToStop() {
		return w.farewell()
	}
	// go-smtp says 421 4.4.2 to this one.
	w.err = timeout
	return w.err
}

// farewell ends an idle connection while the server stops (RFC 5321 §3.8).
func (w *wire) farewell() error {
	w.out = append(w.out, "421 4.3.2 "+w.srv.Hostname+" is shutting down\r\n"...)
	w.err = io.EOF
	// The client may have gone already; so do we.
	_ = w.flush()
	return w.err
}

// Write holds replies back until the client has to be waited for. go-smtp writes
// each reply line by itself.
func (w *wire) Write(p []byte) (int, error) {
	switch {
	case w.mute > 0:
		w.mute--
		return len(p), nil
	case w.bdat != nil && bytes.HasPrefix(p, []byte("354 ")):
		return len(p), nil
	case w.hello != "":
		w.greet(p)
		return len(p), nil
	}
	before := len(w.out)
	w.out = reword(w.out, p)
	w.countFaults(w.out[before:])
	if len(w.out) > maxReplies {
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	w.armWrite()
	_, err := w.stream.Write(w.out)
	w.out = w.out[:0]
	if err != nil {
		// A client that has no answer is not to be waited for.
		w.err = io.EOF
	}
	return err
}

// Close sends what is left to be sent and closes, or begins anew. Only the
// connection's own goroutine calls it.
func (w *wire) Close() error {
	if w.restarting && w.begunAnew() {
		return nil
	}
	w.mu.Lock()
	closed := w.closed
	w.closed = true
	w.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	// The connection ends whether or not the last reply got through.
	_ = w.flush()
	w.err = net.ErrClosed
	if w.buf != nil {
		wireBuffers.Put(w.buf)
		w.buf, w.head, w.tail = nil, 0, 0
	}
	if c, ok := w.stream.(*tls.Conn); ok {
		// It tells the client that nothing was cut off, or the client is gone.
		_ = c.Close()
	}
	err := w.Conn.Close()
	if w.uncount != nil {
		w.uncount()
	}
	w.srv.gone(w)
	return err
}
