package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"

	"github.com/emersion/go-smtp"

	"zmailer/internal/mail/address"
)

// Server serves connections of one port. Its command loop is go-smtp's, which is reached by
// this file and by Conn only.
type Server struct {
	Config
	library *smtp.Server

	ready   chan *Conn
	closing sync.Once
	done    chan struct{} // closed by Close
}

// New makes a Server. Run has to be called for connections to be served.
func New(c Config) *Server {
	s := &Server{Config: c, ready: make(chan *Conn), done: make(chan struct{})}
	l := smtp.NewServer(smtp.BackendFunc(s.newSession))
	l.LMTP = c.Role == RoleLMTP
	// TLS is below go-smtp, where go-smtp does not see it; Extensions decides about AUTH.
	l.AllowInsecureAuth = true
	l.EnableREQUIRETLS = true
	l.Domain = c.Hostname
	l.MaxMessageBytes = c.MaxSize
	l.MaxRecipients = c.MaxRecipients
	l.EnableSMTPUTF8 = true
	l.EnableDSN = true
	// The limit would also hold inside of messages; Conn limits command lines.
	l.MaxLineLength = 0
	// Conn keeps the time itself: these only make go-smtp mark each command.
	l.ReadTimeout = c.ReadTimeout
	l.WriteTimeout = c.WriteTimeout
	l.ErrorLog = libraryLog{c.Log}
	s.library = l
	return s
}

// Run returns after Close; connections that are being served go on.
func (s *Server) Run() { _ = s.library.Serve((*handover)(s)) }

// Close ends Run.
func (s *Server) Close() { s.closing.Do(func() { close(s.done) }) }

// enter gives a connection to go-smtp; false: the server is stopping.
func (s *Server) enter(c *Conn) bool {
	select {
	case s.ready <- c:
		return true
	case <-s.done:
		return false
	}
}

// handover is the listener of go-smtp's server.
type handover Server

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.ready:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error { return nil }

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: string(h.Role)} }

// libraryLog takes go-smtp's complaints.
type libraryLog struct{ log *slog.Logger }

// Printf implements smtp.Logger. go-smtp has caught the panics that it reports; the
// connection is over, the server goes on.
func (l libraryLog) Printf(format string, v ...any) {
	level := slog.LevelWarn
	if strings.HasPrefix(format, "panic ") {
		level = slog.LevelError
	}
	l.log.Log(context.Background(), level, "smtp-trouble", "text", fmt.Sprintf(format, v...))
}

// Println implements smtp.Logger.
func (l libraryLog) Println(v ...any) { l.log.Warn("smtp-trouble", "text", fmt.Sprint(v...)) }

// librarySession is a Handler as go-smtp calls it: commands become values of this package,
// after what go-smtp does not check.
type librarySession struct {
	conn    *Conn
	library *smtp.Conn
	handler Handler
	open    bool // a transaction
	utf8    bool // it has SMTPUTF8
	taken   int  // its recipients
	mail    Mail // the last commands, for Handler
	rcpt    Rcpt
	content Content
}

func (s *Server) newSession(l *smtp.Conn) (smtp.Session, error) {
	c, ok := l.Conn().(*Conn)
	if !ok {
		return nil, fmt.Errorf("connection of type %T was not accepted by this server", l.Conn())
	}
	n := &librarySession{conn: c, library: l, handler: s.Open(c.client)}
	n.hello()
	c.session = n
	return n, nil
}

// hello passes on the name in the greeting, unless XCLIENT gave one.
func (s *librarySession) hello() {
	name := s.conn.client.Helo
	if name == "" {
		name = s.library.Hostname()
	}
	s.handler.Hello(name)
}

// Mail implements smtp.Session.
func (s *librarySession) Mail(_ string, o *smtp.MailOptions) error {
	m, r := s.readMail(o)
	switch {
	case r != nil:
	case !s.conn.begin():
		r = NewReply(421, "4.3.2", s.conn.server.Hostname+" Service shutting down")
	default:
		if r = s.handler.Mail(m); r != nil {
			s.conn.finish()
		}
	}
	if r != nil {
		return s.conn.answer(r)
	}
	s.open, s.taken, s.utf8 = true, 0, o.UTF8
	return nil
}

func (s *librarySession) readMail(o *smtp.MailOptions) (*Mail, *Reply) {
	if s.open {
		return nil, NewReply(503, "5.5.1", "Error: nested MAIL command")
	}
	path, params := splitPath(string(s.conn.line))
	if name := duplicate(params); name != "" {
		return nil, NewReply(501, "5.5.4", "Error: duplicate parameter "+name)
	}
	from, err := address.Parse(path)
	if err != nil {
		return nil, NewReply(501, "5.1.7", "Bad sender address syntax: "+err.Error())
	}
	if !from.IsASCII() && !o.UTF8 {
		return nil, NewReply(553, "5.6.7", "Must declare SMTPUTF8 to send unicode address")
	}
	if o.RequireTLS && s.conn.client.TLS == nil {
		return nil, NewReply(530, "5.7.10", "REQUIRETLS needs TLS on this connection") // RFC 8689 section 2
	}
	s.mail = Mail{
		From: from, Params: strings.Fields(params), Protocol: s.conn.with,
		Size: o.Size, Body: string(o.Body), UTF8: o.UTF8, RequireTLS: o.RequireTLS,
		EnvID: param(params, "ENVID"), Ret: string(o.Return),
	}
	return &s.mail, nil
}

// Data implements smtp.Session: the content after DATA or BDAT. Its result is the
// reply, success included.
//
// go-smtp's reader is left alone: it would alter the content in places (a CR after
// a line's only dot is lost, CR CR LF is no line end) and goes byte by byte. The connection
// gives each command line away alone, so that all the content is still in it.
func (s *librarySession) Data(io.Reader) error {
	c := s.conn
	if c.err != nil {
		return c.answer(lost())
	}
	s.content = Content{limit: c.server.MaxSize}
	content := &s.content
	if c.bdat != nil {
		content.in = &chunks{conn: c, content: content}
	} else {
		content.in, content.dots = c, true
	}
	r := s.handler.Content(content)
	// Whatever has come of it, the content is over for go-smtp.
	c.bdat, c.ended = nil, endOfData
	switch {
	case content.broken == nil:
	case errors.Is(content.broken, ErrAbandoned):
		// Each chunk was answered; the command that ends the message will be.
		c.mute = 1
		if c.client.Role == RoleLMTP {
			c.mute = s.taken // one for each recipient (RFC 2033 section 4.2)
		}
		r = lost()
		return &smtp.SMTPError{Code: r.Code, Message: r.Text, EnhancedCode: smtp.EnhancedCode{4, 4, 2}}
	default:
		return c.answer(lost())
	}
	if r.Code/100 == 2 {
		c.errors.reset()
	}
	return c.answer(r)
}

// lost answers content that did not arrive whole. Mostly no one reads it.
func lost() *Reply { return NewReply(421, "4.4.2", "Error: connection lost or timeout during content") }

// Rcpt implements smtp.Session.
func (s *librarySession) Rcpt(_ string, o *smtp.RcptOptions) error {
	r := s.answerRcpt(o)
	if r == nil {
		s.taken++
		s.conn.server.answered(250)
		return nil
	}
	s.conn.server.answered(r.Code)
	return s.conn.answer(r)
}

func (s *Server) answered(code int) {
	if s.Answered != nil {
		s.Answered(code)
	}
}

func (s *librarySession) answerRcpt(o *smtp.RcptOptions) *Reply {
	if !s.open {
		return NewReply(503, "5.5.1", "Error: need MAIL command")
	}
	path, params := splitPath(string(s.conn.line))
	if name := duplicate(params); name != "" {
		return NewReply(501, "5.5.4", "Error: duplicate parameter "+name)
	}
	to, err := address.Parse(path)
	if err == nil && to.IsNull() {
		err = errors.New("the null address is no recipient")
	}
	if err != nil {
		return NewReply(501, "5.1.3", "Bad recipient address syntax: "+err.Error())
	}
	if !to.IsASCII() && !s.utf8 {
		return NewReply(553, "5.6.7", "Must declare SMTPUTF8 to send unicode address")
	}
	if s.taken > 0 && s.conn.triesAddresses() {
		return NewReply(452, "4.5.3", "Error: too many recipients refused, send the message to those accepted")
	}
	notify := make([]string, len(o.Notify))
	for i, n := range o.Notify {
		notify[i] = string(n)
	}
	s.rcpt = Rcpt{To: to, Params: strings.Fields(params), Notify: strings.Join(notify, ","), ORCPT: param(params, "ORCPT")}
	return s.handler.Rcpt(&s.rcpt)
}

// Reset implements smtp.Session: RSET, EHLO, and the end of each message.
func (s *librarySession) Reset() {
	s.open, s.taken = false, 0
	s.handler.Reset()
	s.hello()
	s.conn.finish()
}

// Logout implements smtp.Session.
func (s *librarySession) Logout() error {
	s.handler.Close()
	return nil
}

// answer makes go-smtp's form of a reply.
func (c *Conn) answer(r *Reply) error {
	if r.Last || r.Code == 421 {
		c.leave()
	}
	return &smtp.SMTPError{
		Code: r.Code, Message: OneLine(r.Text),
		EnhancedCode: smtp.EnhancedCode{int(r.Status.Class), int(r.Status.Subject), int(r.Status.Detail)},
	}
}

// restart ends go-smtp's session after the reply that was said, and has the connection
// begin a new one that knows nothing of the old, after STARTTLS (RFC 3207 section 4.2) and
// XCLIENT. With quiet, the client gets no second greeting.
func (c *Conn) restart(quiet bool) {
	c.finish()
	c.restarting = true
	if quiet {
		c.mute = 1
	}
	c.leave()
}

// begunAnew gives the connection to a new session of go-smtp.
func (c *Conn) begunAnew() bool {
	c.restarting = false
	c.err, c.asked, c.session, c.with, c.line = nil, false, nil, "", c.line[:0]
	// From here on another goroutine may have it.
	return c.server.enter(c)
}

// libraryReplies are replies of go-smtp, by how they begin, and what is sent in their place
// (RFC 3463 section 3.2).

var libraryReplies = [...][2]string{
	{"250 2.0.0 Roger, accepting mail from", "250 2.1.0 Ok\r\n"},
	{"250 2.0.0 I'll make sure", "250 2.1.5 Ok\r\n"},
	{"250 2.0.0 I have successfully done nothing", "250 2.0.0 Ok\r\n"},
	{"250 2.0.0 Session reset", "250 2.0.0 Ok\r\n"},
	{"252 2.5.0 Cannot VRFY", "252 2.5.0 Cannot VRFY user, but will accept message and attempt delivery\r\n"},
	{"354 Go ahead", "354 End data with <CR><LF>.<CR><LF>\r\n"},
	{"421 4.4.2 Idle timeout", "421 4.4.2 Error: timeout exceeded\r\n"},
	{"500 5.5.1 This is a LMTP", "500 5.5.1 Error: this is LMTP, send LHLO\r\n"},
	{"500 5.5.1 This is not a LMTP", "500 5.5.1 Error: this is SMTP, send EHLO\r\n"},
	{"500 5.5.2 Syntax errors", "500 5.5.2 Error: command not recognized\r\n"},
	{"501 5.5.2 Domain/address", "501 5.5.2 Syntax: EHLO hostname\r\n"},
	{"501 5.5.2 Was expecting MAIL", "501 5.5.2 Syntax: MAIL FROM:<address>\r\n"},
	{"501 5.5.2 Was expecting RCPT", "501 5.5.2 Syntax: RCPT TO:<address>\r\n"},
	// Out of order is 503 (RFC 5321 section 4.1.4), an unknown parameter 555 (section
	// 4.1.1.11).
	{"502 5.5.1 Please introduce", "503 5.5.1 Error: send HELO/EHLO first\r\n"},
	{"502 5.5.1 Missing MAIL FROM", "503 5.5.1 Error: need MAIL command\r\n"},
	{"502 5.5.1 Missing RCPT TO", "503 5.5.1 Error: need RCPT command\r\n"},
	{"500 5.5.4 Unknown MAIL", "555 5.5.4 Unsupported option in MAIL\r\n"},
	{"500 5.5.4 Unknown RCPT", "555 5.5.4 Unsupported option in RCPT\r\n"},
}

// reword appends a reply line of go-smtp.
func reword(out, p []byte) []byte {
	for _, r := range libraryReplies {
		if bytes.HasPrefix(p, []byte(r[0])) {
			return append(out, r[1]...)
		}
	}
	return append(out, p...)
}
