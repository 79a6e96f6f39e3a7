package workspec

import "strconv"

// Widths of the fields at the start of an r line.
const (
	ownerWidth = 6
	delayWidth = 4
	maxOwner   = 999999
)

// TagOffset is where a recipient's tag stands.
func TagOffset(recipient int64) int64 { return recipient + 1 }

// DiagnosticTagOffset is where a diagnostic's tag stands, given its LineOffset.
func DiagnosticTagOffset(line int64) int64 { return line + 1 }

// LockBytes is what a lock by owner is written as, to be put at TagOffset: seven
// bytes. Only for a format with FormatPID; TagBytes(format, TagLocked) else. It
// panics on an owner that is not 1 to 999999, for it would write over the channel.
func LockBytes(owner int) []byte {
	if owner < 1 || owner > maxOwner {
		panic("workspec: owner " + strconv.Itoa(owner) + " does not fit the lock field")
	}
	return appendOwner(append(make([]byte, 0, 1+ownerWidth), byte(TagLocked)), owner)
}

// appendOwner appends an owner right-aligned in its field, blanks for 0.
func appendOwner(b []byte, owner int) []byte {
	var digits [ownerWidth]byte
	i := ownerWidth
	for ; owner > 0 && i > 0; owner /= 10 {
		i--
		digits[i] = byte('0' + owner%10)
	}
	for range i {
		b = append(b, ' ')
	}
	return append(b, digits[i:]...)
}

// TagBytes is what a final or blank tag is written as, to be put at TagOffset: the
// tag and six blanks, or one byte if the format has no owner field.
func TagBytes(format uint32, t Tag) []byte {
	if format&FormatPID == 0 {
		return []byte{byte(t)}
	}
	return append([]byte{byte(t)}, "      "...)
}
