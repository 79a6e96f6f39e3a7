package submit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/run/lease"
)

// Limits of an SMTP session on standard input.
const (
	longestLine = 12288 // of a command, bytes; RFC 4954 section 4.3 asks for so much
	mostErrors  = 20    // commands that were refused
)

// Serve is sendmail -bs: an SMTP session (RFC 5321) on c.In and c.Out. Each message is
// submitted as Run submits one, under the same user and to the same directories. Nothing
// is authenticated and no recipient is looked up: every user who can run submit may send.
// c.Recipients and the flags about one message do not count; those of -F, -P and the
// postoffice do.
func Serve(ctx context.Context, c Config, hostname string) error {
	if err := (&submission{Config: Config{Priority: c.Priority, RouterDirs: c.RouterDirs}}).prepare(); err != nil {
		return failure(err)
	}
	in := bufio.NewReaderSize(newInterruptible(ctx, c.In), longestLine)
	s := &session{c: c, ctx: ctx, hostname: hostname, in: in, out: bufio.NewWriter(c.Out)}
	return failure(s.run())
}

// session is one SMTP session.
type session struct {
	c        Config
	ctx      context.Context
	hostname string
	in       *bufio.Reader
	out      *bufio.Writer
	errors   int
	mail     *submission // since MAIL
	quit     bool
}

var errLineTooLong = errors.New("line too long")

func (s *session) run() error {
	s.reply("220 %s ESMTP", s.hostname)
	for !s.quit {
		// Replies to commands that came together leave together (RFC 2920).
		if s.in.Buffered() == 0 {
			if err := s.out.Flush(); err != nil {
				return &Error{Code: config.ExitIOErr, Err: fmt.Errorf("standard output: %w", err)}
			}
		}
		line, err := s.line()
		switch {
		case errors.Is(err, errLineTooLong):
			s.refuse("500 5.5.2 Line too long")
		case errors.Is(err, io.EOF):
			return s.flush()
		case err != nil:
			s.reply("421 4.3.2 %s Service not available, closing transmission channel", s.hostname)
			return errors.Join(err, s.out.Flush())
		default:
			s.command(line)
		}
		if s.errors > mostErrors {
			s.reply("421 4.7.0 %s Too many errors", s.hostname)
			return s.flush()
		}
	}
	return s.flush()
}

// flush writes the last replies. A client that has gone without reading them has its
// messages accepted all the same.
func (s *session) flush() error {
	_ = s.out.Flush()
	return nil
}

// line reads a command without its end.
func (s *session) line() (string, error) {
	line, err := s.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = s.in.ReadSlice('\n')
		}
		if err == nil {
			err = errLineTooLong
		}
		return "", err
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return strings.TrimRight(string(line), " \t\r\n"), err
}

func (s *session) reply(format string, args ...any) {
	// An error of the output shows at the next Flush.
	_, _ = fmt.Fprintf(s.out, format+"\r\n", args...)
}

func (s *session) refuse(format string, args ...any) {
	s.errors++
	s.reply(format, args...)
}

func (s *session) command(line string) {
	verb, args, _ := strings.Cut(line, " ")
	args = strings.TrimSpace(args)
	switch strings.ToUpper(verb) {
	case "EHLO":
		s.hello(args, true)
	case "HELO":
		s.hello(args, false)
	case "MAIL":
		s.mailFrom(args)
	case "RCPT":
		s.rcptTo(args)
	case "DATA":
		s.data(args)
	case "RSET":
		s.mail = nil
		s.reply("250 2.0.0 Ok")
	case "NOOP":
		s.reply("250 2.0.0 Ok")
	case "HELP":
		s.reply("214 2.0.0 EHLO HELO MAIL RCPT DATA RSET NOOP VRFY QUIT; a session of submit -bs")
	case "VRFY":
		if args == "" {
			s.refuse("501 5.5.4 Syntax: VRFY address")
			return
		}
		s.reply("252 2.0.0 Cannot verify the user; the message will be accepted for delivery")
	case "QUIT":
		s.quit = true
		s.reply("221 2.0.0 Bye")
	case "AUTH", "STARTTLS", "BDAT", "EXPN", "ETRN":
		s.refuse("502 5.5.1 Command not implemented")
	default:
		s.refuse("500 5.5.2 Command not recognized")
	}
}

func (s *session) hello(args string, extended bool) {
	if args == "" {
		s.refuse("501 5.5.4 Syntax: EHLO hostname")
		return
	}
	s.mail = nil
	if !extended {
		s.reply("250 %s", s.hostname)
		return
	}
	s.reply("250-%s", s.hostname)
	for _, keyword := range []string{"PIPELINING", "SIZE", "ENHANCEDSTATUSCODES", "8BITMIME", "DSN"} {
		s.reply("250-%s", keyword)
	}
	s.reply("250 SMTPUTF8")
}

func (s *session) mailFrom(args string) {
	rest, ok := cutWordFold(args, "FROM:")
	switch {
	case !ok:
		s.refuse("501 5.5.4 Syntax: MAIL FROM:<address>")
		return
	case s.mail != nil:
		s.refuse("503 5.5.1 Error: nested MAIL command")
		return
	}
	m, params, err := cutPath(rest)
	if err != nil {
		s.refuse("501 5.1.7 Bad sender address syntax: %s", printable(err.Error()))
		return
	}
	mail := &submission{Config: s.c, seen: map[string]bool{}}
	mail.dir, _ = mail.directory() // Serve has checked it
	mail.env.FullName = human.Blank(strings.ToValidUTF8(s.c.FullName, "?"))
	mail.env.From, mail.env.HasFrom = m.String(), true
	for _, p := range params {
		if reply := mailParameter(&mail.env, p); reply != "" {
			s.refuse("%s", reply)
			return
		}
	}
	s.mail = mail
	s.reply("250 2.1.0 Ok")
}

// mailParameter reads a parameter of MAIL. The reply is empty if it can be taken.
func mailParameter(e *envelope.Envelope, p string) (reply string) {
	name, value, _ := strings.Cut(p, "=")
	var err error
	switch strings.ToUpper(name) {
	case "BODY":
		e.BodyType, err = oneWord("BODY", value, "7BIT", "8BITMIME")
	case "RET":
		e.NotaryRet, err = oneWord("RET", value, "FULL", "HDRS")
	case "ENVID":
		var id string
		if id, err = address.DecodeXText(value); err == nil {
			e.EnvID, err = envelopeID(id)
		}
	case "SIZE", "AUTH", "SMTPUTF8":
		// The size shows when it is stored; RFC 4954 section 5 has AUTH ignored.
	default:
		return "555 5.5.4 Unsupported parameter: " + printable(name)
	}
	if err != nil {
		return "501 5.5.4 Bad parameter: " + printable(err.Error())
	}
	return ""
}

func (s *session) rcptTo(args string) {
	rest, ok := cutWordFold(args, "TO:")
	switch {
	case !ok:
		s.refuse("501 5.5.4 Syntax: RCPT TO:<address>")
		return
	case s.mail == nil:
		s.refuse("503 5.5.1 Error: need MAIL command")
		return
	}
	m, params, err := cutPath(rest)
	if err == nil && m.IsNull() {
		err = errors.New("the null address is not a recipient")
	}
	if err != nil {
		s.refuse("501 5.1.3 Bad recipient address syntax: %s", printable(err.Error()))
		return
	}
	var dsn []string
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		switch strings.ToUpper(name) {
		case "NOTIFY":
			text, err := notify(value)
			if err != nil || text == "" {
				s.refuse("501 5.5.4 Bad NOTIFY parameter")
				return
			}
			dsn = append(dsn, text)
		case "ORCPT":
			if kind, addr, ok := strings.Cut(value, ";"); !ok || kind == "" || addr == "" || printable(value) != value {
				s.refuse("501 5.5.4 Bad ORCPT parameter")
				return
			}
			dsn = append(dsn, "ORCPT="+value)
		default:
			s.refuse("555 5.5.4 Unsupported parameter: %s", printable(name))
			return
		}
	}
	if a := m.String(); !s.mail.seen[a] {
		s.mail.seen[a] = true
		s.mail.env.Recipients = append(s.mail.env.Recipients, envelope.Recipient{Address: a, DSN: strings.Join(dsn, " ")})
	}
	s.reply("250 2.1.5 Ok")
}

func (s *session) data(args string) {
	switch {
	case args != "":
		s.refuse("501 5.5.4 Syntax: DATA")
		return
	case s.mail == nil:
		s.refuse("503 5.5.1 Error: need MAIL command")
		return
	case len(s.mail.env.Recipients) == 0:
		s.refuse("503 5.5.1 Error: need RCPT command")
		return
	}
	s.reply("354 End data with <CR><LF>.<CR><LF>")
	if err := s.out.Flush(); err != nil {
		s.quit = true
		return
	}
	mail := s.mail
	s.mail = nil
	// It also ends at a dot between bare line feeds, which programs on this machine write.
	body := textproto.NewReader(s.in).DotReader()
	id, err := mail.accept(body)
	if err == nil {
		s.reply("250 2.0.0 Ok: queued as %s", id)
		return
	}
	// The next command comes after the final dot.
	if _, rest := io.Copy(io.Discard, body); rest != nil {
		s.quit = true
	}
	if known := (*Error)(nil); errors.As(err, &known) && known.Code == exitDataErr {
		s.reply("554 5.6.0 Message not accepted: %s", printable(known.Error()))
		return
	}
	if errors.Is(err, lease.ErrNoLease) {
		s.reply("421 4.3.2 %s Service not available, closing transmission channel", s.hostname)
		s.quit = true
		return
	}
	if errors.Is(err, errNotAccepting) {
		s.reply("451 4.3.2 Message not accepted: %s", printable(err.Error()))
		return
	}
	s.reply("451 4.3.0 Temporary storage failure: %s", printable(err.Error()))
}

// accept stores the message of a session.
func (s *submission) accept(body io.Reader) (id string, err error) {
	if s.text, err = readText(body); err != nil {
		return "", err
	}
	po, err := s.open()
	if err != nil {
		return "", err
	}
	draft, err := s.write(po)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, draft.Abort()) }()
	a, err := s.handIn(draft)
	if err != nil {
		return "", err
	}
	return a.ID.String(), nil
}

// cutPath reads the path at the beginning of MAIL's and RCPT's argument; brackets may be
// missing. The words after it are parameters.
func cutPath(s string) (m address.Mailbox, params []string, err error) {
	s = strings.TrimLeft(s, " \t")
	end := pathEnd(s)
	if s == "" || end < 0 {
		return m, nil, errors.New("no address")
	}
	m, err = address.Parse(s[:end])
	return m, strings.Fields(s[end:]), err
}

// pathEnd returns where a path ends: after the > outside of quotes, or at the first blank; -1
// if a bracket or a quote has no end.
func pathEnd(s string) int {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case quoted:
		case s[0] == '<' && s[i] == '>':
			return i + 1
		case s[0] != '<' && isBlank(s[i]):
			return i
		}
	}
	if quoted || s != "" && s[0] == '<' {
		return -1
	}
	return len(s)
}

// cutWordFold cuts a word in any case from the beginning.
func cutWordFold(s, word string) (rest string, ok bool) {
	if len(s) < len(word) || !strings.EqualFold(s[:len(word)], word) {
		return "", false
	}
	return s[len(word):], true
}

// printable keeps what others wrote on one line of a reply.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 400)]
}
