package envelope

import "io"

// Read reads the head of a message file and no more than it needs to, but for
// buffering.
func Read(r io.Reader) (*Message, error) { panic("stub") }

// Append appends the envelope's lines, env-end included, in the order of
// formats.md. Octets and Unknown are not written. It fails if a value holds a
// line end or a NUL: nobody can smuggle an envelope line in.
func Append(b []byte, e *Envelope) ([]byte, error) { panic("stub") }

// Fields parts a header block into fields: each with its continuation lines and
// its newlines. A line that is neither field nor continuation is a field with an
// empty name.
func Fields(header []byte) []Field { panic("stub") }

// Field is one header field.
type Field struct {
	Name string // as written, without colon and blanks
	Raw  []byte // all its lines
}

// Value is the field's body, unfolded, blanks at both ends trimmed.
func (f Field) Value() string { panic("stub") }
