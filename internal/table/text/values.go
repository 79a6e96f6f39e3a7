package text

import (
	"errors"
	"fmt"
	"net/mail"
	"path"
	"strings"

	"zmailer/internal/mail/address"
)

// ValueKind is what a value of an alias leads to.
type ValueKind uint8

// Kinds of values.
const (
	ToAddress ValueKind = iota // Mailbox
	ToInclude                  // Text: path of a file with more values
	ToPipe                     // Text: a bar and a command
	ToFile                     // Text: path of a file or, ending in /, a Maildir
)

// Value is one of the values of an alias.
type Value struct {
	Kind    ValueKind
	Mailbox address.Mailbox
	Final   bool // "\name": the user's mailbox, whatever the aliases say
	Text    string
}

// UserPart is replaced by the local part of the address that led to a value of
// fqdnaliases.
const UserPart = "%1"

// ParseValues reads a comma list. where is the offset of the errors.
func ParseValues(list string) (values []Value, where int, err error) {
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
			v, err := ParseValue(text)
			if err != nil {
				return nil, start + strings.Index(list[start:], text), err
			}
			values = append(values, v)
		}
		start = end + 1
	}
	return values, 0, nil
}

// indexOutside finds a byte outside of quotes and brackets; -1: there is
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

// ParseValue reads one value; it may be quoted as a whole.
func ParseValue(s string) (Value, error) {
	text, quoted := Unquoted(s)
	text = strings.ReplaceAll(text, "\n", " ")
	for i := 0; i < len(text); i++ {
		if text[i] < ' ' && text[i] != '\t' || text[i] == 0x7f {
			return Value{}, fmt.Errorf("control character in %q", text)
		}
	}
	switch {
	case text == "":
		return Value{}, errors.New("empty value")
	case text[0] == '|':
		return parsePipe(text[1:])
	case text[0] == '/':
		if strings.Contains(text, UserPart) {
			return Value{}, fmt.Errorf("%s in a path: a sender would choose the file", UserPart)
		}
		return Value{Kind: ToFile, Text: text}, nil
	case text[0] == ':':
		return parseInclude(text)
	case quoted:
		return Value{Mailbox: address.Mailbox{Local: text}}, nil
	case text[0] == '\\':
		v, err := parseMailbox(text[1:])
		v.Final = true
		return v, err
	}
	return parseMailbox(text)
}

// Unquoted removes the quotes around a value or name.
func Unquoted(s string) (string, bool) {
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

func parsePipe(command string) (Value, error) {
	command = strings.TrimSpace(command)
	if c, quoted := Unquoted(command); quoted {
		command = strings.TrimSpace(c)
	}
	if command == "" {
		return Value{}, errors.New("| without a command")
	}
	if strings.Contains(command, UserPart) {
		return Value{}, fmt.Errorf("%s in a command: a sender would choose its text", UserPart)
	}
	return Value{Kind: ToPipe, Text: "|" + command}, nil
}

func parseInclude(s string) (Value, error) {
	const directive = ":include:"
	if len(s) < len(directive) || !strings.EqualFold(s[:len(directive)], directive) {
		return Value{}, fmt.Errorf("%q: only :include: may begin with a colon", s)
	}
	file := strings.TrimSpace(s[len(directive):])
	if !path.IsAbs(file) {
		return Value{}, fmt.Errorf(":include: wants a path from the root, not %q", file)
	}
	if strings.Contains(file, UserPart) {
		return Value{}, fmt.Errorf("%s in a path: a sender would choose the file", UserPart)
	}
	return Value{Kind: ToInclude, Text: file}, nil
}

// parseMailbox reads a user, an address, or "Name <address>" as users write into
// lists.
func parseMailbox(s string) (Value, error) {
	m, err := address.Parse(s)
	if err != nil {
		named, nerr := mail.ParseAddress(s)
		if nerr != nil {
			return Value{}, err
		}
		if m, err = address.Parse(named.Address); err != nil {
			return Value{}, err
		}
	}
	if m.IsNull() {
		return Value{}, fmt.Errorf("%q is no recipient", s)
	}
	if strings.Contains(m.Domain, UserPart) {
		return Value{}, fmt.Errorf("%s is allowed before the @ only: %q", UserPart, s)
	}
	return Value{Mailbox: m}, nil
}
