package smtpclient

import (
	"slices"
	"strconv"
	"strings"
)

// Extensions are the service extensions that the server offers.
type Extensions struct {
	Pipelining     bool   // RFC 2920
	Size           bool   // RFC 1870
	MaxSize        int64  // bytes, 0: not said
	EightBitMIME   bool   // RFC 6152
	DSN            bool   // RFC 3461
	SMTPUTF8       bool   // RFC 6531
	EnhancedStatus bool   // RFC 2034
	StartTLS       bool   // RFC 3207
	RequireTLS     bool   // RFC 8689
	Auth           string // mechanisms, parted by blanks (RFC 4954)
}

// Extensions tells what the server offers; valid after Hello.
func (c *Conn) Extensions() Extensions { return c.ext }

// Hello waits for the greeting and says EHLO, or HELO to a server that does not
// know that (RFC 5321 §3.2), or LHLO (RFC 2033 §4.1). It fails with *ReplyError or
// *ConnError; the connection is closed then.
func (c *Conn) Hello() error {
	r, err := c.reply(PhaseGreeting)
	if err != nil {
		return err
	}
	c.hello.answered(r)
	if r.Code != 220 {
		return c.refuse(PhaseGreeting, r)
	}
	return c.ehlo()
}

// ehlo says hello and takes what the server offers.
func (c *Conn) ehlo() error {
	verb := "EHLO "
	if c.cfg.LMTP {
		verb = "LHLO "
	}
	r, err := c.sayHello(verb)
	if err != nil {
		return err
	}
	if r.Class() == 2 {
		c.ext = parseExtensions(r.Text, c.cfg.Ignore)
		return nil
	}
	// RFC 5321 §4.1.4: any refusal of EHLO but "not available" may be one of the
	// verb alone.
	if r.Class() == 5 && !c.cfg.LMTP && c.Usable() {
		if r, err = c.sayHello("HELO "); err != nil {
			return err
		}
		if r.Class() == 2 {
			return nil
		}
	}
	return c.refuse(PhaseHello, r)
}

// HelloText is the dialogue that opened the session, for a report on why it could
// not be opened.
func (c *Conn) HelloText() string { return c.hello.String() }

func (c *Conn) sayHello(verb string) (Reply, error) {
	line := verb + c.cfg.Hostname
	c.hello.said(line)
	if err := c.write(PhaseHello, []byte(line+"\r\n")); err != nil {
		return Reply{}, err
	}
	r, err := c.reply(PhaseHello)
	if err != nil {
		return Reply{}, err
	}
	c.hello.answered(r)
	return r, nil
}

// refuse closes a session that the server does not want.
func (c *Conn) refuse(p Phase, r Reply) error {
	c.Quit()
	return &ReplyError{Phase: p, Reply: r}
}

// parseExtensions reads the lines of an EHLO reply; the first one is a greeting
// (RFC 5321 §4.1.1.1). Those to ignore are not seen.
func parseExtensions(text string, ignore []string) Extensions {
	var e Extensions
	_, text, _ = strings.Cut(text, "\n")
	for line := range strings.SplitSeq(text, "\n") {
		keyword, params, _ := strings.Cut(line, " ")
		keyword = strings.ToUpper(keyword)
		if slices.Contains(ignore, keyword) {
			continue
		}
		switch keyword {
		case "PIPELINING":
			e.Pipelining = true
		case "SIZE":
			e.Size = true
			if n, err := strconv.ParseInt(strings.TrimSpace(params), 10, 64); err == nil && n > 0 {
				e.MaxSize = n
			}
		case "8BITMIME":
			e.EightBitMIME = true
		case "DSN":
			e.DSN = true
		case "SMTPUTF8":
			e.SMTPUTF8 = true
		case "ENHANCEDSTATUSCODES":
			e.EnhancedStatus = true
		case "STARTTLS":
			e.StartTLS = true
		case "REQUIRETLS":
			e.RequireTLS = true
		case "AUTH":
			e.Auth = strings.TrimSpace(params)
		}
	}
	return e
}
