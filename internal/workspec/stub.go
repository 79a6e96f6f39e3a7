package workspec

import "io"

// Parse reads a whole specification. It returns ErrUnknownFormat or a
// *SyntaxError; a torn last line or a missing z is no error, see Spec. Strings
// do not alias b.
func Parse(b []byte) (*Spec, error) { panic("stub") }

// LockBytes is what a lock by owner is written as, to be put at TagOffset.
func LockBytes(owner int) []byte { panic("stub") }

// TagBytes is what a final or blank tag is written as, to be put at TagOffset: the
// tag and six blanks, or one byte if the format has no owner field.
func TagBytes(format uint32, t Tag) []byte { panic("stub") }

// TagOffset is where a recipient's tag stands.
func TagOffset(recipient int64) int64 { return recipient + 1 }

// AppendDiagnostic appends d's line to b.
func AppendDiagnostic(b []byte, d *Diagnostic) []byte { panic("stub") }

// AppendEvent appends e's line to b.
func AppendEvent(b []byte, e *Event) []byte { panic("stub") }

// String is the NOTARY field: the six values with ^A between, empty if all are.
func (n Notary) String() string { panic("stub") }

// ParseNotary reads a NOTARY field; missing values are empty.
func ParseNotary(s string) Notary { panic("stub") }

// Print writes s back in canonical form, appended lines included; header is the
// file's bytes that Groups' header offsets point into.
func Print(w io.Writer, s *Spec, file []byte) error { panic("stub") }

// Writer writes a new specification, streaming. Errors stick and come out of Close.
type Writer struct{ W io.Writer }

// NewWriter starts a specification with the @ line.
func NewWriter(w io.Writer) *Writer { panic("stub") }

// Preamble writes v, i, o, l, e, x, T lines of s (those that are set).
func (w *Writer) Preamble(s *Spec) { panic("stub") }

// Group writes the s line, then each recipient's r, N, R, n lines, then the m block
// with the given header bytes: whole lines, no empty line among them; a missing
// last newline is added and the closing empty line written.
func (w *Writer) Group(s Sender, rcpts []Recipient, header []byte) { panic("stub") }

// Close writes the z line.
func (w *Writer) Close() error { panic("stub") }
