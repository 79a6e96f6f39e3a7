package importer

import (
	"strings"

	"zmailer/internal/mail/address"
)

// Wishes of RFC 3461 about reports.
type Wishes struct {
	Never, Success, Failure, Delay bool
}

// DSN returns the value of a todsn line; orcpt is "type;address" in xtext, or "".
func (w Wishes) DSN(orcpt string) string {
	var notify []string
	switch {
	case w.Never:
		notify = []string{"NEVER"}
	default:
		for _, n := range []struct {
			on   bool
			word string
		}{{w.Success, "SUCCESS"}, {w.Failure, "FAILURE"}, {w.Delay, "DELAY"}} {
			if n.on {
				notify = append(notify, n.word)
			}
		}
	}
	var words []string
	if len(notify) > 0 {
		words = append(words, "NOTIFY="+strings.Join(notify, ","))
	}
	if orcpt = oneWord(orcpt); orcpt != "" {
		words = append(words, "ORCPT="+orcpt)
	}
	return strings.Join(words, " ")
}

// oneWord returns a text if it can be one word of an envelope line, else "".
func oneWord(s string) string {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return ""
		}
	}
	return s
}

// EnvID returns an envelope identifier in xtext, or "" if it is none.
func EnvID(xtext string) string { return oneWord(xtext) }

// ORCPT is "type;address" in xtext from the same without.
func ORCPT(plain string) string {
	kind, addr, ok := strings.Cut(plain, ";")
	if !ok || kind == "" || addr == "" {
		return ""
	}
	return kind + ";" + address.EncodeXText(addr)
}

// Quoted returns an address whose local part is given without quotes, as it is written in an
// envelope.
func Quoted(internal string) string {
	if internal == "" {
		return ""
	}
	at := strings.LastIndexByte(internal, '@')
	if at < 0 {
		return address.Mailbox{Local: internal}.String()
	}
	return address.Mailbox{Local: internal[:at], Domain: internal[at+1:]}.String()
}

// plain returns a text fit for an envelope line.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
