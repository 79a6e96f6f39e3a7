package rules

import (
	"errors"
	"fmt"
	"net/mail"
	"path"
	"strings"

	"zmailer/internal/address"
)

// kind is what a value of an alias leads to.
type kind uint8

const (
	toAddress kind = iota // mailbox
	toInclude             // text: path of a file with more values
	toPipe                // text: a bar and a command
	toFile                // text: path of a file or, ending in /, a Maildir
)

// value is one of the values of an alias.
type value struct {
	kind    kind
	mailbox address.Mailbox
	final   bool // "\name": the user's mailbox, whatever the aliases say
	text    string
}

// userPart stands for the local part of the address that led to a value of
// fqdnaliases.
const userPart = "%1"

// parseValues reads a comma list. where is the offset of what is wrong.
func parseValues(list string) (values []value, where int, err error) {
	for start := 0; start <= len(list); {
		end := indexOutside(list[start:], ',')
		if end < 0 {
			end = len(list)
		} else {
			end += start
		}
		text := strings.TrimSpace(list[start:end])
		// One comma may close the list, as an invitation to add a line.
		if text != "" || end < len(list) {
			v, err := parseValue(text)
			if err != nil {
				return nil, start + strings.Index(list[start:], text), err
			}
			values = append(values, v)
		}
		start = end + 1
	}
	return values, 0, nil
}

// indexOutside finds a byte that stands in no quotes and no brackets; -1: there is
// none.
func indexOutside(s string, want byte) int {
	quoted, bracket := false, false
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case b == '\\' && quoted:
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '[':
			bracket = true
		case b == ']':
			bracket = false
		case b == want && !bracket:
			return i
		}
	}
	return -1
}

// parseValue reads one value; it may stand in quotes as a whole.
func parseValue(s string) (value, error) {
	text, quoted := unquoted(s)
	text = strings.ReplaceAll(text, "\n", " ")
	for i := 0; i < len(text); i++ {
		if text[i] < ' ' && text[i] != '\t' || text[i] == 0x7f {
			return value{}, fmt.Errorf("control character in %q", text)
		}
	}
	switch {
	case text == "":
		return value{}, errors.New("empty value")
	case text[0] == '|':
		return parsePipe(text[1:])
	case text[0] == '/':
		if strings.Contains(text, userPart) {
			return value{}, fmt.Errorf("%s in a path: a sender would choose the file", userPart)
		}
		return value{kind: toFile, text: text}, nil
	case text[0] == ':':
		return parseInclude(text)
	case quoted:
		return value{mailbox: address.Mailbox{Local: text}}, nil
	case text[0] == '\\':
		v, err := parseMailbox(text[1:])
		v.final = true
		return v, err
	}
	return parseMailbox(text)
}

// unquoted takes off the quotes that a value or name stands in.
func unquoted(s string) (string, bool) {
	if len(s) < 2 || s[0] != '"' {
		return s, false
	}
	b := make([]byte, 0, len(s))
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			if i == len(s)-1 {
				return string(b), true
			}
			return s, false // as in "john doe"@example.org
		case '\\':
			if i++; i == len(s) {
				return s, false
			}
		}
		b = append(b, s[i])
	}
	return s, false
}

func parsePipe(command string) (value, error) {
	command = strings.TrimSpace(command)
	if c, quoted := unquoted(command); quoted {
		command = strings.TrimSpace(c)
	}
	if command == "" {
		return value{}, errors.New("| without a command")
	}
	if strings.Contains(command, userPart) {
		return value{}, fmt.Errorf("%s in a command: a sender would choose its text", userPart)
	}
	return value{kind: toPipe, text: "|" + command}, nil
}

func parseInclude(s string) (value, error) {
	const directive = ":include:"
	if len(s) < len(directive) || !strings.EqualFold(s[:len(directive)], directive) {
		return value{}, fmt.Errorf("%q: only :include: may begin with a colon", s)
	}
	file := strings.TrimSpace(s[len(directive):])
	if !path.IsAbs(file) {
		return value{}, fmt.Errorf(":include: wants a path from the root, not %q", file)
	}
	if strings.Contains(file, userPart) {
		return value{}, fmt.Errorf("%s in a path: a sender would choose the file", userPart)
	}
	return value{kind: toInclude, text: file}, nil
}

// parseMailbox reads a user, an address, or "Name <address>" as people write into
// lists.
func parseMailbox(s string) (value, error) {
	m, err := address.Parse(s)
	if err != nil {
		named, nerr := mail.ParseAddress(s)
		if nerr != nil {
			return value{}, err
		}
		if m, err = address.Parse(named.Address); err != nil {
			return value{}, err
		}
	}
	if m.IsNull() {
		return value{}, fmt.Errorf("%q is no recipient", s)
	}
	if strings.Contains(m.Domain, userPart) {
		return value{}, fmt.Errorf("%s may stand before the @ only: %q", userPart, s)
	}
	return value{mailbox: m}, nil
}
