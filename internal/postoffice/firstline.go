package postoffice

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"zmailer/internal/disk/durable"
)

// Every message file of ours starts with this line; the digits are the file's size
// in bytes and, in hexadecimal, the CRC-32C of what follows the line. ZMailer reads it
// as a comment. A power loss may keep a file's mode and lose its last blocks, or leave
// zeros in its middle: a file in public/ that differs from this was never complete,
// whatever its execute bit says.
const (
	octetsPrefix = "comment octets "
	octetsDigits = 16
	octetsSum    = 8
	octetsLine   = len(octetsPrefix) + octetsDigits + 1 + octetsSum + 1
)

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// number fills b with the digits of n.
func number(b []byte, n, base uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = "0123456789abcdef"[n%base]
		n /= base
	}
}

// recorded returns the size in the start of a first line; ok is false if it is none of ours.
func recorded(line []byte) (size int64, ok bool) {
	digits, ok := strings.CutPrefix(string(line[:min(len(line), len(octetsPrefix)+octetsDigits)]), octetsPrefix)
	if !ok {
		return 0, false
	}
	size, err := strconv.ParseInt(digits, 10, 64)
	return size, err == nil
}

// whole reports whether a file in public/ has the size and the checksum that its first
// line records; writers of before recorded the size alone. A file without such a line,
// written by another program, is taken at its word.
func whole(f durable.File) (bool, error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	b := make([]byte, octetsLine)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	b = b[:n]
	if k := min(n, len(octetsPrefix)); string(b[:k]) != octetsPrefix[:k] {
		return b[0] != 0, nil
	}
	const rest = len(octetsPrefix) + octetsDigits
	if n <= rest {
		return false, nil
	}
	size, ok := recorded(b)
	switch {
	case !ok || size != info.Size:
		return false, nil
	case b[rest] == '\n':
		return true, nil
	case n < octetsLine || b[rest] != ' ' || b[octetsLine-1] != '\n':
		return false, nil
	}
	want, err := strconv.ParseUint(string(b[rest+1:octetsLine-1]), 16, 32)
	if err != nil {
		return false, nil
	}
	sum := crc32.New(castagnoli())
	if _, err := io.Copy(sum, io.NewSectionReader(f, int64(octetsLine), size-int64(octetsLine))); err != nil {
		return false, err
	}
	return uint64(sum.Sum32()) == want, nil
}

// octetsEnd returns where what follows a message's first line begins, if that is ours.
func octetsEnd(f durable.File) (int64, error) {
	b := make([]byte, octetsLine)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	line, _, ok := strings.Cut(string(b[:n]), "\n")
	if !ok || !strings.HasPrefix(line, octetsPrefix) {
		return 0, nil
	}
	return int64(len(line)) + 1, nil
}

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
