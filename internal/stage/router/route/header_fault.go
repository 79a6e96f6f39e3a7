package route

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxLine is RFC 5322 §2.1.1's limit of a line without its end. Bytes.
const maxLine = 998

// fault returns the first violation of RFC 5322 in a message's header, "" if there is none
// that we look for. Such a message goes on as it is; the postmaster may want to know.
func (h *header) fault() string {
	seen := map[string]bool{}
	for i := range h.fields {
		f := &h.fields[i]
		if f.Name == "" {
			return fmt.Sprintf("a line that is no field: %.60q", bytes.TrimRight(f.Raw, "\r\n"))
		}
		why := rawFault(f.Raw)
		kind := kindOf(f.Name)
		if why == "" && kind != anyField {
			name := strings.ToLower(f.Name)
			if seen[name] {
				why = "a second one"
			}
			seen[name] = true
		}
		if why == "" && kind == listField {
			why = listFault(f.Value())
		}
		if why != "" {
			return fmt.Sprintf("field %.60q: %s", f.Name, why)
		}
	}
	return ""
}

// fieldKind is what is known of a field by its name.
type fieldKind uint8

const (
	anyField  fieldKind = iota
	oneField            // may occur once, RFC 5322 §3.6
	listField           // the same, and holds addresses
)

func kindOf(name string) fieldKind {
	switch strings.ToLower(name) {
	case "date", "message-id", "in-reply-to", "references", "subject":
		return oneField
	case "from", "sender", "reply-to", "to", "cc", "bcc":
		return listField
	}
	return anyField
}

func rawFault(raw []byte) string {
	if !utf8.Valid(raw) {
		return "bytes that are neither ASCII nor UTF-8"
	}
	first := true
	for line := range bytes.Lines(raw) {
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		switch {
		case len(line) > maxLine:
			return fmt.Sprintf("a line of %d bytes", len(line))
		case !first && len(bytes.Trim(line, " \t")) == 0:
			return "a line of blanks alone"
		case bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return "a control character"
		}
		first = false
	}
	return ""
}

// listFault looks at quotes, comments and brackets of an address list.
func listFault(s string) string {
	comment, quoted, angle := 0, false, false
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case b == '\\' && (quoted || comment > 0):
			i++
		case b == '"' && comment == 0:
			quoted = !quoted
		case quoted:
		case b == '(':
			comment++
		case comment > 0:
			if b == ')' {
				comment--
			}
		case b == '<':
			if angle {
				return "brackets in brackets"
			}
			angle = true
		case b == '>':
			if !angle {
				return "a > that nothing opened"
			}
			angle = false
		case b == ')':
			return "a ) that nothing opened"
		}
	}
	switch {
	case quoted:
		return "a quote without end"
	case comment > 0:
		return "a comment without end"
	case angle:
		return "a < without end"
	}
	return ""
}
