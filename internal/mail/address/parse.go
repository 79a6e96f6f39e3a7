package address

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Longest parts, in bytes. RFC 5321 §4.5.3.1.1 asks for 64 in a local part at least
// and for no needless limit; bounce addresses with a recipient inside are longer.
const (
	maxLocal  = 512
	maxDomain = 255 // RFC 5321 §4.5.3.1.2
	maxLabel  = 63  // RFC 1035 §2.3.4
)

// Parse reads "a@b", "<a@b>", "a", "<>" or "", with quoted local parts, address
// literals and a source route, which is dropped (RFC 5321 appendix C). Blanks
// around it are trimmed. Control characters, NUL and line ends are always errors.
//
// Two liberties are taken with the grammar, because such mailboxes exist: dots may
// appear anywhere in an unquoted local part (String quotes it then), and a label of
// a domain may hold underscores. A domain that is not ASCII is given in its U-labels,
// mapped and in NFC, so that it may be sent as it is (RFC 6531 §3.3); of ASCII
// domains the case is kept.
func Parse(s string) (Mailbox, error) {
	m, err := parse(strings.Trim(s, " \t"))
	if err != nil {
		return Mailbox{}, fmt.Errorf("address %.300q: %w", s, err)
	}
	return m, nil
}

func parse(s string) (Mailbox, error) {
	if err := checkCharacters(s); err != nil {
		return Mailbox{}, err
	}
	if strings.HasPrefix(s, "<") {
		if len(s) < 2 || s[len(s)-1] != '>' {
			return Mailbox{}, errors.New("< without >")
		}
		s = s[1 : len(s)-1]
	}
	if s == "" {
		return Mailbox{}, nil
	}
	s, err := dropRoute(s)
	if err != nil {
		return Mailbox{}, err
	}
	local, rest, err := cutLocal(s)
	if err != nil {
		return Mailbox{}, err
	}
	if len(local) > maxLocal {
		return Mailbox{}, fmt.Errorf("local part of more than %d bytes", maxLocal)
	}
	if rest == "" {
		if local == "" {
			return Mailbox{}, errors.New("local part is empty")
		}
		return Mailbox{Local: local}, nil
	}
	domain := rest[1:]
	if !strings.HasPrefix(domain, "[") {
		domain = strings.TrimSuffix(domain, ".")
	}
	if _, err := asciiDomain(domain); err != nil {
		return Mailbox{}, err
	}
	if domain, err = unicodeDomain(domain); err != nil {
		return Mailbox{}, err
	}
	return Mailbox{Local: local, Domain: domain}, nil
}

// checkCharacters refuses characters that no address may have.
func checkCharacters(s string) error {
	ascii := true
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return fmt.Errorf("control character 0x%02x", s[i])
		}
		if s[i] >= utf8.RuneSelf {
			ascii = false
		}
	}
	if ascii {
		return nil
	}
	if !utf8.ValidString(s) {
		return errors.New("not UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("control character %U", r)
		}
	}
	return nil
}

// dropRoute reads "@a,@b:rest" and gives the rest: RFC 5321 §4.1.2 A-d-l.
func dropRoute(s string) (string, error) {
	if s[0] != '@' {
		return s, nil
	}
	for {
		end := strings.IndexAny(s, ",:")
		// A literal in the route may hold colons of its own.
		if b := strings.IndexByte(s, ']'); strings.HasPrefix(s, "@[") && b > 0 {
			end = strings.IndexAny(s[b:], ",:")
			if end >= 0 {
				end += b
			}
		}
		if end < 0 {
			return "", errors.New("local part is empty")
		}
		if _, err := asciiDomain(strings.TrimSuffix(s[1:end], ".")); err != nil {
			return "", fmt.Errorf("source route: %w", err)
		}
		sep := s[end]
		s = s[end+1:]
		if sep == ':' {
			if s == "" || s[0] == '@' {
				return "", errors.New("source route without a mailbox")
			}
			return s, nil
		}
		if s == "" || s[0] != '@' {
			return "", errors.New("source route: @ expected")
		}
	}
}

// cutLocal parts a local part, unquoted, from the rest: "" or "@domain".
func cutLocal(s string) (local, rest string, err error) {
	if s[0] == '"' {
		local, rest, err = cutQuoted(s)
		if err != nil {
			return "", "", err
		}
	} else {
		i := 0
		for i < len(s) && (isAtext(s[i]) || s[i] == '.') {
			i++
		}
		local, rest = s[:i], s[i:]
		if local == "" {
			return "", "", fmt.Errorf("%q where a local part must begin", rest[:1])
		}
	}
	if rest != "" && rest[0] != '@' {
		return "", "", fmt.Errorf("%q after the local part %q", rest[:1], local)
	}
	if rest == "@" {
		return "", "", errors.New("domain is empty")
	}
	return local, rest, nil
}

// cutQuoted reads RFC 5321 §4.1.2 Quoted-string.
func cutQuoted(s string) (local, rest string, err error) {
	i := 1
	for i < len(s) && s[i] != '"' && s[i] != '\\' {
		i++
	}
	if i < len(s) && s[i] == '"' {
		return s[1:i], s[i+1:], nil // nothing to unquote
	}
	b := append(make([]byte, 0, len(s)), s[1:i]...)
	for ; i < len(s); i++ {
		switch s[i] {
		case '"':
			return string(b), s[i+1:], nil
		case '\\':
			if i++; i == len(s) || s[i] >= utf8.RuneSelf {
				return "", "", errors.New("\\ before nothing that may be quoted")
			}
		}
		b = append(b, s[i])
	}
	return "", "", errors.New("quoted local part without end")
}
