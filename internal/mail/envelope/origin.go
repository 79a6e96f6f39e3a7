package envelope

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
)

// Origin is where a message came in, as smtpserver has written it into the envelope.
type Origin struct {
	// Client is the SMTP client as an address literal of RFC 5321 section 4.1.3 with a port,
	// "[192.0.2.1]:25"; "": unknown, or a Unix socket.
	Client string
	Name   string // its host name; "": unknown
	User   string // who logged in, in xtext; "": nobody did
}

// Origin returns where the message came in, before the content filter if it has passed one. It is to be believed as far as the file's owner
// is. It does not allocate.
func (e *Envelope) Origin() Origin {
	o := Origin{User: e.Submitted}
	if o.User == "-" {
		o.User = "" // a program in HEADERNETS
	}
	// HELO (NAME [192.0.2.1]:25): the words of clients have no brackets (session.SafeName).
	comment, ok := strings.CutSuffix(cmp.Or(e.Forwarded, e.RcvdFrom), ")")
	begin := strings.LastIndexByte(comment, '(')
	if !ok || begin < 0 {
		return o
	}
	comment = comment[begin+1:]
	if name, client, two := strings.Cut(comment, " "); two {
		o.Name, comment = name, client
	}
	if strings.HasPrefix(comment, "[") {
		o.Client = comment
	}
	return o
}

// ClientAddress returns the address and the port of Origin.Client, as the log has them; the
// port is 0 if it has none.
func ClientAddress(literal string) (netip.AddrPort, bool) {
	host, port, found := strings.Cut(literal, "]")
	a, err := netip.ParseAddr(strings.TrimPrefix(strings.TrimPrefix(host, "["), "IPv6:"))
	if !found || err != nil {
		return netip.AddrPort{}, false
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(port, ":"), 10, 16)
	if err != nil {
		n = 0
	}
	return netip.AddrPortFrom(a, uint16(n)), true
}
