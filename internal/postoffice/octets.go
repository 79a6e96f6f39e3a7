package postoffice

import (
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/disk/durable"
)

// SizeError means that a message file has not the size that its first line records.
type SizeError struct{ Has, Had int64 }

func (e *SizeError) Error() string {
	return fmt.Sprintf("the message file has %d bytes, and had %d when it was accepted", e.Has, e.Had)
}

// CheckSize compares an accepted message file's size with that of its first line, for
// those who read it much later than the router: somebody may have cut it. The checksum
// is not looked at. A file without such a line is taken at its word.
func CheckSize(f durable.File, size int64) error {
	var b [len(octetsPrefix) + octetsDigits]byte
	if n, err := f.ReadAt(b[:], 0); n < len(b) {
		if size < int64(len(b)) {
			return nil // too short for the line
		}
		return err
	}
	if had, ok := recorded(b[:]); ok && had != size {
		return &SizeError{Has: size, Had: had}
	}
	return nil
}

// recorded is the size in the start of a first line; ok is false if it is none of ours.
func recorded(line []byte) (size int64, ok bool) {
	digits, ok := strings.CutPrefix(string(line[:min(len(line), len(octetsPrefix)+octetsDigits)]), octetsPrefix)
	if !ok {
		return 0, false
	}
	size, err := strconv.ParseInt(digits, 10, 64)
	return size, err == nil
}
