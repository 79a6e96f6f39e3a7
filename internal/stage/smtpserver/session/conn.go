package session

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
	// bufferSize is how much is read ahead of go-smtp. Bytes.
	bufferSize = 32 << 10
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

// Conn is a client's connection as go-smtp sees it. It hands over one command line
// at a time, so that between commands go-smtp's own buffer is empty: then a session
// can read content from the connection in large pieces, replies to pipelined commands go
// out in one write (RFC 2920 section 3.2), command lines are limited and content is not,
// and the time limit runs from the last byte read rather than from the last command.
// BDAT is handed over as DATA; see chunks.
//
// It relies on go-smtp calling SetReadDeadline before each command line that it
// reads, and never between.
type Conn struct {
	net.Conn               // as it was accepted: for addresses, deadlines and Cut
	stream   io.ReadWriter // what is read and written: Conn, or TLS over it
	server   *Server
	client   Client          // each session begins with a copy
	peer     netip.AddrPort  // its address before XCLIENT, after PROXY
	session  *librarySession // nil before the first EHLO, HELO or LHLO
	onClose  func()          // may be nil

	buf        *[bufferSize]byte // nil until the first read
	head, tail int               // the unread part of buf
	out        []byte            // replies not yet sent
	err        error             // sticks: nothing can be read any more
	asked      bool              // go-smtp wants a command line and has none yet
	bdat       *bdat             // the BDAT that go-smtp has as DATA, until it is answered
	mute       int               // number of go-smtp's next reply lines that are not for the client
	hello      string            // EHLO, HELO or LHLO while go-smtp has not answered it; see greet
	restarting bool              // Close gives the connection to a new session; see restart
	ended      string            // rest of endOfData that go-smtp is to read
	line       []byte            // the last command line, without its end
	with       string            // SMTP, ESMTP or LMTP, by the greeting
	inLine     bool              // a command is being read, not content
	left       time.Duration     // how long the client may still be waited for
	armed      time.Time         // when that wait began
	errors     errorCount

	mu         sync.Mutex // for the fields below, which Stop uses
	busy       bool       // a transaction is open
	stopping   bool
	closed     bool
	readUntil  time.Time // deadlines that are set
	writeUntil time.Time
}

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// NewConn makes a connection of the server's port. onClose is called when it is closed; may
// be nil.
func (s *Server) NewConn(c net.Conn, onClose func()) *Conn {
	n := &Conn{Conn: c, stream: c, server: s, client: Client{Role: s.Role}, onClose: onClose}
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		n.client.Addr = tcp.AddrPort()
		n.peer = tcp.AddrPort()
	}
	if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok {
		n.client.Local = tcp.AddrPort()
	}
	return n
}

// Client returns what is known about the client.
func (w *Conn) Client() Client { return w.client }

// SetAddr sets the client's address, as a proxy names it.
func (w *Conn) SetAddr(a netip.AddrPort) { w.client.Addr, w.peer = a, a }

// SetName sets the client's host name.
func (w *Conn) SetName(name string) { w.client.Name = name }

// Raw gives the connection to somebody else before it is served, for a time.
func (w *Conn) Raw(d time.Duration) (net.Conn, error) {
	if !w.limit(d) {
		return nil, ErrStopping
	}
	return w.Conn, nil
}

// Serve has the connection served, from the greeting on, and returns at once.
func (w *Conn) Serve() {
	if !w.server.enter(w) {
		_ = w.Close() // the server is stopping
	}
}

// Refuse sends a reply in place of the greeting, if it can be read before TLS, and closes
// (RFC 5321 section 3.1 allows 421 and 554 there).
func (w *Conn) Refuse(r *Reply) {
	if w.client.Role != RoleSubmissions || w.client.TLS != nil {
		w.say(r)
	}
	_ = w.Close()
}

// SetReadDeadline marks that go-smtp is about to read a command line.
func (w *Conn) SetReadDeadline(time.Time) error {
	if w.asked {
		// The line asked for last never passed through here: go-smtp had more in its
		// buffer than one line.
		w.err = errDesync
	}
	w.asked = true
	return nil
}

// SetWriteDeadline does nothing: flush keeps the time.
func (w *Conn) SetWriteDeadline(time.Time) error { return nil }

// Read gives go-smtp a command line or the end of data.
func (w *Conn) Read(p []byte) (int, error) {
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
		if w.tooManyErrors() {
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
func (w *Conn) nextLine() ([]byte, error) {
	// Between the chunks of a message a command is content: MinRate holds over all of them.
	between := w.bdat != nil
	if !between || w.inLine {
		w.left = w.server.ReadTimeout
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
		if err := w.flush(); err == nil && w.tooManyErrors() {
			return nil, w.err
		}
		if err := w.fill(); err != nil {
			return nil, err
		}
	}
}

// handLine copies a line to p. Command lines fit into go-smtp's buffer, which is
// empty; if that should change, the line is handed over in parts.
func (w *Conn) handLine(p, line []byte) int {
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
		if n := copyPostmaster(p, w.line, w.server.Hostname); n > 0 {
			return n
		}
	}
	return copy(p, line)
}

// isCommand reports whether a line begins with a command, as go-smtp reads it.
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

// peek returns the bytes that were read and not used yet.
func (w *Conn) peek() []byte {
	if w.buf == nil {
		return nil
	}
	return w.buf[w.head:w.tail]
}

// skip uses n bytes of peek.
func (w *Conn) skip(n int) { w.head += n }

// more waits for content, as fill does.
func (w *Conn) more() error {
	if w.inLine {
		w.inLine, w.left = false, w.server.ReadTimeout
	}
	return w.fill()
}

// fill sends pending replies, then waits for bytes from the client. An error
// sticks; io.EOF is the end of the connection for whatever reason.
func (w *Conn) fill() error {
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
		w.buf = buffers.Get().(*[bufferSize]byte)
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
func (w *Conn) failed(err error) error {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		w.err = io.EOF
		return w.err
	}
	if w.isStopping() {
		return w.farewell()
	}
	// go-smtp replies 421 4.4.2 to this one.
	w.err = timeout
	return w.err
}

// farewell ends an idle connection while the server stops (RFC 5321 §3.8).
func (w *Conn) farewell() error {
	w.out = append(w.out, "421 4.3.2 "+w.server.Hostname+" Service shutting down\r\n"...)
	w.err = io.EOF
	// The client may have gone already; so do we.
	_ = w.flush()
	return w.err
}

// Write holds replies back until the client has to be waited for. go-smtp writes
// each reply line by itself.
func (w *Conn) Write(p []byte) (int, error) {
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
	w.countErrors(w.out[before:])
	if len(w.out) > maxReplies {
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (w *Conn) flush() error {
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

// leave ends the connection after the replies that were said.
func (w *Conn) leave() { w.err = io.EOF }

// Close sends pending replies and closes, or begins anew. Only the
// connection's own goroutine calls it.
func (w *Conn) Close() error {
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
		buffers.Put(w.buf)
		w.buf, w.head, w.tail = nil, 0, 0
	}
	if c, ok := w.stream.(*tls.Conn); ok {
		// The close_notify shows the client that nothing was cut off, or the client is gone.
		_ = c.Close()
	}
	err := w.Conn.Close()
	if w.onClose != nil {
		w.onClose()
	}
	return err
}
