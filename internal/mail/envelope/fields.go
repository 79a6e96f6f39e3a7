package envelope

import (
	"bytes"
	"strings"
)

// Field is one header field.
type Field struct {
	Name string // as written, without colon and blanks
	Raw  []byte // all its lines
}

// Fields parts a header block into fields: each with its continuation lines and
// its newlines. A line that is neither field nor continuation is a field with an
// empty name. The Raw of all fields one after the other is the header block.
func Fields(header []byte) []Field {
	if len(header) == 0 {
		return nil
	}
	fields := make([]Field, 0, 16)
	for len(header) > 0 {
		end := lineEnd(header)
		for end < len(header) && isBlank(header[end]) {
			end += lineEnd(header[end:])
		}
		f := Field{Raw: header[:end:end]}
		if n := fieldName(f.Raw); n > 0 {
			if rest := bytes.TrimLeft(f.Raw[n:], " \t"); len(rest) > 0 && rest[0] == ':' {
				f.Name = nameOf(f.Raw[:n])
			}
		}
		fields = append(fields, f)
		header = header[end:]
	}
	return fields
}

// usual are names that most messages have, as they are written mostly.
var usual = func() map[string]string {
	all := map[string]string{}
	for _, name := range strings.Fields("Received Return-Path Delivered-To DKIM-Signature Authentication-Results " +
		"From To Cc Subject Date Message-ID Message-Id In-Reply-To References Reply-To Sender MIME-Version " +
		"Content-Type Content-Transfer-Encoding Content-Language User-Agent X-Mailer List-Id List-Unsubscribe") {
		all[name] = name
	}
	return all
}()

// nameOf returns a name as a string; of a usual one it makes no copy.
func nameOf(b []byte) string {
	if name, ok := usual[string(b)]; ok {
		return name
	}
	return string(b)
}

// lineEnd returns the length of the first line with its newline.
func lineEnd(b []byte) int {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return i + 1
	}
	return len(b)
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

// Value returns the field's body, unfolded (RFC 5322 §2.2.3), blanks at both ends
// trimmed. For a field without a name it is the whole line.
func (f Field) Value() string {
	v := f.Raw
	if f.Name != "" {
		v = v[bytes.IndexByte(v, ':')+1:]
	}
	s := strings.Trim(string(v), " \t\r\n")
	if strings.IndexByte(s, '\n') < 0 {
		return s
	}
	// Inside a field every newline is followed by a blank.
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", ""), "\n", "")
}
