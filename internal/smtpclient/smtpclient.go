// Package smtpclient is the client's side of one SMTP (RFC 5321) or LMTP (RFC 2033)
// connection: greeting, extensions, and any number of transactions, each in as few
// writes and round trips as the server allows (RFC 2920).
//
// It owns a connection and its buffers and no file; nothing here survives a crash,
// nor needs to. Whether a message may have arrived is decided at one point, its last
// byte: Message.Sent is called before that is written, so that the caller can record
// the doubt first.
//
// Diagnostics: *ReplyError is a refusal in words while the session was opened,
// *ConnError a connection that broke, timed out or talked nonsense, with the Phase
// in which it did. A transaction never errs as a whole: every recipient has a
// Result, and what is unknown is temporary. ErrStale asks for another connection.
package smtpclient

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrStale is returned by Send for a connection that was closed, or broke, before the
// message's turn came: nothing of it was attempted, another connection may be tried at
// once.
var ErrStale = errors.New("the connection ended before the message's turn")

// ErrNoChunks is returned by Send if the server offers CHUNKING and does not know BDAT:
// the message was not taken, and is to be sent by DATA (Config.Window 1) on another
// connection.
var ErrNoChunks = errors.New("the server offers CHUNKING and does not know BDAT")

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
	PhaseData  // the DATA command
	PhaseBody  // the message, up to the final dot
	PhaseDot   // waiting for the answer to it: in doubt
	PhaseChunk // waiting for the answer to BDAT: in doubt
)

func (p Phase) String() string {
	switch p {
	case PhaseConnect:
		return "connecting"
	case PhaseGreeting:
		return "waiting for the greeting"
	case PhaseHello:
		return "saying hello"
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
	case PhaseChunk:
		return "waiting for the answer to BDAT"
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

// WithDefaults fills in what is zero.
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

// of is the wait for an answer in a phase.
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

// Config says how a connection is used.
type Config struct {
	Hostname string // our name, for EHLO
	LMTP     bool
	Timeouts Timeouts
	// Window is how many messages may be on the way on a connection at once, to a server
	// with PIPELINING; 0: 10. With 1 each waits for the answer to the one before it, and
	// none goes by BDAT.
	Window int
}

// usualWindow is how many messages are in doubt at most when a connection breaks.
const usualWindow = 10

// ConnError is a connection that can be used no more.
type ConnError struct {
	Phase Phase
	Err   error
}

func (e *ConnError) Error() string { return e.Phase.String() + ": " + e.Err.Error() }

func (e *ConnError) Unwrap() error { return e.Err }

// Timeout tells a server that did not answer in time.
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

// Conn is one connection. Once it is open Send may be called by many goroutines at once:
// their messages share it (see line). All else is for one at a time.
type Conn struct {
	nc    net.Conn
	tls   *tls.ConnectionState // nil: in the clear
	r     *bufio.Reader
	cfg   Config
	ext   Extensions
	out   dataWriter // of whoever's turn it is to write
	hello dialogue
	line
}

// New takes over an open connection. Nothing is said before Hello.
func New(nc net.Conn, cfg Config) *Conn {
	cfg.Timeouts = cfg.Timeouts.WithDefaults()
	if cfg.Window <= 0 {
		cfg.Window = usualWindow
	}
	c := &Conn{nc: nc, r: bufio.NewReaderSize(nc, 4096), cfg: cfg}
	c.room.L = &c.mu
	c.out.after = func() {
		c.mu.Lock()
		c.room.Broadcast()
		c.mu.Unlock()
	}
	return c
}

// Usable tells whether another transaction may follow on this connection.
func (c *Conn) Usable() bool { return !c.isBroken() }

// Served counts the transactions that the server answered to.
func (c *Conn) Served() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served
}

// LocalAddr and RemoteAddr are the connection's ends.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr is the server's end.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Close hangs up without a word.
func (c *Conn) Close() error {
	_ = c.stop(PhaseConnect, net.ErrClosed)
	c.mu.Lock()
	c.lost = true
	c.mu.Unlock()
	return c.nc.Close()
}

// Quit takes leave (RFC 5321 §4.1.1.10) and closes. Whatever the server makes of
// it, its answers about messages stand. No message may be on the way.
func (c *Conn) Quit() error {
	if !c.isBroken() {
		// One deadline for the write and the answer, which are not worth a wait.
		c.nc.SetDeadline(time.Now().Add(c.cfg.Timeouts.Quit))
		if _, err := c.nc.Write([]byte("QUIT\r\n")); err == nil {
			readReply(c.r)
		}
	}
	return c.Close()
}

// write sends commands of a phase before there are messages.
func (c *Conn) write(p Phase, b []byte) error {
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.cfg.Timeouts.Block)); err != nil {
		return c.fail(p, err)
	}
	if _, err := c.nc.Write(b); err != nil {
		return c.fail(p, err)
	}
	return nil
}

// reply waits for the answer of a phase. 421 may come anywhere and means that the
// server is closing (RFC 5321 §3.8): it is returned as a reply, and the connection
// is not usable afterwards.
func (c *Conn) reply(p Phase) (Reply, error) {
	// The deadline is for the whole reply, and matters only if that is not there yet.
	if b, _ := c.r.Peek(c.r.Buffered()); !wholeReply(b) {
		if err := c.nc.SetReadDeadline(time.Now().Add(c.cfg.Timeouts.of(p))); err != nil {
			return Reply{}, c.fail(p, err)
		}
	}
	r, err := readReply(c.r)
	if err != nil {
		return Reply{}, c.fail(p, err)
	}
	if r.Code == 421 {
		_ = c.stop(p, fmt.Errorf("the server closed the session: %s", r))
		c.mu.Lock()
		c.left = true
		c.mu.Unlock()
	}
	return r, nil
}

// fail closes the connection.
func (c *Conn) fail(p Phase, err error) error {
	e := c.stop(p, err)
	c.Close()
	return e
}
