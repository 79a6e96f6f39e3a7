package submit

import (
	"errors"
	"strings"

	"zmailer/internal/mail/address"
)

// badAddress is text that cannot be read as an address.
type badAddress struct {
	text string
	err  error
}

// Addresses reads an address list as a header field or an argument has it: RFC 5322
// section 3.4 with the obsolete forms (address.ParseList), and, as Postfix's sendmail
// does, words without brackets that only blanks separate ("a@b c@d"). An address that
// cannot be read does not hide the others: it is returned in bad.
func Addresses(list string) (good []string, bad []string) {
	read, broken := readAddresses(list)
	for _, b := range broken {
		bad = append(bad, b.text)
	}
	return read, bad
}

func readAddresses(list string) (good []string, bad []badAddress) {
	for _, one := range address.ParseList(list) {
		if one.Err == nil && !one.Mailbox.IsNull() {
			good = append(good, one.Mailbox.String())
			continue
		}
		words := splitWords(one.Text)
		if len(words) < 2 {
			bad = append(bad, unreadable(list, one.Text, one.Err))
			continue
		}
		for _, w := range words {
			m, err := address.Parse(w)
			if err != nil || m.IsNull() {
				bad = append(bad, unreadable(list, w, err))
				continue
			}
			good = append(good, m.String())
		}
	}
	return good, bad
}

// unreadable names what cannot be read; where not even a word was found that is the
// whole list.
func unreadable(list, text string, err error) badAddress {
	if text == "" {
		text = strings.TrimSpace(list)
	}
	if err == nil {
		err = errors.New("the null address is not a recipient")
	}
	return badAddress{text: text, err: err}
}

// splitWords splits text at the blanks outside of quotes.
func splitWords(text string) []string {
	quoted, escaped := false, false
	return strings.FieldsFunc(text, func(r rune) bool {
		switch {
		case escaped:
			escaped = false
		case r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		}
		return r == ' ' && !quoted
	})
}

// longestBad is how much of an unreadable address its report names. Bytes; a local part
// has at most 512.
const longestBad = 400

// reportable returns the recipient in place of an unreadable address: a local name
// in quotes that no user has. The router fails it, and the sender gets a report that
// names the text.
func reportable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || 0x7f <= r && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > longestBad {
		text = strings.ToValidUTF8(text[:longestBad], "")
	}
	// The blank makes it quoted, so that it never is the name of a user, an alias or a file.
	return address.Mailbox{Local: "bad address: " + text}.String()
}
