// Package smtpclient is the client's side of one SMTP (RFC 5321) or LMTP (RFC 2033)
// connection: greeting, extensions, and any number of transactions, one after the other.
// MAIL, RCPT and DATA go in one write where the server allows it (RFC 2920).
//
// It owns a connection and its buffers and no file; nothing here survives a crash,
// nor needs to. Whether a message may have arrived is decided at one point, its last
// byte: Message.Sent is called before that is written, so that the caller can record
// the doubt first. Content leaves only after 354 and when every command before it has its
// answer, and nothing leaves behind the final dot until that is answered. A reply that may
// leave client and server out of step (421, no reply at all, one that was not asked for)
// ends the connection; docs/notes/answers.md has the reasons.
//
// Diagnostics: *ReplyError is a refusal by reply while the session was opened,
// *ConnError a connection that broke, timed out or lost the protocol, with the Phase
// in which it did. A transaction never errs as a whole: every recipient has a
// Result, and an unknown outcome is temporary. ErrStale asks for another connection.
package smtpclient

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// ErrStale is returned by Send for a connection that was closed, or broke, before the
// message's turn came: nothing of it was attempted, another connection may be tried at
// once.
var ErrStale = errors.New("the connection ended before the message's turn")

// Phase is a step of a session; each has a timeout of its own.
type Phase uint8

const (
	PhaseConnect  Phase = iota
	PhaseGreeting       // waiting for 220
	PhaseHello          // EHLO, LHLO, HELO
	PhaseTLS            // STARTTLS and the handshake
	PhaseAuth           // AUTH
	PhaseMail
	PhaseRcpt
	PhaseData // the DATA command
	PhaseBody // the message, up to the final dot
	PhaseDot  // waiting for the answer to it: in doubt
)

func (p Phase) String() string {
	switch p {
	case PhaseConnect:
		return "connecting"
	case PhaseGreeting:
		return "waiting for the greeting"
	case PhaseHello:
		return "waiting for the answer to EHLO"
	case PhaseTLS:
		return "starting TLS"
	case PhaseAuth:
		return "logging in"
	case PhaseMail:
		return "waiting for the answer to MAIL"
	case PhaseRcpt:
		return "waiting for the answer to RCPT"
	case PhaseData:
		return "waiting for the answer to DATA"
	case PhaseBody:
		return "sending the message"
	}
	return "waiting for the answer to the final dot"
}

// Timeouts are the longest waits per phase. Zero values take RFC 5321 §4.5.3.2's.
type Timeouts struct {
	Connect  time.Duration // 30 s; the system's own limit is minutes, and other hosts wait
	Greeting time.Duration // 5 min
	Hello    time.Duration // 5 min
	Mail     time.Duration // 5 min
	Rcpt     time.Duration // 5 min
	Data     time.Duration // 2 min, until 354
	Block    time.Duration // 3 min per write
	Dot      time.Duration // 10 min
	Quit     time.Duration // 2 s: nothing depends on the answer
}

// WithDefaults replaces zero values.
func (t Timeouts) WithDefaults() Timeouts {
	set := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	set(&t.Connect, 30*time.Second)
	set(&t.Greeting, 5*time.Minute)
	set(&t.Hello, 5*time.Minute)
	set(&t.Mail, 5*time.Minute)
	set(&t.Rcpt, 5*time.Minute)
	set(&t.Data, 2*time.Minute)
	set(&t.Block, 3*time.Minute)
	set(&t.Dot, 10*time.Minute)
	set(&t.Quit, 2*time.Second)
	return t
}

// of returns the wait for an answer in a phase.
func (t *Timeouts) of(p Phase) time.Duration {
	switch p {
	case PhaseGreeting:
		return t.Greeting
	case PhaseHello, PhaseTLS, PhaseAuth:
		return t.Hello
	case PhaseMail:
		return t.Mail
	case PhaseRcpt:
		return t.Rcpt
	case PhaseData:
		return t.Data
	case PhaseBody:
		return t.Block
	}
	return t.Dot
}

// Config is how a connection is used.
type Config struct {
	Hostname string // our name, for EHLO
	LMTP     bool
	Timeouts Timeouts
	// MinRate is how many bytes of content a server must accept per second, on average,
	// after the first Timeouts.Block; 0: no limit. MaxTime limits the time for all of the
	// content, and the time for all replies before it; 0: no limit.
	MinRate int64
	MaxTime time.Duration
	// Ignore are extensions, upper case, that count as not offered.
	Ignore []string
}

// ConnError is a connection that can be used no more.
type ConnError struct {
	Phase Phase
	Err   error
}

func (e *ConnError) Error() string { return e.Phase.String() + ": " + e.Err.Error() }

func (e *ConnError) Unwrap() error { return e.Err }

// Timeout reports whether the server did not answer in time.
func (e *ConnError) Timeout() bool {
	var t net.Error
	return errors.As(e.Err, &t) && t.Timeout()
}

// ReplyError is a session that the server refused to open.
type ReplyError struct {
	Phase Phase // PhaseGreeting, PhaseHello, PhaseTLS or PhaseAuth
	Reply Reply
}

func (e *ReplyError) Error() string { return fmt.Sprintf("%s: %s", e.Phase, e.Reply) }

// Conn is one connection, for one goroutine at a time; Usable may be called by others.
type Conn struct {
	nc    net.Conn
	tls   *tls.ConnectionState // nil: in the clear
	under *under               // what TLS reads from; nil: in the clear
	r     *bufio.Reader
	cfg   Config
	ext   Extensions
	out   dataWriter
	hello dialogue

	broken    atomic.Bool // closed, closing, or out of step: nothing more is begun
	served    int         // transactions that got an answer to MAIL
	needReset bool        // a transaction may be open on the server
	until     time.Time   // when the answers before the content must be there; zero: no bound
}

// New takes over an open connection. Nothing is sent before Hello.
func New(nc net.Conn, cfg Config) *Conn {
	cfg.Timeouts = cfg.Timeouts.WithDefaults()
	return &Conn{nc: nc, r: bufio.NewReaderSize(nc, 4096), cfg: cfg}
}

// Usable reports whether another transaction may follow on this connection.
func (c *Conn) Usable() bool { return !c.broken.Load() }

// Served counts the transactions that the server answered to.
func (c *Conn) Served() int { return c.served }

// LocalAddr and RemoteAddr are the connection's ends.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr returns the server's end.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Close closes the connection without QUIT.
func (c *Conn) Close() error {
	c.broken.Store(true)
	return c.nc.Close()
}

// Abort closes the connection at once, and what was written and has not left the machine does
// not leave it. It may be called while another goroutine uses the connection.
func (c *Conn) Abort() {
	c.broken.Store(true)
	nc := c.nc
	if c.under != nil {
		nc = c.under.Conn
	}
	if tcp, ok := nc.(interface{ SetLinger(seconds int) error }); ok {
		// An error means that it is closed.
		_ = tcp.SetLinger(0)
	}
	_ = nc.Close()
}

// Quit sends QUIT (RFC 5321 section 4.1.1.10) and closes. Whatever the server replies, its
// replies to messages hold.
func (c *Conn) Quit() error {
	if c.Usable() {
		// One deadline for the write and the reply.
		c.nc.SetDeadline(time.Now().Add(c.cfg.Timeouts.Quit))
		if _, err := c.nc.Write([]byte("QUIT\r\n")); err == nil {
			readReply(c.r)
		}
	}
	return c.Close()
}

// write sends commands of a phase. Every answer to those before them has been read: where
// there is more, the server is out of step with us.
func (c *Conn) write(p Phase, b []byte) error {
	if err := c.inStep(p); err != nil {
		return err
	}
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.cfg.Timeouts.Block)); err != nil {
		return c.fail(p, err)
	}
	if _, err := c.nc.Write(b); err != nil {
		return c.fail(p, err)
	}
	return nil
}

// inStep closes a connection on which the server has sent a reply that was not asked for.
func (c *Conn) inStep(p Phase) error {
	n := c.unread()
	if n == 0 {
		return nil
	}
	b, _ := c.r.Peek(min(n, 80))
	return c.fail(p, fmt.Errorf("%w: not asked for: %.80q", ErrNoReply, b))
}

// unread returns how many bytes have come and were not read. Under TLS a read gives one
// record: further ones that came with it are fetched here.
func (c *Conn) unread() int {
	if c.under == nil {
		return c.r.Buffered()
	}
	c.under.dry = true
	defer func() { c.under.dry = false }()
	for c.r.Buffered() < c.r.Size() {
		if _, err := c.r.Peek(c.r.Buffered() + 1); err != nil {
			break // nothing more is here; an end comes again with the next read
		}
	}
	return c.r.Buffered()
}

// under is a connection under TLS.
type under struct {
	net.Conn
	dry bool // reads fail: only what TLS has read already is wanted
}

func (u *under) Read(b []byte) (int, error) {
	if u.dry {
		return 0, errDry
	}
	return u.Conn.Read(b)
}

// errDry is no end of the connection for TLS, since it is a temporary net.Error.
var errDry error = dryError{}

type dryError struct{}

func (dryError) Error() string   { return "nothing more has been read" }
func (dryError) Timeout() bool   { return true }
func (dryError) Temporary() bool { return true }

// reply waits for the answer of a phase. 421 may come anywhere and means that the
// server is closing (RFC 5321 §3.8): it is returned as a reply, and the connection
// is not usable afterwards, whatever the server does.
func (c *Conn) reply(p Phase) (Reply, error) {
	// The deadline is for the whole reply, and matters only if that is not there yet.
	if b, _ := c.r.Peek(c.r.Buffered()); !wholeReply(b) {
		end := time.Now().Add(c.cfg.Timeouts.of(p))
		if PhaseMail <= p && p <= PhaseData && !c.until.IsZero() && c.until.Before(end) {
			end = c.until
		}
		if err := c.nc.SetReadDeadline(end); err != nil {
			return Reply{}, c.fail(p, err)
		}
	}
	r, err := readReply(c.r)
	if err != nil {
		return Reply{}, c.fail(p, err)
	}
	if r.Code == 421 {
		c.broken.Store(true)
	}
	return r, nil
}

// fail closes the connection.
func (c *Conn) fail(p Phase, err error) error {
	c.Close()
	return &ConnError{Phase: p, Err: err}
}
