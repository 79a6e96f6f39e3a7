package smtpserver

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/emersion/go-smtp"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/machine"
	"zmailer/internal/stage/smtpserver/policy/access"
)

// client is what is known of who is connected; PROXY, XCLIENT, STARTTLS and AUTH change it.
type client struct {
	addr netip.AddrPort // the zero value: a Unix socket
	name string         // its host name, if its address leads back to it; "": not known
	role Role
	helo string               // as the client greeted
	tls  *tls.ConnectionState // nil: in the clear
	user string               // who it has authenticated as; "": nobody
}

// String is the client's address and port for the log.
func (c client) String() string {
	switch {
	case !c.addr.IsValid():
		return "local"
	case c.addr.Addr().IsUnspecified():
		return "unknown"
	}
	return c.addr.String()
}

// session is one client's connection after its greeting.
type session struct {
	srv    *server
	wire   *wire
	conn   *smtp.Conn
	client client

	authFailures int // wrong passwords on this connection

	transaction *envelope.Envelope // nil: none is open
	named       int                // bytes of the lines of its recipients
	utf8        bool               // it has SMTPUTF8
	requireTLS  bool               // it has REQUIRETLS
	judging
	filtering
}

func (s *server) newSession(c *smtp.Conn) (smtp.Session, error) {
	w, ok := c.Conn().(*wire)
	if !ok {
		return nil, fmt.Errorf("connection of type %T was not accepted by this server", c.Conn())
	}
	n := &session{srv: s, wire: w, conn: c, client: w.client}
	n.greeted()
	w.session = n
	return n, nil
}

// Mail implements smtp.Session: MAIL FROM.
func (s *session) Mail(_ string, o *smtp.MailOptions) error {
	if s.transaction != nil {
		return reply(503, "5.5.1", "a transaction is open; RSET ends it")
	}
	path, params := splitPath(string(s.wire.line))
	if name := twice(params); name != "" {
		return reply(501, "5.5.4", name+" stands there twice")
	}
	from, err := address.Parse(path)
	if err != nil {
		return reply(501, "5.1.7", err.Error())
	}
	if !from.IsASCII() && !o.UTF8 {
		return reply(553, "5.6.7", "the address needs SMTPUTF8")
	}
	if o.RequireTLS && s.client.tls == nil {
		return reply(530, "5.7.10", "REQUIRETLS needs TLS on this connection") // RFC 8689 §2
	}
	if err := s.mayMail(o.Size); err != nil {
		return err
	}
	if v := s.judgeSender(from); v.Action != access.None {
		s.begin(from)
		return s.refuse(v, address.Mailbox{})
	}
	if refused := s.filterMail(from, params); refused != nil {
		return refused
	}
	if !s.wire.begin() {
		return reply(421, "4.3.2", s.srv.Hostname+" is shutting down")
	}
	e := &envelope.Envelope{
		External: true,
		RcvdFrom: s.rcvdFrom(),
		BodyType: string(o.Body),
		With:     s.with(o.UTF8),
		From:     from.String(),
		HasFrom:  true,
		// go-smtp has checked both; the xtext stays as the client wrote it.
		EnvID:     param(params, "ENVID"),
		NotaryRet: string(o.Return),
	}
	s.utf8, s.requireTLS = o.UTF8, o.RequireTLS
	if o.RequireTLS && e.NotaryRet == "" {
		e.NotaryRet = string(smtp.DSNReturnHeaders) // RFC 8689 §5: a report may go in the clear
	}
	s.begin(from)
	s.transaction, s.named = e, 0
	return nil
}

// Rcpt implements smtp.Session: RCPT TO.
func (s *session) Rcpt(_ string, o *smtp.RcptOptions) error {
	err := s.rcpt(o)
	s.srv.meters.recipient(s.client.role, err)
	return err
}

func (s *session) rcpt(o *smtp.RcptOptions) error {
	e := s.transaction
	if e == nil {
		return reply(503, "5.5.1", "MAIL first")
	}
	path, params := splitPath(string(s.wire.line))
	if name := twice(params); name != "" {
		return reply(501, "5.5.4", name+" stands there twice")
	}
	to, err := address.Parse(path)
	if err != nil {
		return reply(501, "5.1.3", err.Error())
	}
	if to.IsNull() {
		return reply(501, "5.1.3", "the null address is no recipient")
	}
	if !to.IsASCII() && !s.utf8 {
		return reply(553, "5.6.7", "the address needs SMTPUTF8")
	}
	if err := s.mayName(); err != nil {
		return err
	}
	if refused := s.judgeRecipient(to); refused != nil {
		return refused
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
	if s.requireTLS {
		dsn = append(dsn, requireTLS)
	}
	return s.name(envelope.Recipient{Address: to.String(), DSN: strings.Join(dsn, " ")})
}

// name takes a recipient into the envelope, unless a router could not read the envelope
// then for its size.
func (s *session) name(r envelope.Recipient) error {
	if s.named+r.Size() > envelope.MaxRecipients {
		return reply(452, "4.5.3", "Too many recipients")
	}
	s.named += r.Size()
	s.transaction.Recipients = append(s.transaction.Recipients, r)
	return nil
}

// Reset implements smtp.Session: RSET, EHLO, and the end of each message.
func (s *session) Reset() {
	s.transaction = nil
	s.greeted()
	s.judging = judging{}
	s.endFilters()
	s.wire.finish()
}

// Logout implements smtp.Session.
func (s *session) Logout() error {
	s.closeFilters()
	machine.Worked()
	return nil
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

// twice finds a parameter that stands there twice, "" if none does. go-smtp checks and
// keeps the last, param finds the first.
func twice(params string) string {
	if params == "" {
		return ""
	}
	seen := map[string]bool{}
	for _, f := range strings.Fields(params) {
		key, _, _ := strings.Cut(f, "=")
		if key = strings.ToUpper(key); seen[key] {
			return key
		}
		seen[key] = true
	}
	return ""
}

// literal is an address for the Received line: "[192.0.2.1]:25" or
// "[IPv6:2001:db8::1]:25" (RFC 5321 §4.1.3); "local" for a Unix socket, "unknown" for
// one that a proxy does not tell.
func literal(a netip.AddrPort) string {
	switch {
	case !a.IsValid():
		return "local"
	case a.Addr().IsUnspecified():
		return "unknown"
	}
	addr := a.Addr().Unmap().WithZone("")
	text := "[" + addr.String() + "]"
	if addr.Is6() {
		text = "[IPv6:" + addr.String() + "]"
	}
	if a.Port() != 0 {
		text += ":" + strconv.Itoa(int(a.Port()))
	}
	return text
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
