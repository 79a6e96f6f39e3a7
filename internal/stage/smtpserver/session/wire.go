package session

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// smallBuffer holds what a client sends while it gives commands. Each connection has
	// one, so that one that is idle needs little memory. Bytes.
	smallBuffer = 1 << 10
	// largeBuffer is for content, for AUTH and for clients that pipeline. Bytes.
	largeBuffer = 32 << 10
	// maxReplies bounds the replies held back while a client pipelines. Bytes.
	maxReplies = 16 << 10
	// A deadline costs more than a look at the clock, so it is set anew only when a
	// sixteenth of it has gone by: a client has between fifteen sixteenths of the time
	// and all of it.
	deadlineSlack = 16
	// idlePressed is how long a client without a transaction may go on without progress
	// while the server is short of connections, busyPressed one with a transaction.
	idlePressed = 10 * time.Second
	busyPressed = 30 * time.Second
	// A read of fewer than smallPiece bytes is one of a client that drips. See hold.
	smallPiece  = 16
	dripAfter   = 2 * time.Second
	longestHold = 5 * time.Second
	heldBytes   = smallBuffer / 2
	// evictTime is how long the last reply to an evicted client may take.
	evictTime = time.Second
)

// wire is the transport of one connection: bytes that were read and not used, replies that
// were not sent yet, and the time that the client has. Replies go out when the client has to
// be waited for, so that those to pipelined commands share one write (RFC 2920 section 3.2).
type wire struct {
	conn   net.Conn      // as it was accepted: for addresses, deadlines and Cut
	stream io.ReadWriter // what is read and written: conn, or TLS over it
	config *Config

	small      [smallBuffer]byte
	large      *[largeBuffer]byte // nil: small is used
	head, tail int                // the unread part of the buffer in use
	out        []byte             // replies not yet sent
	err        error              // sticks: the connection ends with it
	full       bool               // the last read filled the buffer: more is probably there
	inLine     bool               // a command is being read, not content
	left       time.Duration      // how long the client may still be waited for
	armed      time.Time          // when that wait began
	progress   bool               // since then the client has done what counts as progress
	trusted    bool               // only silence ends the connection
	dripped    time.Duration      // how long the last bytes came in small pieces; see hold
	held       bool               // the system tells of small pieces only at the end of a wait

	mu         sync.Mutex // for the fields below, which Stop, Press and Evict use
	useful     time.Time  // when the client last made progress
	pressed    bool       // the time limits are short
	evicted    bool
	busy       bool // a transaction is open
	stopping   bool
	readUntil  time.Time // deadlines that are set
	writeUntil time.Time
}

var (
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

	errTimeout = errors.New("the client is silent")
	errEvicted = errors.New("another client gets the place")
)

// peek returns the bytes that were read and not used yet.
func (w *wire) peek() []byte { return w.buffer()[w.head:w.tail] }

func (w *wire) buffer() []byte {
	if w.large != nil {
		return w.large[:]
	}
	return w.small[:]
}

// skip uses n bytes of peek.
func (w *wire) skip(n int) { w.head += n }

// more waits for content, as fill does.
func (w *wire) more() error {
	if w.inLine {
		w.inLine, w.left = false, w.config.ReadTimeout
	}
	return w.fill()
}

// fill sends pending replies, then waits for bytes from the client. An error sticks; io.EOF
// is the end of the connection for whatever reason.
func (w *wire) fill() error {
	if w.err != nil {
		return w.err
	}
	if w.flush() != nil {
		return w.err
	}
	for {
		hold := w.hold()
		if !w.armRead(hold) {
			return w.farewell()
		}
		space := w.space()
		n, err := w.stream.Read(space)
		if n > 0 {
			w.full = n == len(space)
			w.tail += n
			w.waited(n)
			return nil
		}
		var timeout net.Error
		switch {
		case !errors.As(err, &timeout) || !timeout.Timeout():
			w.err = io.EOF
		case !w.isWanted():
			return w.farewell()
		case hold > 0 && hold < w.left:
			// What has come meanwhile is read now.
			w.left -= hold
			w.dripped += hold
			continue
		default:
			w.err = errTimeout
		}
		return w.err
	}
}

// hold returns how long the next wait may go on although a few bytes have come; 0: it ends with
// the first. A client that sends a line or a message byte by byte would wake the server for each.
// When it has taken more than dripAfter for that it is waited for half as long again, at most
// longestHold, or until heldBytes are there.
func (w *wire) hold() time.Duration {
	w.setHeld(w.dripped > dripAfter && !w.trusted)
	if !w.held {
		return 0
	}
	return min(w.dripped/2, longestHold)
}

// setHeld begins or ends holds.
func (w *wire) setHeld(on bool) {
	tcp, ok := w.conn.(*net.TCPConn)
	if on == w.held || !ok {
		return
	}
	bytes := 1
	if on {
		bytes = heldBytes
	}
	// A read shows what is wrong with a connection that refuses it.
	if setLowWater(tcp, bytes) == nil {
		w.held = on
	}
}

// setLowWater sets how many bytes have to be there before a reader is woken. The end of the
// connection wakes it, too.
func setLowWater(c *net.TCPConn, bytes int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
	})
	return errors.Join(err, failed)
}

// space returns where to read to. It uses the large buffer while the small one does not hold
// what the client has sent, and for content.
func (w *wire) space() []byte {
	unread := w.tail - w.head
	switch {
	case w.large == nil && (w.full || unread == smallBuffer || !w.inLine):
		b := largeBuffers.Get().(*[largeBuffer]byte)
		copy(b[:], w.small[w.head:w.tail])
		w.large = b
	case w.large != nil && unread == 0 && w.inLine && !w.full:
		w.release()
	default:
		copy(w.buffer(), w.peek())
	}
	w.head, w.tail = 0, unread
	return w.buffer()[unread:]
}

// release gives the large buffer back.
func (w *wire) release() {
	if w.large != nil {
		largeBuffers.Put(w.large)
		w.large = nil
	}
	w.head, w.tail = 0, 0
}

// flush sends the replies. A client that did not get one is not waited for.
func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	w.armWrite()
	_, err := w.stream.Write(w.out)
	w.out = w.out[:0]
	if err != nil {
		w.err = io.EOF
	}
	return err
}

// farewell ends an idle connection while the server stops (RFC 5321 section 3.8), and one that
// was evicted.
func (w *wire) farewell() error {
	if w.isEvicted() {
		w.err = errEvicted
		return w.err
	}
	w.out = replyStopping.append(w.out, w.config.Hostname)
	w.err = io.EOF
	return w.err
}

// leave ends the connection after the replies that were given.
func (w *wire) leave() {
	if w.err == nil {
		w.err = io.EOF
	}
}

// close sends pending replies and closes.
func (w *wire) close() {
	// The connection ends whether or not the last reply gets through.
	_ = w.flush()
	w.err = net.ErrClosed
	w.release()
	if c, ok := w.stream.(*tls.Conn); ok {
		// The close_notify shows the client that nothing was cut off, or the client is gone.
		_ = c.Close()
	}
	_ = w.conn.Close() // nothing is done about its error
}

// armRead sets the time limit of the next read. A command has to be there as a whole
// in the time that the client had for its first byte. Content has the same time, and
// wins some with each byte; see waited. Only the time counts in which the client is
// waited for, not that which filters or the disk take. It reports false if the connection
// was evicted, or if the server is stopping and it has no transaction to finish. A wait of
// hold ends before that limit.
func (w *wire) armRead(hold time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evicted || w.stopping && !w.busy {
		return false
	}
	w.armed = time.Now()
	if w.progress {
		w.useful, w.progress = w.armed, false
	}
	if w.pressed {
		w.left = min(w.left, w.shortLimit())
	}
	until := w.armed.Add(w.left)
	if hold > 0 && hold < w.left {
		until = w.armed.Add(hold)
	}
	if d := until.Sub(w.readUntil); d > w.config.ReadTimeout/deadlineSlack || (w.pressed || hold > 0) && d != 0 || w.readUntil.Before(w.armed) {
		w.readUntil = until
		// It fails on a closed connection; so does the read that follows.
		_ = w.conn.SetReadDeadline(until)
	}
	return true
}

// shortLimit returns how long the client may be waited for while the server is short of
// connections. Content goes on if it is as fast as MinRate; commands that change nothing do
// not lengthen the limit. w.mu is held.
func (w *wire) shortLimit() time.Duration {
	switch {
	case !w.inLine:
		return busyPressed
	case w.busy:
		return max(0, w.useful.Add(busyPressed).Sub(w.armed))
	}
	return max(0, w.useful.Add(idlePressed).Sub(w.armed))
}

// waited subtracts the time that n bytes were waited for from the time left. Content adds
// the time in which a client as slow as MinRate sends it, up to the whole limit. So a client
// that drips bytes has no more than the limit, and one that is slow now and then goes on. A
// trusted client has the whole limit from each byte to the next.
func (w *wire) waited(n int) {
	waited := time.Since(w.armed)
	w.left = max(0, w.left-waited)
	if n < smallPiece {
		w.dripped += waited
	} else {
		w.dripped = 0
	}
	switch rate := w.config.MinRate; {
	case w.trusted:
		w.left = w.config.ReadTimeout
	case w.inLine:
	case rate <= 0:
		w.left = w.config.ReadTimeout
	default:
		w.left = min(w.left+time.Duration(n)*time.Second/time.Duration(rate), w.config.ReadTimeout)
	}
}

// armWrite sets the time limit of the next write.
func (w *wire) armWrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evicted {
		return // Evict has set it
	}
	limit := w.config.WriteTimeout
	if until := time.Now().Add(limit); until.Sub(w.writeUntil) > limit/deadlineSlack {
		w.writeUntil = until
		// As in armRead.
		_ = w.conn.SetWriteDeadline(until)
	}
}

// limit gives all reads and writes up to the next armRead and armWrite one time limit. It
// reports false if the server is stopping or the connection was evicted.
func (w *wire) limit(d time.Duration) bool {
	w.dripped = 0
	w.setHeld(false)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping || w.evicted {
		return false
	}
	if w.pressed {
		d = min(d, idlePressed)
	}
	// As in armRead.
	_ = w.conn.SetDeadline(time.Now().Add(d))
	w.readUntil, w.writeUntil = time.Time{}, time.Time{}
	return true
}

// begin opens a transaction: until it is finished a stop leaves the connection alone. It
// reports false if the stop came first.
func (w *wire) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = !w.stopping
	return w.busy
}

// finish closes the transaction.
func (w *wire) finish() {
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// isWanted reports whether the connection may wait for more.
func (w *wire) isWanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.evicted && (!w.stopping || w.busy)
}

func (w *wire) isStopping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopping
}

func (w *wire) isEvicted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.evicted
}

// Press makes the time limits short, or long again. A wait that has begun is shortened, too.
func (w *wire) Press(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pressed = on
	if !on || w.stopping || w.evicted {
		return
	}
	until := w.useful.Add(idlePressed)
	if w.busy {
		until = time.Now().Add(busyPressed)
	}
	// Without a deadline of armRead a handshake has one of limit, or no goroutine reads.
	if w.readUntil.IsZero() || until.Before(w.readUntil) {
		w.readUntil = until
		// As in Stop.
		_ = w.conn.SetReadDeadline(until)
	}
}

// Idle returns when the client last made progress, and whether it has a transaction.
// Commands that change nothing and those that are refused are no progress.
func (w *wire) Idle() (since time.Time, busy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.useful, w.busy
}

// Evict ends the connection with 421: at once if it is waiting for the client, else before it
// would wait the next time.
func (w *wire) Evict() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.evicted = true
	// As in Stop. A client that reads nothing does not keep its place.
	_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	_ = w.conn.SetWriteDeadline(time.Now().Add(evictTime))
}

// Stop ends the connection when it has no transaction: at once if it is waiting for
// a command, else before it would wait for the next.
func (w *wire) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	w.readUntil = time.Time{}
	if !w.busy {
		// It wakes the reader, which sees why. It fails only where no goroutine reads.
		_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// Cut closes the connection at once. Its own goroutine does the rest.
func (w *wire) Cut() { _ = w.conn.Close() }

// RemoteAddr returns the address of the peer, which a proxy may have.
func (w *wire) RemoteAddr() net.Addr { return w.conn.RemoteAddr() }
