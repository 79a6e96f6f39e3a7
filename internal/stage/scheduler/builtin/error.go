package builtin

import (
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
)

// ErrorHost returns what a host of channel error means: WORD, CODE, or either with a text,
// WORD:TEXT, in xtext (docs/notes/error-channel.md).
func ErrorHost(host string) (status.Code, string) {
	word, coded, more := strings.Cut(host, ":")
	code, text := errorWord(word)
	own := ""
	if more {
		var err error
		if own, err = address.DecodeXText(coded); err != nil {
			own = coded
		}
	}
	switch c, ok := status.Parse(word); {
	case ok && own != "":
		return permanent(c), own
	case ok:
		return permanent(c), "cannot be delivered"
	case own != "":
		return code, text + ": " + own
	}
	return code, text
}

// permanent returns a code as one of a failure: also 4.x.x on channel error fails.
func permanent(c status.Code) status.Code {
	c.Class = 5
	return c
}

// errorWord returns the meaning of the words of the router's own rules.
func errorWord(word string) (status.Code, string) {
	switch word {
	case "nouser":
		return status.BadMailbox, "no such user here"
	case "badaddress":
		return status.BadAddress, "this is not an address"
	case "loop":
		return status.RoutingLoop, "the address leads back to itself"
	case "norelay":
		return status.Code{Class: 5, Subject: 7, Detail: 1}, "mail for this domain is not taken from here"
	case "unsafe":
		return status.Code{Class: 5, Subject: 7, Detail: 1}, "programs and files are not served for this address"
	}
	return status.Code{Class: 5}, "cannot be delivered: " + word
}
