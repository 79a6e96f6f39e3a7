package downgrade

import (
	"bytes"
	"encoding/binary"
)

// Scan looks for content that a server may not be sent as it is, in one pass over the
// header and the body: 8-bit content where the server does not offer 8BITMIME, and parts
// with binary content. It may report some that Inspect finds nothing to do about. The zero
// Scan looks for nothing.
type Scan struct {
	seven  bool // the server takes no 8-bit content
	labels bool // parts may have an encoding of their own
	found  bool
	state  scanState
	at     int // bytes of the name or the word that have matched
}

// scanState is where in a line the next byte is.
type scanState uint8

const (
	scanStart scanState = iota // at its beginning, or in a name that is the field's so far
	scanRest                   // in a line that does not matter
	scanValue                  // in the value of the field
	scanFold                   // behind a line of the value
)

const (
	encodingField = "content-transfer-encoding"
	binaryWord    = "binary"
)

// NewScan begins with the message's header, which is whole lines. eight: the server takes
// 8-bit content.
func NewScan(header []byte, eight bool) Scan {
	s := Scan{seven: !eight}
	for len(header) > 0 {
		end := bytes.IndexByte(header, '\n') + 1
		if end == 0 {
			end = len(header)
		}
		// Most fields begin with another letter.
		if header[0]|0x20 == 'c' {
			for end < len(header) && (header[end] == ' ' || header[end] == '\t') {
				next := bytes.IndexByte(header[end:], '\n') + 1
				if next == 0 {
					next = len(header) - end
				}
				end += next
			}
			s.field(header[:end])
		}
		header = header[end:]
	}
	return s
}

// field looks at a field of the message's header.
func (s *Scan) field(line []byte) {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok {
		return
	}
	switch name = bytes.TrimRight(name, " \t"); {
	case len(name) == len("Content-Type") && bytes.EqualFold(name, []byte("Content-Type")):
		s.labels = s.labels || holds(value, "multipart") || holds(value, "message")
	case len(name) == len(encodingField) && bytes.EqualFold(name, []byte(encodingField)):
		s.found = s.found || holds(value, binaryWord) && label(unfold(value)) == binaryWord
	}
}

func unfold(value []byte) string {
	return string(bytes.ReplaceAll(value, []byte("\n"), nil))
}

// holds reports whether a word is in a text, in upper or lower case.
func holds(text []byte, word string) bool {
	for i, c := range text {
		if c|0x20 == word[0] && len(text)-i >= len(word) && bytes.EqualFold(text[i:i+len(word)], []byte(word)) {
			return true
		}
	}
	return false
}

// Found reports whether Inspect has to decide.
func (s *Scan) Found() bool { return s.found }

// Body looks at the next bytes of the body.
func (s *Scan) Body(b []byte) {
	if !s.found && s.seven && has8bit(b) {
		s.found = true
	}
	if !s.found && s.labels {
		s.label(b)
	}
}

// has8bit reports whether there is a byte above 127, or a NUL, which RFC 5322 does not
// allow.
func has8bit(b []byte) bool {
	all := b
	for len(b) >= 32 {
		x := binary.NativeEndian.Uint64(b) | binary.NativeEndian.Uint64(b[8:]) |
			binary.NativeEndian.Uint64(b[16:]) | binary.NativeEndian.Uint64(b[24:])
		if x&0x8080808080808080 != 0 {
			return true
		}
		b = b[32:]
	}
	for _, c := range b {
		if c >= 0x80 {
			return true
		}
	}
	return bytes.IndexByte(all, 0) >= 0
}

// label looks for binary in a Content-Transfer-Encoding field at the beginning of a line.
func (s *Scan) label(b []byte) {
	for i := 0; i < len(b) && !s.found; {
		if s.state == scanRest {
			if i = s.skip(b, i); i == len(b) {
				return
			}
		}
		if s.step(b[i]) {
			i++
		}
	}
}

// skip returns where the next line begins that may be such a field: one with a hyphen behind
// the first word, or one that does not end here. Hyphens are rare in base64, and there are
// fewer of them in text than lines.
func (s *Scan) skip(b []byte, i int) int {
	const word = len("content")
	for {
		n := bytes.IndexByte(b[i:], '-')
		if n < 0 {
			break
		}
		i += n
		if begin := i - word; begin > 0 && b[begin-1] == '\n' && bytes.EqualFold(b[begin:i], []byte(encodingField[:word])) {
			s.state, s.at = scanStart, 0
			return begin
		}
		i++
	}
	last := max(i, len(b)-1-word)
	if n := bytes.IndexByte(b[last:], '\n'); n >= 0 {
		s.state, s.at = scanStart, 0
		return last + n + 1
	}
	return len(b)
}

// step looks at one byte. It reports whether that is done with.
func (s *Scan) step(c byte) bool {
	switch s.state {
	case scanStart:
		switch {
		case s.at == len(encodingField):
			s.state, s.at = scanValue, 0
		case c == encodingField[s.at] || c|0x20 == encodingField[s.at]:
			s.at++
			return true
		default:
			s.state = scanRest
		}
		return false
	case scanFold:
		if c == ' ' || c == '\t' {
			s.state = scanValue
			return true
		}
		s.state, s.at = scanStart, 0
		return false
	}
	switch {
	case c == '\n':
		s.state, s.at = scanFold, 0
	case c|0x20 == binaryWord[s.at]:
		s.at++
		s.found = s.at == len(binaryWord)
	case c|0x20 == binaryWord[0]:
		s.at = 1
	default:
		s.at = 0
	}
	return true
}
