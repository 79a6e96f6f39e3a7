// Package session speaks SMTP (RFC 5321) and LMTP (RFC 2033) with one client at a time. It
// knows the syntax of commands, their order, pipelining, TLS, BDAT and time limits, and
// nothing of mail: what the server does with a command is decided by a Handler. This file
// defines the interface between the two.
//
// Only CRLF ends a line, and only CRLF.CRLF ends a message after DATA. A bare CR and a bare
// LF stay in the content as they came (a bare LF cannot be distinguished from a line end in a message
// file and is sent on as CRLF), so neither can be used for SMTP smuggling.
//
// # States and commands
//
// A session is in one of four states, and a table (commands.go) holds in which of them each
// command is run:
//
//	command         connected   greeted        MAIL taken      RCPT taken
//	EHLO HELO LHLO  250 greeted 250 greeted    250 greeted     250 greeted
//	MAIL            503         250 MAIL taken 503             503
//	RCPT            503         503            250 RCPT taken  250 RCPT taken
//	DATA            503         503            503 or 554      354, content, greeted
//	BDAT            503         503            503 or 554      250; with LAST greeted
//	RSET            250         250            250 greeted     250 greeted
//	AUTH ETRN       503         2xx            503             503
//	STARTTLS        220, TLS, connected in each state
//	XCLIENT         220 connected 220 connected 503            503
//	NOOP HELP VRFY EXPN, unknown in each state, which they leave alone
//	QUIT            221, the end, in each state
//
// A command that is refused (4xx, 5xx) leaves the state as it is. DATA and BDAT answer 554 if
// every RCPT was refused, else 503. The chunk behind a BDAT that is refused is skipped.
// Between the chunks of a message only BDAT and NOOP are run; RSET, QUIT and a greeting end
// it; everything else gets 503. 421 and the end of the connection can follow each command.
//
// It owns nothing on disk. A message is answered with what Handler.Content returns, and
// with nothing else: a client that has been sent 250 for its content has a message that the
// Handler has stored.
//
// Diagnostics: ErrLost and ErrAbandoned mean that the client will not finish the message,
// ErrTooLarge and ErrBareLF that it is to be refused, ErrStopping that Stop came first. Any
// other error of Content is the writer's own.
package session

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
)

// Role is what a port is for.
type Role string

const (
	RoleMX          Role = "mx"          // mail of other hosts for us, port 25; by RELAYNETS also of programs on this machine
	RoleSubmission  Role = "submission"  // mail of our users, port 587: STARTTLS and AUTH (RFC 6409)
	RoleSubmissions Role = "submissions" // the same in TLS from the start, port 465 (RFC 8314 section 3.3)
	RoleLMTP        Role = "lmtp"        // mail of another mail system, mostly by a Unix socket (RFC 2033)
	RoleReinject    Role = "reinject"    // mail that comes back from the content filter
)

// Roles returns all of them.
func Roles() []Role { return []Role{RoleMX, RoleSubmission, RoleSubmissions, RoleLMTP, RoleReinject} }

// Client is what is known about the other side of a connection. PROXY, XCLIENT and STARTTLS
// change it; AUTH is the Handler's.
type Client struct {
	Addr  netip.AddrPort // the zero value: a Unix socket
	Local netip.AddrPort // the address of ours that it connected to
	Name  string         // its host name, verified forwards; "": unknown
	Role  Role
	Helo  string               // the name in its greeting
	TLS   *tls.ConnectionState // nil: no TLS
	User  string               // given by XCLIENT
	// Mechanism is how User authenticated: the word behind AUTH, or XCLIENT.
	Mechanism string
	Early     bool // it spoke before it was greeted
}

// String returns the client's address and port for the log.
func (c Client) String() string {
	switch {
	case !c.Addr.IsValid():
		return "local"
	case c.Addr.Addr().IsUnspecified():
		return "unknown"
	}
	return c.Addr.String()
}

// IP returns the client's address without port and zone; IPv4 as such.
func (c Client) IP() netip.Addr { return c.Addr.Addr().Unmap().WithZone("") }

// IsLoopback reports whether the client is on this machine.
func (c Client) IsLoopback() bool { return !c.Addr.IsValid() || c.Addr.Addr().Unmap().IsLoopback() }

// UnknownClient returns the address of a client that a proxy does not name. It is in no
// network, so that nothing is allowed to it.
func UnknownClient() netip.AddrPort { return netip.AddrPortFrom(netip.IPv6Unspecified(), 0) }

// Reply is an SMTP reply. After a 421, and after one with Last, the connection
// is closed.
type Reply struct {
	Code   int
	Status status.Code // RFC 3463; the zero value: the reply has none
	Text   string
	More   string // further lines, separated by LF
	Last   bool
	named  bool // the text has the server's name in front
}

// NewReply makes a reply; enhanced is "5.1.1", or "" for none.
func NewReply(code int, enhanced, text string) *Reply {
	c, ok := status.Parse(enhanced)
	if !ok && enhanced != "" {
		panic("session: no enhanced code: " + enhanced)
	}
	return &Reply{Code: code, Status: c, Text: text}
}

// AllText returns the text of all lines as one.
func (r *Reply) AllText() string {
	if r.More == "" {
		return r.Text
	}
	return r.Text + " " + strings.ReplaceAll(r.More, "\n", " ")
}

// Handler decides what the server does with the commands of one client. All methods are
// called by one goroutine, in the order of the commands; a nil reply takes the command. The
// loop has checked syntax and order: Rcpt and Content come after a Mail that was taken.
type Handler interface {
	// Hello is called at each greeting that was answered; it ends a transaction.
	Hello(name string)
	// Extensions appends what EHLO offers beyond what the loop does by itself: AUTH, ETRN,
	// LIMITS.
	Extensions(list []string) []string
	// Auth answers AUTH with the words behind it. ask sends a challenge with 334 and returns
	// the client's line. A nil reply means that the connection is gone.
	Auth(arg string, ask func(challenge string) (string, error)) *Reply
	// ETRN answers ETRN with the words behind it.
	ETRN(arg string) *Reply
	Mail(m *Mail) *Reply
	Rcpt(r *Rcpt) *Reply
	// Data is called at DATA and at the first BDAT of a message, before any content is read. A
	// reply refuses the command, and the transaction stays as it is.
	Data() *Reply
	// Unknown answers a command that the loop does not know; nil: as usual.
	Unknown(line string) *Reply
	// Content stores the message and answers it. It reads c to its end, also in order to
	// refuse the message: the client listens to nothing before that.
	Content(c *Content) *Reply
	// Reset ends the transaction: RSET, a new greeting, the end of a message.
	Reset()
	// Close ends the session, and with it a transaction.
	Close()
}

// Mail is a MAIL command.
type Mail struct {
	From     address.Mailbox // null: <>
	Params   []string        // as the client wrote them
	Protocol string          // by the greeting: SMTP, ESMTP or LMTP

	Size       int64 // as declared; 0: not
	Body       string
	UTF8       bool
	RequireTLS bool
	EnvID, Ret string // RFC 3461; EnvID as the client wrote it
	// Forwarded is where the message comes from, if the client has said so; nil: it has not.
	Forwarded *Forwarded
}

// Rcpt is a RCPT command.
type Rcpt struct {
	To            address.Mailbox
	Params        []string
	Notify, ORCPT string // RFC 3461; ORCPT as the client wrote it
}

// Errors of Content and of connections.
var (
	ErrLost      = errors.New("the client has gone or is silent")
	ErrAbandoned = errors.New("the client has given the message up") // between two chunks
	ErrTooLarge  = errors.New("message too large")
	ErrBareLF    = errors.New("bare LF") // RFC 5321 section 2.3.8
	ErrStopping  = errors.New("the server is stopping")
)

// Config is what connections of a port have in common.
type Config struct {
	Role          Role
	Hostname      string // for the greeting
	MaxSize       int64  // bytes of a message, a line end counted as two; 0: no limit
	MaxRecipients int    // of a message; 0: no limit

	ReadTimeout  time.Duration // for a command, and for content at MinRate
	WriteTimeout time.Duration // for one write
	MinRate      int           // bytes of content a second, on average; 0: a byte within each ReadTimeout is enough

	TLS         func() *tls.Config // for the next handshake; nil: no TLS
	TLSTimeout  time.Duration      // for a handshake
	XClientNets []netip.Prefix     // clients that may name another one by XCLIENT
	// XForwardNets are clients that may say by XFORWARD where messages come from.
	XForwardNets []netip.Prefix

	Log *slog.Logger
	// Open returns the Handler for a client that has greeted, again after STARTTLS and
	// XCLIENT. Its Hello is called next.
	Open func(Client, Peer) Handler
	// Answered gets the code of each reply to RCPT; may be nil.
	Answered func(code int)
}

// Peer is the connection that a Handler serves. Any goroutine may call its methods.
type Peer interface {
	// Evict ends the connection with 421; see Conn.
	Evict()
	RemoteAddr() net.Addr
}

// OneLine replaces control characters by question marks.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, text)
}

// Contains reports whether a client's address is in one of the networks; a Unix socket is
// in none.
func Contains(nets []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, n := range nets {
		if n.Contains(a) {
			return true
		}
	}
	return false
}
