package smtpserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/emersion/go-smtp"

	"zmailer/internal/address"
	"zmailer/internal/envelope"
	"zmailer/internal/postoffice"
)

// session is one client's connection after its greeting.
type session struct {
	srv    *server
	wire   *wire
	conn   *smtp.Conn
	client netip.AddrPort
	// trusted clients may send to any domain.
	trusted bool

	transaction *envelope.Envelope // nil: none is open
}

func (s *server) newSession(c *smtp.Conn) (smtp.Session, error) {
	w, ok := c.Conn().(*wire)
	if !ok {
		return nil, fmt.Errorf("connection of type %T was not accepted by this server", c.Conn())
	}
	n := &session{srv: s, wire: w, conn: c}
	if tcp, ok := w.RemoteAddr().(*net.TCPAddr); ok {
		n.client = tcp.AddrPort()
	}
	n.trusted = s.relay.trusts(n.client.Addr())
	return n, nil
}

// Mail implements smtp.Session: MAIL FROM.
func (s *session) Mail(_ string, o *smtp.MailOptions) error {
	if s.transaction != nil {
		return reply(503, "5.5.1", "a transaction is open; RSET ends it")
	}
	path, params := splitPath(string(s.wire.line))
	from, err := address.Parse(path)
	if err != nil {
		return reply(501, "5.1.7", err.Error())
	}
	if !from.IsASCII() && !o.UTF8 {
		return reply(553, "5.6.7", "the address needs SMTPUTF8")
	}
	if !s.wire.begin() {
		return reply(421, "4.3.2", s.srv.Hostname+" is shutting down")
	}
	e := &envelope.Envelope{
		External: true,
		RcvdFrom: greetingName(s.conn.Hostname()) + " (" + literal(s.client) + ")",
		BodyType: string(o.Body),
		With:     s.wire.with,
		From:     from.String(),
		HasFrom:  true,
		// go-smtp has checked both; the xtext stays as the client wrote it.
		EnvID:     param(params, "ENVID"),
		NotaryRet: string(o.Return),
	}
	if o.UTF8 {
		e.With = "UTF8SMTP" // RFC 6531 §4.3
	}
	s.transaction = e
	return nil
}

// Rcpt implements smtp.Session: RCPT TO.
func (s *session) Rcpt(_ string, o *smtp.RcptOptions) error {
	e := s.transaction
	if e == nil {
		return reply(503, "5.5.1", "MAIL first")
	}
	path, params := splitPath(string(s.wire.line))
	to, err := address.Parse(path)
	if err != nil {
		return reply(501, "5.1.3", err.Error())
	}
	if to.IsNull() {
		return reply(501, "5.1.3", "the null address is no recipient")
	}
	if !to.IsASCII() && e.With != "UTF8SMTP" {
		return reply(553, "5.6.7", "the address needs SMTPUTF8")
	}
	if !s.trusted && !s.srv.relay.isLocal(to) {
		s.srv.Log.Info("refused", "from", e.From, "rcpt", to.String(), "client", s.client.String(),
			"status", "5.7.1", "reply", "relaying denied")
		return reply(550, "5.7.1", "relaying denied")
	}
	var dsn []string
	if len(o.Notify) > 0 {
		words := make([]string, len(o.Notify))
		for i, n := range o.Notify {
			words[i] = string(n)
		}
		dsn = append(dsn, "NOTIFY="+strings.Join(words, ","))
	}
	if orcpt := param(params, "ORCPT"); orcpt != "" {
		dsn = append(dsn, "ORCPT="+orcpt)
	}
	e.Recipients = append(e.Recipients, envelope.Recipient{Address: to.String(), DSN: strings.Join(dsn, " ")})
	return nil
}

// Reset implements smtp.Session: RSET, EHLO, and the end of each message.
func (s *session) Reset() {
	s.transaction = nil
	s.wire.finish()
}

// Logout implements smtp.Session.
func (s *session) Logout() error { return nil }

// Data implements smtp.Session: the content after DATA or BDAT. Its result is the
// reply, success included, so that the client is told the spool ID.
//
// go-smtp's reader r is left alone: it would alter the content in places (a CR after
// a line's only dot is lost, CR CR LF is no line end) and goes byte by byte. The wire
// gives each command line away alone, so that all the content is still in it.
func (s *session) Data(io.Reader) error {
	if s.wire.err != nil {
		return lostReply
	}
	c := &content{limit: s.srv.MaxSize}
	if s.wire.bdat != nil {
		c.in = &chunks{wire: s.wire, content: c}
	} else {
		c.in, c.dots = s.wire, true
	}
	a, err := s.store(c)
	// Whatever has come of it, the content is over for go-smtp.
	s.wire.bdat, s.wire.ended = nil, endOfData
	switch {
	case err == nil:
		return &smtp.SMTPError{Code: 250, EnhancedCode: smtp.EnhancedCode{2, 0, 0}, Message: "queued as " + a.ID.String()}
	case errors.Is(err, errAbandoned):
		// Each chunk was answered; what ends the message will be.
		s.wire.mute = true
	case errors.Is(err, errLost):
		s.wire.err = io.EOF
		return lostReply
	}
	return s.refusal(err)
}

// errLost means that the client went away or fell silent in the middle of a message.
var errLost = errors.New("the client is lost")

// store writes a message to public/ and moves it to router/.
func (s *session) store(c *content) (postoffice.Accepted, error) {
	// Nothing is made on disk for a client that goes away now.
	if len(c.in.peek()) == 0 {
		if err := c.in.more(); err != nil && err != errEnd {
			return postoffice.Accepted{}, lost(err)
		}
	}
	draft, err := s.newDraft()
	if draft != nil {
		defer s.abort(draft)
	}
	var out io.Writer = io.Discard
	if err == nil {
		out = draft
	}
	// Whatever is wrong with the disk, the content has to be read to its end: the
	// client listens to nothing before it.
	c.err = err
	end, err := c.copyTo(out)
	if err != nil {
		if !end {
			err = lost(err)
		}
		return postoffice.Accepted{}, err
	}
	accepting := s.srv.ledger.Accepting()
	a, err := draft.Commit()
	if err != nil {
		accepting.Abandon()
		return postoffice.Accepted{}, err
	}
	// Crash: the router's line stands for this one.
	accepting.In(a.ID, len(s.transaction.Recipients))
	s.srv.disk.end(s.srv.Log, "storage-recovered")
	s.srv.Log.Info("accepted", "id", a.ID.String(), "from", s.transaction.From, "size", a.Size,
		"rcpts", len(s.transaction.Recipients), "client", s.client.String())
	return a, nil
}

// lost makes errLost of an error of the connection.
func lost(err error) error {
	if errors.Is(err, errAbandoned) {
		return err
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// abort takes a draft away that was not committed.
func (s *session) abort(draft *postoffice.Draft) {
	// What cannot be removed now has no execute bit and is swept.
	if err := draft.Abort(); err != nil {
		s.srv.Log.Warn("leftover", "name", postoffice.Public+"/"+draft.Name(), "reason", err)
	}
}

// newDraft begins the message file with its envelope. With an error the draft may
// be there nevertheless.
func (s *session) newDraft() (*postoffice.Draft, error) {
	buf := envelopeBuffers.Get().(*[]byte)
	defer envelopeBuffers.Put(buf)
	lines, err := envelope.Append((*buf)[:0], s.transaction)
	if err != nil {
		return nil, err
	}
	*buf = lines
	draft, err := s.srv.po.NewDraft("smtp")
	if err != nil {
		return nil, err
	}
	draft.Into(s.srv.RouterDir)
	_, err = draft.Write(lines)
	return draft, err
}

// splitPath cuts a MAIL or RCPT command into its path, with brackets, and its
// parameters (RFC 5321 §4.1.2). go-smtp has accepted the line, so that only where
// the path ends is left to be found; its own reading of the path loses quotes.
func splitPath(line string) (path, params string) {
	_, rest, _ := strings.Cut(line, ":")
	rest = strings.TrimLeft(rest, " \t")
	quoted := false
	for i := 0; i < len(rest); i++ {
		switch b := rest[i]; {
		case b == '\\' && quoted:
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '>' && rest[0] == '<':
			return rest[:i+1], rest[i+1:]
		case (b == ' ' || b == '\t') && rest[0] != '<':
			return rest[:i], rest[i:]
		}
	}
	return rest, ""
}

// param finds the value of a parameter, "" if there is none.
func param(params, name string) string {
	for _, f := range strings.Fields(params) {
		key, value, _ := strings.Cut(f, "=")
		if strings.EqualFold(key, name) {
			return value
		}
	}
	return ""
}

// literal is an address for the Received line: "[192.0.2.1]:25" or
// "[IPv6:2001:db8::1]:25" (RFC 5321 §4.1.3).
func literal(a netip.AddrPort) string {
	addr := a.Addr().Unmap().WithZone("")
	if addr.Is6() {
		return fmt.Sprintf("[IPv6:%s]:%d", addr, a.Port())
	}
	return fmt.Sprintf("[%s]:%d", addr, a.Port())
}

// maxGreeting is how much of a client's name is kept: the longest domain.
const maxGreeting = 255

// greetingName is the client's name from EHLO without what would break a Received
// line: it goes into a header where only words may stand.
func greetingName(name string) string {
	b := []byte(name)
	if len(b) > maxGreeting {
		b = b[:maxGreeting]
	}
	for i, ch := range b {
		switch {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9':
		case strings.IndexByte(".-_:[]", ch) >= 0, ch >= 0x80:
		default:
			b[i] = '?'
		}
	}
	return strings.ToValidUTF8(string(b), "?")
}
