package session

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"time"
)

const (
	// maxCommandLine is the longest command with its line end: eight times what RFC 5321
	// section 4.5.3.1.4 asks for, which holds every extension's parameters. Bytes.
	maxCommandLine = 4 << 10
	// maxAuthLine is the same for AUTH and the client's responses: RFC 4954 section 4.
	maxAuthLine = 12288
	// maxSkipped is how much of a line that is too long is skipped before the connection
	// ends. Bytes.
	maxSkipped = 64 << 10
)

// Server is what connections of one port have in common.
type Server struct{ Config }

// New makes a Server.
func New(c Config) *Server { return &Server{Config: c} }

// Conn is the session of one client, from its connection to its end. Serve is its loop;
// Stop and Cut may be called by others at any time.
type Conn struct {
	wire
	server  *Server
	client  Client         // each Handler begins with a copy
	peer    netip.AddrPort // its address before XCLIENT, after PROXY
	onClose func()         // may be nil
	onLogin func()         // may be nil

	state     state
	handler   Handler  // nil before the greeting
	protocol  string   // SMTP, ESMTP or LMTP, by the greeting
	command   *command // that is being answered
	last      int      // bytes of the line that was read last, with its end
	taken     int      // recipients of the transaction
	refused   int      // recipients that were not taken
	errors    errorCount
	forwarded *Forwarded // by XFORWARD; nil: not given
	mail      Mail       // the last commands, for Handler
	rcpt      Rcpt
	content   Content
	chunks    chunks
}

// NewConn makes a connection of the server's port. onClose is called when it is closed; may
// be nil.
func (s *Server) NewConn(c net.Conn, onClose func()) *Conn {
	n := &Conn{server: s, client: Client{Role: s.Role}, onClose: onClose}
	n.conn, n.stream, n.config, n.useful = c, c, &s.Config, time.Now()
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		n.client.Addr = plain(tcp)
		n.peer = n.client.Addr
	}
	if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok {
		n.client.Local = plain(tcp)
	}
	return n
}

// plain returns an address; that of IPv4 as such also where a socket of IPv6 has accepted it.
func plain(a *net.TCPAddr) netip.AddrPort {
	p := a.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// Trust has the client of the server's own network, or an authenticated one, be as slow as it
// likes: each byte gives it the whole time limit anew. The connection's own goroutine calls it,
// or another one before Serve.
func (c *Conn) Trust() { c.trusted = true }

// OnLogin has f called when the client has authenticated.
func (c *Conn) OnLogin(f func()) { c.onLogin = f }

func (c *Conn) loggedIn() {
	if c.onLogin != nil {
		c.onLogin()
	}
}

// Client returns what is known about the client.
func (c *Conn) Client() Client { return c.client }

// SetAddr sets the client's address, as a proxy names it.
func (c *Conn) SetAddr(a netip.AddrPort) { c.client.Addr, c.peer = a, a }

// SetName sets the client's host name.
func (c *Conn) SetName(name string) { c.client.Name = name }

// Raw returns the connection for something that comes before the greeting, with a time
// limit.
func (c *Conn) Raw(d time.Duration) (net.Conn, error) {
	if !c.limit(d) {
		return nil, ErrStopping
	}
	return c.conn, nil
}

// Refuse sends a reply in place of the greeting, if it can be read before TLS, and closes
// (RFC 5321 section 3.1 allows 421 and 554 there).
func (c *Conn) Refuse(r *Reply) {
	if c.client.Role != RoleSubmissions || c.client.TLS != nil {
		c.reply(r)
	}
	c.Close()
}

// Close ends the connection. Only the connection's own goroutine calls it.
func (c *Conn) Close() {
	if h := c.handler; h != nil {
		c.handler = nil
		c.guard(h.Close)
	}
	c.close()
	if c.onClose != nil {
		c.onClose()
	}
}

// guard runs a part of the session. If it panics, this client's session ends and the server
// goes on.
func (c *Conn) guard(run func()) {
	defer func() {
		if r := recover(); r != nil {
			c.config.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic serving %v: %v\n%s", c.conn.RemoteAddr(), r, debug.Stack()))
			c.reply(replyInternal)
		}
	}()
	run()
}

// Serve greets the client and answers its commands until the connection ends, and closes
// it.
func (c *Conn) Serve() {
	defer c.Close()
	c.guard(c.serve)
}

func (c *Conn) serve() {
	c.greet()
	for c.err == nil && !c.tooManyErrors() {
		line, err := c.readLine(maxCommandLine)
		if err == nil {
			c.answer(line)
		} else if errors.Is(err, errLong) {
			c.command = &unknown
			c.reply(replyLong)
		}
	}
	switch {
	case errors.Is(c.err, errTimeout):
		c.reply(replyTimeout)
	case errors.Is(c.err, errEvicted):
		c.reply(c.evictedReply())
	}
}

// evictedReply returns the last reply of a connection that Evict has ended.
func (c *Conn) evictedReply() *Reply {
	if c.isStopping() {
		return replyStopping
	}
	return replyEvicted
}

// AwaitGreeting sends the first line of a greeting of two, and waits whether the client speaks
// before it gets the second; text is what it said. Clients have to wait (RFC 5321 section 4.3.1),
// and programs that send spam often do not.
func (c *Conn) AwaitGreeting(d time.Duration) (early bool, text string) {
	c.out = append(append(append(c.out, "220-"...), c.config.Hostname...), " ESMTP Service ready\r\n"...)
	if c.flush() != nil || !c.limit(d) {
		return false, ""
	}
	c.inLine = true
	space := c.space()
	n, err := c.stream.Read(space)
	if n > 0 {
		c.full = n == len(space)
		c.tail += n
		return true, OneLine(string(space[:min(n, 100)]))
	}
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		c.err = io.EOF
	}
	return false, ""
}

// Lives reports whether the connection has not ended.
func (c *Conn) Lives() bool { return c.err == nil }

// SetEarly notes that the client spoke before it was greeted.
func (c *Conn) SetEarly() { c.client.Early = true }

// greet sends the greeting.
func (c *Conn) greet() {
	if c.client.Role == RoleLMTP {
		c.reply(replyLMTPGreeting)
	} else {
		c.reply(replyGreeting)
	}
}

// restart forgets what is known of the client, after STARTTLS (RFC 3207 section 4.2) and
// XCLIENT.
func (c *Conn) restart() {
	if c.handler != nil {
		c.handler.Close()
		c.handler = nil
	}
	c.state, c.forwarded = connected, nil
	c.finish()
}

// reply appends a reply, and counts it if it is an error.
func (c *Conn) reply(r *Reply) {
	c.out = r.append(c.out, c.config.Hostname)
	c.errors.count(c.command, r.Code)
	if r.Code < 400 && (c.command == nil || !c.command.idle) {
		c.progress = true
	}
	if r.Last || r.Code == 421 {
		c.leave()
	}
	if len(c.out) > maxReplies {
		_ = c.flush() // its error sticks
	}
}

// errLong means that a line was too long. It is skipped.
var errLong = errors.New("line too long")

// readLine waits for a line of at most limit bytes, and returns it without its end. It is
// valid until the next read.
func (c *Conn) readLine(limit int) ([]byte, error) {
	// Between the chunks of a message a command is content: MinRate holds over all of them.
	between := c.chunks.conn != nil
	if !between || c.inLine {
		c.left = c.config.ReadTimeout
	}
	c.inLine = !between
	for skipped := 0; ; {
		b := c.peek()
		i := bytes.IndexByte(b, '\n')
		most := limit
		if len(b) > len("AUTH ") && bytes.EqualFold(b[:len("AUTH ")], []byte("AUTH ")) {
			most = maxAuthLine
		}
		switch {
		case i >= 0:
			c.skip(i + 1)
			c.last = i + 1
			c.dripped = 0
			if skipped > 0 || i >= most {
				return nil, errLong
			}
			return bytes.TrimSuffix(b[:i], []byte{'\r'}), nil
		case skipped > 0 || len(b) >= most:
			skipped += len(b)
			c.skip(len(b))
			if skipped > maxSkipped {
				c.leave()
				return nil, errLong
			}
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

// unreadLine has the line that was just read be read again.
func (c *Conn) unreadLine() { c.skip(-c.last) }

// extensions returns what EHLO and LHLO offer (RFC 5321 section 4.1.1.1).
func (c *Conn) extensions() []string {
	const most = 14
	list := append(make([]string, 0, most), "PIPELINING", "8BITMIME", "ENHANCEDSTATUSCODES", "CHUNKING", "SMTPUTF8", "DSN")
	if c.config.MaxSize > 0 {
		list = append(list, "SIZE "+strconv.FormatInt(c.config.MaxSize, 10))
	} else {
		list = append(list, "SIZE")
	}
	list = c.handler.Extensions(list)
	if c.offersTLS() {
		list = append(list, "STARTTLS")
	}
	if c.client.TLS != nil {
		list = append(list, "REQUIRETLS")
	}
	if c.mayXCLIENT() {
		list = append(list, xclientOffer)
	}
	if c.mayXFORWARD() {
		list = append(list, xforwardOffer)
	}
	return list
}
