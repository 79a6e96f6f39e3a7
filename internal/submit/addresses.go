package submit

import (
	"errors"
	"fmt"
	"strings"

	"zmailer/internal/address"
)

// parseList reads an address list as a header or an argument has it (RFC 5322 §3.4):
// addresses parted by commas, bare or in <> behind a name, groups, comments. A local
// name needs no domain. It gives the addresses without brackets, in order.
func parseList(list string) ([]string, error) {
	p := listParser{rest: list}
	for p.rest != "" {
		if err := p.next(); err != nil {
			return nil, fmt.Errorf("address list %.300q: %w", list, err)
		}
	}
	if err := p.end(); err != nil {
		return nil, fmt.Errorf("address list %.300q: %w", list, err)
	}
	return p.found, nil
}

// listParser reads one token after the other. Until an address ends it holds the
// text outside of brackets, which is the address if there are none.
type listParser struct {
	rest  string
	text  strings.Builder
	angle string // what stood in <>
	has   bool   // there was a <>
	at    bool   // there was an @ outside of quotes
	found []string
}

func (p *listParser) next() error {
	switch b := p.rest[0]; b {
	case '(':
		return p.comment()
	case '"':
		s, err := p.until('"')
		p.text.WriteString(s)
		return err
	case '[':
		s, err := p.until(']')
		p.text.WriteString(s)
		return err
	case '<':
		return p.brackets()
	case ',', ';':
		p.rest = p.rest[1:]
		return p.end()
	case ':':
		// What stood before was a group's name (RFC 5322 §3.4).
		p.rest = p.rest[1:]
		if p.has || p.at {
			return errors.New("a colon after an address")
		}
		p.text.Reset()
	case ')', '>', ']':
		return fmt.Errorf("a %c that nothing opened", b)
	case '\r', '\n':
		p.text.WriteByte(' ')
		p.rest = p.rest[1:]
	default:
		p.at = p.at || b == '@'
		p.text.WriteByte(b)
		p.rest = p.rest[1:]
	}
	return nil
}

// until cuts a token that ends in the byte close; a backslash takes the next byte
// along.
func (p *listParser) until(close byte) (string, error) {
	for i := 1; i < len(p.rest); i++ {
		switch p.rest[i] {
		case '\\':
			i++
		case close:
			s := p.rest[:i+1]
			p.rest = p.rest[i+1:]
			return s, nil
		}
	}
	return "", fmt.Errorf("%c without %c", p.rest[0], close)
}

// comment drops a comment with those inside of it.
func (p *listParser) comment() error {
	depth := 0
	for i := 0; i < len(p.rest); i++ {
		switch p.rest[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				p.rest = p.rest[i+1:]
				return nil
			}
		}
	}
	return errors.New("( without )")
}

// brackets reads <...>; a quoted local part in it may hold brackets.
func (p *listParser) brackets() error {
	if p.has {
		return errors.New("a second < in one address")
	}
	quoted := false
	for i := 1; i < len(p.rest); i++ {
		switch b := p.rest[i]; {
		case b == '\\' && quoted:
			i++
		case b == '"':
			quoted = !quoted
		case b == '>' && !quoted:
			p.angle, p.has = p.rest[1:i], true
			p.rest = p.rest[i+1:]
			return nil
		}
	}
	return errors.New("< without >")
}

// end takes the address that was read, if any.
func (p *listParser) end() error {
	text := strings.TrimSpace(p.text.String())
	if p.has {
		text = strings.TrimSpace(p.angle)
	}
	has := p.has
	p.text.Reset()
	p.angle, p.has, p.at = "", false, false
	if text == "" && !has {
		return nil
	}
	m, err := address.Parse(text)
	if err != nil {
		return err
	}
	if m.IsNull() {
		return errors.New("the null address is no recipient")
	}
	p.found = append(p.found, m.String())
	return nil
}
