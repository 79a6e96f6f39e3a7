package session

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// state is how far a session is; the package comment has the transitions.
type state uint8

const (
	connected state = iota // the client has not greeted
	greeted
	inMail // MAIL was taken
	inRcpt // and a RCPT
)

// Sets of states in which a command is run.
const (
	inAny         = 1<<connected | 1<<greeted | inTransaction
	inTransaction = 1<<inMail | 1<<inRcpt
	afterGreeting = 1<<greeted | inTransaction
)

// command is a row of the table of commands.
type command struct {
	verb       string
	states     uint8 // in which it is run; elsewhere Conn.outOfOrder answers
	noArgument bool  // RFC 5321 section 4.1.1: one that has an argument gets 501
	idle       bool  // it changes nothing; see errorCount
	run        func(c *Conn, arg string)
}

// commands are all that the loop knows.
var commands = makeCommands([]command{
	{verb: "EHLO", states: inAny, idle: true, run: func(c *Conn, arg string) { c.hello(arg, "ESMTP") }},
	{verb: "HELO", states: inAny, idle: true, run: func(c *Conn, arg string) { c.hello(arg, "SMTP") }},
	{verb: "LHLO", states: inAny, idle: true, run: func(c *Conn, arg string) { c.hello(arg, "LMTP") }},
	{verb: "MAIL", states: 1 << greeted, run: (*Conn).mailFrom},
	{verb: "RCPT", states: inTransaction, run: (*Conn).rcptTo},
	{verb: "DATA", states: 1 << inRcpt, noArgument: true, run: (*Conn).data},
	{verb: "BDAT", states: inAny, run: (*Conn).bdat},
	{verb: "RSET", states: inAny, noArgument: true, idle: true, run: (*Conn).rset},
	{verb: "NOOP", states: inAny, idle: true, run: func(c *Conn, _ string) { c.reply(replyOK) }},
	{verb: "VRFY", states: inAny, idle: true, run: (*Conn).vrfy},
	{verb: "EXPN", states: inAny, idle: true, run: func(c *Conn, _ string) { c.reply(replyNotImplemented) }},
	{verb: "HELP", states: inAny, idle: true, run: (*Conn).help},
	{verb: "QUIT", states: inAny, noArgument: true, run: func(c *Conn, _ string) { c.reply(replyBye) }},
	{verb: "STARTTLS", states: inAny, run: (*Conn).startTLS},
	{verb: "AUTH", states: 1 << greeted, run: (*Conn).auth},
	{verb: "ETRN", states: 1 << greeted, run: func(c *Conn, arg string) { c.reply(c.handler.ETRN(arg)) }},
	{verb: "XCLIENT", states: 1<<connected | 1<<greeted, run: (*Conn).xclient},
	{verb: "XFORWARD", states: 1<<connected | 1<<greeted, run: (*Conn).xforward},
})

// unknown is every other command; its argument is the whole line.
var unknown = command{states: inAny, run: (*Conn).unknown}

func makeCommands(list []command) map[string]*command {
	m := make(map[string]*command, len(list))
	for i := range list {
		m[list[i].verb] = &list[i]
	}
	return m
}

// find looks a verb up, in any case.
func find(verb []byte) *command {
	var upper [len("STARTTLS")]byte
	if len(verb) > len(upper) {
		return &unknown
	}
	for i, b := range verb {
		if 'a' <= b && b <= 'z' {
			b -= 'a' - 'A'
		}
		upper[i] = b
	}
	if c := commands[string(upper[:len(verb)])]; c != nil {
		return c
	}
	return &unknown
}

// parseCommand splits a line into its command and the argument, without the blanks around
// it.
func parseCommand(line []byte) (c *command, arg string) {
	end := bytes.IndexAny(line, " \t")
	if end < 0 {
		end = len(line)
	}
	return find(line[:end]), string(bytes.Trim(line[end:], " \t"))
}

// answer answers a command line.
func (c *Conn) answer(line []byte) {
	var arg string
	c.command, arg = parseCommand(line)
	c.errors.begin(c.command)
	if c.command == &unknown {
		arg = string(line)
	}
	switch {
	case c.command != &unknown && bytes.ContainsFunc(line, isControl):
		c.reply(replyCharacters)
	case c.command.noArgument && arg != "":
		c.reply(NewReply(501, "5.5.4", "Syntax: "+c.command.verb))
	case c.command.states&(1<<c.state) == 0:
		c.reply(c.outOfOrder())
	default:
		c.command.run(c, arg)
	}
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// outOfOrder returns the reply to a command in a state in which it is not run (RFC 5321
// section 4.1.4).
func (c *Conn) outOfOrder() *Reply {
	switch verb := c.command.verb; {
	case c.state == connected:
		return replyHelloFirst
	case verb == "MAIL":
		return replyNested
	case verb == "AUTH", verb == "ETRN", verb == "XCLIENT", verb == "XFORWARD":
		return replyInTransaction
	case c.state == greeted:
		return replyNeedMail
	case c.refused > 0:
		return replyNoRecipients // RFC 5321 section 3.3
	}
	return replyNeedRcpt
}

// hello answers EHLO, HELO and LHLO; it ends a transaction (RFC 5321 section 4.1.4).
func (c *Conn) hello(arg, protocol string) {
	name, _, _ := strings.Cut(arg, " ")
	switch lmtp := c.client.Role == RoleLMTP; {
	case lmtp && protocol != "LMTP":
		c.reply(replyIsLMTP)
		return
	case !lmtp && protocol == "LMTP":
		c.reply(replyIsSMTP)
		return
	case len(name) == 0:
		c.reply(replyHelloSyntax)
		return
	}
	if c.handler == nil {
		c.handler, c.forwarded = c.server.Open(c.client, c), nil
	} else {
		c.reset()
	}
	c.state, c.protocol = greeted, protocol
	if c.client.Helo != "" { // given by XCLIENT
		c.handler.Hello(c.client.Helo)
	} else {
		c.handler.Hello(name)
	}
	text := c.config.Hostname + " greets " + SafeName(name)
	if protocol == "SMTP" {
		c.reply(&Reply{Code: 250, Text: text})
		return
	}
	for _, next := range c.extensions() {
		c.out = append(append(append(c.out, "250-"...), OneLine(text)...), "\r\n"...)
		text = next
	}
	c.reply(&Reply{Code: 250, Text: text})
}

// mailFrom answers MAIL.
func (c *Conn) mailFrom(arg string) {
	r := c.mail.read(arg, c)
	switch {
	case r != nil:
	case !c.begin():
		r = replyStopping
	default:
		c.mail.Forwarded = c.forwarded
		if r = c.handler.Mail(&c.mail); r != nil {
			c.finish()
		}
	}
	if r != nil {
		c.reply(r)
		return
	}
	c.state, c.taken, c.refused = inMail, 0, 0
	c.reply(replyMailOK)
}

// rcptTo answers RCPT.
func (c *Conn) rcptTo(arg string) {
	r := c.rcpt.read(arg, c)
	switch {
	case r != nil:
	case c.taken > 0 && c.errors.triesAddresses():
		r = replyTooManyRefused
	default:
		r = c.handler.Rcpt(&c.rcpt)
	}
	if r != nil {
		c.refused++
	} else {
		c.taken++
		c.state, r = inRcpt, replyRcptOK
	}
	if c.config.Answered != nil {
		c.config.Answered(r.Code)
	}
	c.reply(r)
}

// data answers DATA.
func (c *Conn) data(string) {
	if r := c.handler.Data(); r != nil {
		c.reply(r)
		return
	}
	c.reply(replyData)
	c.content = Content{limit: c.config.MaxSize, in: &c.wire, dots: true}
	c.receive()
}

// unknown answers a command that is none of the table's.
func (c *Conn) unknown(line string) {
	r := replyUnknown
	if c.handler != nil {
		r = cmp.Or(c.handler.Unknown(line), r)
	}
	c.reply(r)
}

// rset answers RSET.
func (c *Conn) rset(string) {
	if c.handler != nil {
		c.reset()
	}
	c.forwarded = nil
	c.reply(replyOK)
}

// vrfy answers VRFY, which may not be used to find addresses (RFC 5321 section 7.3).
func (c *Conn) vrfy(arg string) {
	if arg == "" {
		c.reply(replyVRFYSyntax)
		return
	}
	c.reply(replyVRFY)
}

// help answers HELP (RFC 5321 section 4.1.1.8).
func (c *Conn) help(string) {
	hello := "EHLO HELO STARTTLS AUTH"
	if c.client.Role == RoleLMTP {
		hello = "LHLO"
	}
	c.reply(NewReply(214, "2.0.0", "Commands: "+hello+" MAIL RCPT DATA BDAT RSET NOOP VRFY ETRN HELP QUIT"))
}

// auth answers AUTH (RFC 4954).
func (c *Conn) auth(arg string) {
	var failed error
	r := c.handler.Auth(arg, func(challenge string) (string, error) {
		c.reply(&Reply{Code: 334, Text: challenge})
		line, err := c.readLine(maxAuthLine)
		if failed = err; err != nil {
			return "", fmt.Errorf("%w: %w", ErrLost, err)
		}
		return string(line), nil
	})
	switch {
	case errors.Is(failed, errLong):
		c.reply(replyAuthLong)
	case r != nil:
		c.reply(r)
		if r.Code == 235 {
			c.loggedIn()
		}
		if r.Last && r.Code != 421 {
			c.out = replyErrors.append(c.out, c.config.Hostname)
		}
	}
}

// bdat answers BDAT. One that is out of order has a chunk behind it nevertheless (RFC 3030
// section 2).
func (c *Conn) bdat(arg string) {
	b, ok := parseBDAT(arg)
	if !ok {
		c.reply(replyBDATSyntax)
		return
	}
	c.chunks = chunks{conn: c, content: &c.content, chunk: b}
	r := c.outOfOrder()
	if c.state == inRcpt {
		r = c.handler.Data()
	}
	if r == nil {
		c.content = Content{limit: c.config.MaxSize, in: &c.chunks}
		c.receive()
	} else {
		c.reply(r)
		for c.chunks.skip(len(c.chunks.peek())); c.chunks.chunk.left > 0 && c.more() == nil; {
			c.chunks.skip(len(c.chunks.peek()))
		}
	}
	c.chunks = chunks{}
}

// receive has the Handler store the content, and answers it.
func (c *Conn) receive() {
	r := c.handler.Content(&c.content)
	switch {
	case errors.Is(c.content.broken, ErrAbandoned):
		// Each chunk was answered; the command that ends the message will be.
		c.reset()
		return
	case c.content.broken != nil:
		r = replyLost // mostly no one reads it
		if errors.Is(c.err, errEvicted) {
			r = c.evictedReply()
		}
		c.err = nil
	}
	c.reply(r)
	if c.client.Role == RoleLMTP {
		for i := 1; i < c.taken && c.err == nil; i++ {
			c.reply(r) // one for each recipient: RFC 2033 section 4.2
		}
	}
	if r.Code/100 == 2 {
		c.errors.reset()
	}
	c.reset()
}

// reset ends the transaction.
func (c *Conn) reset() {
	c.handler.Reset()
	c.state, c.taken, c.refused, c.content, c.forwarded = greeted, 0, 0, Content{}, nil
	c.finish()
}
