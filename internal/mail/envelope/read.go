package envelope

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// firstRead holds the head of most messages, so that one read(2) does.
const firstRead = 4 << 10

// Read reads the head of a message file and no more than it needs to, but for
// buffering. The envelope ends at env-end, or before the first line that looks like
// a header, or at an empty line; the header block ends at an empty line, at the end
// of the file or at MaxHeader. A last header line without newline belongs to the
// header block and stays without.
func Read(r io.Reader) (*Message, error) {
	h := head{r: r, buf: make([]byte, 0, firstRead)}
	end, err := h.findEnvelopeEnd()
	if err != nil {
		return nil, err
	}
	m := &Message{HeaderOffset: int64(end.header)}
	if err := m.parse(string(h.buf[:end.envelope])); err != nil {
		return nil, err
	}
	length, empty, err := h.findHeaderEnd(end.header)
	if err != nil {
		return nil, err
	}
	m.Header = h.buf[end.header : end.header+length : end.header+length]
	m.BodyOffset = m.HeaderOffset + int64(length)
	if empty {
		m.BodyOffset++
	}
	if len(m.Recipients) == 0 && length == 0 {
		return nil, &SyntaxError{Line: end.lines + 1, Reason: "neither a to line nor a header names a recipient"}
	}
	return m, nil
}

// head holds the file from its first byte as far as it was read.
type head struct {
	r   io.Reader
	buf []byte
	eof bool
}

// more reads on. After it either buf is longer or eof is set.
func (h *head) more() error {
	if len(h.buf) == cap(h.buf) {
		// Doubling: a header of n bytes is copied less than once more in all.
		grown := make([]byte, len(h.buf), 2*cap(h.buf))
		copy(grown, h.buf)
		h.buf = grown
	}
	for range 100 {
		n, err := h.r.Read(h.buf[len(h.buf):cap(h.buf)])
		h.buf = h.buf[:len(h.buf)+n]
		if errors.Is(err, io.EOF) {
			h.eof = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("read envelope: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("read envelope: %w", io.ErrNoProgress)
}

// line returns the line at offset off, without its newline, and the offset after it.
// whole is false if the file ends without a newline, or if no more was read because
// the line begins like a header or is longer than limit.
func (h *head) line(off, limit int) (text []byte, next int, whole bool, err error) {
	seen := off
	for {
		if i := bytes.IndexByte(h.buf[seen:], '\n'); i >= 0 {
			return h.buf[off : seen+i], seen + i + 1, true, nil
		}
		seen = len(h.buf)
		if h.eof || seen > limit || looksLikeHeader(h.buf[off:]) {
			return h.buf[off:], seen, false, nil
		}
		if err := h.more(); err != nil {
			return nil, 0, false, err
		}
	}
}

// envelopeEnd is where the envelope lines end and the headers begin; env-end is
// between them.
type envelopeEnd struct{ envelope, header, lines int }

func (h *head) findEnvelopeEnd() (envelopeEnd, error) {
	off := 0
	for n := 1; ; n++ {
		text, next, whole, err := h.line(off, MaxSize)
		if err != nil {
			return envelopeEnd{}, err
		}
		switch {
		case isEnvEnd(text):
			return envelopeEnd{off, next, n}, nil
		case looksLikeHeader(text), whole && len(text) == 0:
			return envelopeEnd{off, off, n - 1}, nil
		case next > MaxSize:
			return envelopeEnd{}, &SyntaxError{n, quoted(text), fmt.Sprintf("the envelope goes on after %d bytes", MaxSize)}
		case !whole:
			// The cause may be above: lines with CR LF, for example.
			if err := new(Envelope).parse(string(h.buf[:off])); err != nil {
				return envelopeEnd{}, err
			}
			return envelopeEnd{}, &SyntaxError{n, quoted(text), "the file ends before the envelope does"}
		}
		off = next
	}
}

// quoted keeps an error from holding on to a huge line.
func quoted(text []byte) string { return string(text[:min(len(text), 100)]) }

// isEnvEnd reports whether a line closes the envelope.
func isEnvEnd(line []byte) bool {
	if len(line) < len("env-end") || line[3] != '-' {
		return false
	}
	line = bytes.TrimRight(line, " \t")
	return bytes.EqualFold(line, []byte("env-end")) || bytes.EqualFold(line, []byte("env-eof"))
}

// looksLikeHeader reports whether a line is "Name:" or, as RFC 5322 §4.5.2 allows in old mail,
// "Name :". Of a keyword's line with a colon as its value only those are headers
// where no envelope line could be meant.
func looksLikeHeader(line []byte) bool {
	name := fieldName(line)
	if name == 0 {
		return false
	}
	if line[name] == ':' {
		return true
	}
	rest := bytes.TrimLeft(line[name:], " \t")
	if len(rest) == 0 || rest[0] != ':' {
		return false
	}
	k, known := keywordOf(line[:name])
	return !known || k.keyword == "from" || k.keyword == "to"
}

// fieldName returns the length of the field name that a line begins with, 0 if it begins
// with none or nothing follows: RFC 5322 §3.6.8 ftext.
func fieldName(line []byte) int {
	for i, b := range line {
		if b == ':' || b == ' ' || b == '\t' {
			return i
		}
		if b <= ' ' || b >= 0x7f {
			return 0
		}
	}
	return 0
}

// findHeaderEnd finds the length of the header block that begins at off, and
// whether an empty line follows it.
func (h *head) findHeaderEnd(off int) (length int, empty bool, err error) {
	scan := off
	for {
		if len(h.buf) > off && h.buf[off] == '\n' {
			return 0, true, nil
		}
		if i := bytes.Index(h.buf[scan:], []byte("\n\n")); i >= 0 && scan+i+1-off <= MaxHeader {
			return scan + i + 1 - off, true, nil
		}
		if len(h.buf)-off > MaxHeader {
			last := bytes.LastIndexByte(h.buf[off:off+MaxHeader], '\n')
			return last + 1, false, nil
		}
		if h.eof {
			return len(h.buf) - off, false, nil
		}
		// The newline that ends a line may be the last byte that we have.
		scan = max(off, len(h.buf)-1)
		if err := h.more(); err != nil {
			return 0, false, err
		}
	}
}
