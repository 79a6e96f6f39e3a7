package submit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"zmailer/internal/envelope"
)

// readHeader takes the recipients from the header and leaves Bcc out (-t). Only the
// header is held in memory.
func (s *submission) readHeader() error {
	buf, end, err := s.collect()
	if err != nil {
		return err
	}
	fields := envelope.Fields(buf[:end])
	for i, f := range fields {
		if f.Name == "" && i > 0 {
			// The header was over without an empty line.
			fields = fields[:i]
			break
		}
	}
	// Who sends a message again sends it to whom the uppermost Resent fields name: the
	// others have it.
	from, to := envelope.UppermostResent(fields)
	resent := from >= 0 && slices.ContainsFunc(fields[from:to], func(f envelope.Field) bool { return isResentTo(f.Name) })
	rest := buf
	for i, f := range fields {
		rest = rest[len(f.Raw):]
		if !isBcc(f.Name) {
			s.header = append(s.header, f.Raw...)
		}
		if wanted := !resent && isTo(f.Name) || resent && from <= i && i < to && isResentTo(f.Name); !wanted {
			continue
		}
		if err := s.addRecipients(f.Value()); err != nil {
			return &Error{Code: exitDataErr, Err: fmt.Errorf("header %s: %w", f.Name, err)}
		}
	}
	s.header = append(s.header, rest...)
	return nil
}

// collect reads up to the end of the header at least: buf[:end] is the header.
func (s *submission) collect() (buf []byte, end int, err error) {
	for {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), max(4096, 2*cap(buf)))
			copy(grown, buf)
			buf = grown
		}
		n, err := s.in.Read(buf[len(buf):cap(buf)])
		from := max(0, len(buf)-3)
		buf = buf[:len(buf)+n]
		if i := headerEnd(buf, from); i >= 0 {
			return buf, i, nil
		}
		if errors.Is(err, io.EOF) {
			return buf, len(buf), nil
		}
		if err != nil {
			return nil, 0, err
		}
		if len(buf) > envelope.MaxHeader {
			return nil, 0, &Error{Code: exitDataErr, Err: fmt.Errorf("-t: no end of the header after %d bytes", len(buf))}
		}
	}
}

// headerEnd finds the empty line that ends a header, looking from the given offset
// on; -1 if there is none yet. Local programs may end lines in CRLF.
func headerEnd(buf []byte, from int) int {
	if from == 0 && (bytes.HasPrefix(buf, []byte("\n")) || bytes.HasPrefix(buf, []byte("\r\n"))) {
		return 0
	}
	for i := from; i < len(buf); i++ {
		j := bytes.IndexByte(buf[i:], '\n')
		if j < 0 {
			return -1
		}
		i += j
		if next := buf[i+1:]; bytes.HasPrefix(next, []byte("\n")) || bytes.HasPrefix(next, []byte("\r\n")) {
			return i + 1
		}
	}
	return -1
}

func isTo(name string) bool {
	return strings.EqualFold(name, "To") || strings.EqualFold(name, "Cc") || strings.EqualFold(name, "Bcc")
}

// isResentTo tells the Resent fields that name recipients.
func isResentTo(name string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(name), "resent-")
	return ok && isTo(rest)
}

func isBcc(name string) bool {
	return strings.EqualFold(name, "Bcc") || strings.EqualFold(name, "Resent-Bcc")
}
