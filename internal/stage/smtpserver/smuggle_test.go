package smtpserver

import (
	"fmt"
	"strings"
	"testing"
)

// smuggled is what follows a false end of a message.
const smuggled = "MAIL FROM:<evil@example.net>\r\nRCPT TO:<c@mx.example.org>\r\nDATA\r\nsmuggled\r\n"

// falseEnds are what some server takes for the end of a message, and bare tells whether
// there is an LF without CR in it.
var falseEnds = map[string]struct {
	text string
	bare bool
}{
	"LF dot LF":          {"\n.\n", true},
	"LF dot CRLF":        {"\n.\r\n", true},
	"CRLF dot LF":        {"\r\n.\n", true},
	"CR dot CR":          {"\r.\r", false},
	"CR dot CRLF":        {"\r.\r\n", false},
	"CRLF dot CR":        {"\r\n.\r", false},
	"CR dot LF":          {"\r.\n", true},
	"LF dot CR":          {"\n.\r", true},
	"CR CRLF dot CR":     {"\r\r\n.\r", false},
	"CRLF dot CR CRLF":   {"\r\n.\r\r\n", false},
	"CRLF dot NUL CRLF":  {"\r\n.\x00\r\n", false},
	"CRLF NUL dot CRLF":  {"\r\n\x00.\r\n", false},
	"CR NUL LF dot CRLF": {"\r\x00\n.\r\n", true},
	"CRLF dot CR NUL LF": {"\r\n.\r\x00\n", true},
	"CRLF dot blank":     {"\r\n. \r\n", false},
	"NEL dot NEL":        {"\u0085.\u0085", false},
	"line separators":    {"\u2028.\u2028", false},
	"VT dot FF":          {"\v.\f", false},
	"two dots":           {"\r\n..\r\n", false},
}

// Nothing but CRLF dot CRLF ends a message, from whomever; a stranger's bare LF has the
// message refused when it has been read to its end (RFC 5321 §2.3.8, CVE-2023-51764).
func TestFalseEndIsNoEnd(t *testing.T) {
	for name, end := range falseEnds {
		for _, by := range []string{"DATA", "BDAT", "BDAT in two"} {
			for _, who := range []string{"remote", "remote, accept", "our own"} {
				t.Run(name+" by "+by+" from "+who, func(t *testing.T) {
					r := start(t, func(c *Config) {
						c.XClientNets = loopback
						c.Limits.AcceptBareLF = who == "remote, accept"
					})
					p := r.dial()
					if who != "our own" {
						p.say("EHLO c", "250")
						p.say("XCLIENT ADDR=203.0.113.9", "220")
					}
					p.say("EHLO c", "250")
					p.say("MAIL FROM:<a@example.net>", "250")
					p.say("RCPT TO:<b@mx.example.org>", "250")
					content := "Subject: x\r\n\r\nfirst" + end.text + smuggled
					switch by {
					case "DATA":
						p.say("DATA", "354")
						p.send(content + ".\r\n")
					case "BDAT":
						p.send(fmt.Sprintf("BDAT %d LAST\r\n%s", len(content), content))
					default: // cut in the midst of it
						cut := strings.Index(content, end.text) + 1
						p.send(fmt.Sprintf("BDAT %d\r\n%sBDAT %d LAST\r\n%s", cut, content[:cut], len(content)-cut, content[cut:]))
						if got := p.reply(); strings.HasPrefix(got, "550 5.6.0") && end.bare && who == "remote" {
							p.expect("503") // the second chunk is none of a message any more
							p.say("NOOP", "250")
							r.nothing()
							return
						} else if !strings.HasPrefix(got, "250") {
							t.Fatalf("first chunk: %q", got)
						}
					}
					want := "250 2.0.0"
					if end.bare && who == "remote" {
						want = "550 5.6.0"
					}
					p.expect(want)
					p.say("NOOP", "250") // nothing else was taken for a command
					if want[:3] == "550" {
						r.nothing()
					} else if got := r.only(); strings.Count(got, "\nfrom <") != 1 || !strings.Contains(got, "smuggled") {
						t.Errorf("got %q", got)
					}
				})
			}
		}
	}
}
