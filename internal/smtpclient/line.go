package smtpclient

import (
	"errors"
	"net"
	"sync"
	"time"
)

// bytesOnWay is how many bytes of messages may be on the way on one connection beside
// the first: what is in doubt when it breaks, and what the server may have to hold.
const bytesOnWay = 256 << 10

// line is the order of the transactions on a connection. Each writes when the one before
// it has written, and reads its answers when that one has read its own: replies come in
// the order of the commands (RFC 2920 §3.1). No transaction waits for one behind it but for
// its final dot to leave, and while anything is unanswered somebody reads, so that a server
// that has to get rid of its answers before it takes more is not waited for.
type line struct {
	mu    sync.Mutex
	room  sync.Cond // one has left, something was written, or the connection broke
	last  *place    // who came last
	count int       // in the line
	bytes int64     // of their messages
	pace  pace

	served    int        // transactions that got an answer to MAIL
	done      bool       // one has had all its answers
	needReset bool       // a transaction stands open on the server
	unsure    int        // chunked ones without their final answer: they may stand open
	broken    bool       // closed, closing, or out of step: nothing more is begun
	left      bool       // the server has said 421: it does and answers nothing more
	after     aftermath  // what it did then
	lost      bool       // closed by us, or out of step: what may come is no answer
	cause     *ConnError // why it broke
}

// place is a transaction's in the line.
type place struct {
	before, next *place
	wrote, read  chan struct{} // closed when its turn is over
}

// window is how many transactions may be in the line. mu is held.
func (c *Conn) window() int {
	if !c.done {
		return 1 // the first goes alone: what it costs is not known yet
	}
	return c.pace.window(c.Most())
}

// Most is how many messages the server's extensions let be on the way at once.
func (c *Conn) Most() int {
	switch {
	case !c.ext.Pipelining || c.cfg.LMTP:
		return 1
	case !c.ext.Chunking:
		// DATA has to be answered before content follows (RFC 2920 §3.1): the questions
		// of one go with the content of the one before it.
		return min(c.cfg.Window, 2)
	}
	return c.cfg.Window
}

// Single has each message wait for the answer to the one before it, as Config.Window 1
// does. It comes before the first message.
func (c *Conn) Single() { c.cfg.Window = 1 }

// Window is how many messages may be sent at once on this connection at present: 1
// before the first one is answered.
func (c *Conn) Window() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.window()
}

// enter takes a place in the line when there is room. false: the connection broke.
func (c *Conn) enter(t *transaction) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.broken && c.count > 0 && (c.count >= c.window() || c.bytes+t.size > bytesOnWay) {
		c.room.Wait()
	}
	if c.broken {
		return false
	}
	t.place = &place{before: c.last, wrote: make(chan struct{}), read: make(chan struct{})}
	if c.last != nil {
		c.last.next = t.place
	}
	c.last = t.place
	c.count++
	c.bytes += t.size
	return true
}

// awaitWriting waits for the turn to write and tells whether the connection still stands.
func (c *Conn) awaitWriting(t *transaction) bool {
	if b := t.place.before; b != nil {
		<-b.wrote
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.alone = c.count == 1
	return !c.broken
}

// passWriting ends the turn to write. What is in the buffer goes with what the next one
// writes, if there is one: it does so at once.
func (c *Conn) passWriting(t *transaction) error {
	c.mu.Lock()
	last := t.place.next == nil
	c.mu.Unlock()
	var err error
	if last {
		err = c.flush(t.phase())
	}
	t.passed = true
	close(t.place.wrote)
	return err
}

// awaitReading waits for the turn to read.
func (c *Conn) awaitReading(t *transaction) {
	if b := t.place.before; b != nil {
		<-b.read
		t.place.before = nil
	}
}

// leave gives the place in the line up, when all before it have read.
func (c *Conn) leave(t *transaction) {
	if !t.passed {
		if b := t.place.before; b != nil {
			<-b.wrote
		}
		_ = c.passWriting(t) // whoever wrote what is in the buffer finds the connection broken
	}
	c.awaitReading(t)
	c.mu.Lock()
	if c.last == t.place {
		c.last = nil
	}
	c.count--
	c.bytes -= t.size
	over := c.broken && c.count == 0
	if c.count == 0 {
		c.out.rest()
	}
	c.room.Broadcast()
	c.mu.Unlock()
	close(t.place.read)
	if over {
		c.nc.Close()
	}
}

// awaitGone waits until the final dot has left, which goes with what the next one writes.
// Nothing is unanswered meanwhile but what is written with it. false: it did not leave.
func (c *Conn) awaitGone(t *transaction) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.out.flown.Load() < t.ends && !c.broken {
		c.room.Wait()
	}
	return t.sent()
}

// flush writes what is in the buffer. A failure ends the writing alone: answers that are
// on their way to those who have written are still read.
func (c *Conn) flush(p Phase) error {
	if c.out.n == 0 {
		return nil
	}
	if err := c.out.flush(); err != nil {
		return c.stop(p, err)
	}
	return nil
}

// stop ends the beginning of anything. The last one in the line closes the connection.
func (c *Conn) stop(p Phase, err error) error {
	e := &ConnError{Phase: p, Err: err}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
	if c.cause == nil {
		c.cause = e
	}
	c.room.Broadcast()
	return e
}

// isBroken tells whether nothing more may be begun.
func (c *Conn) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// aftermath is what a server does after 421.
type aftermath uint8

const (
	notSeen aftermath = iota
	closed
	goesOn
)

// leaveWait is how long a server may take from 421 to the end of the connection.
const leaveWait = 10 * time.Second

// hasLeft tells whether the server has said 421.
func (c *Conn) hasLeft() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// keepsWord tells whether a server that said 421 closes the connection. If it goes on, what
// was written behind may have been taken. Whoever asks has the turn to read.
func (c *Conn) keepsWord() bool {
	c.mu.Lock()
	after := c.after
	c.mu.Unlock()
	if after == notSeen {
		after = closed
		if err := c.nc.SetReadDeadline(time.Now().Add(leaveWait)); err == nil {
			var late net.Error
			if _, err = c.r.Peek(1); err == nil || errors.Is(err, net.ErrClosed) || errors.As(err, &late) && late.Timeout() {
				after = goesOn
			}
		}
		c.mu.Lock()
		c.after = after
		c.mu.Unlock()
	}
	return after == closed
}

// why is what broke the connection, for a transaction in a phase.
func (c *Conn) why(p Phase) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &ConnError{Phase: p, Err: c.cause.Err}
}

// standing notes whether a transaction stands open on the server.
func (c *Conn) standing(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.needReset = open
}

// finished notes that a transaction has had all its answers: since is when its last byte
// went out.
func (c *Conn) finished(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	c.pace.answered(since, time.Now())
	c.room.Broadcast()
}
