package submit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"zmailer/internal/mail/envelope"
)

// text is a message as it is stored: a header, its end, and the rest.
type text struct {
	header []byte    // whole lines
	end    []byte    // the empty line, and text that followed a header without one; nil: not reached
	rest   io.Reader // the unread rest
}

// readText reads the header of what a local program wrote, as Postfix's sendmail and
// cleanup read it. Lines at the top that begin with "From " or ">From ", which belong to
// an mbox file, are dropped. The first line that is neither a field nor a continuation
// ends the header; if it is not empty, an empty line is put before it, so that text
// without a header is a body. Of a header that is longer than envelope.MaxHeader the
// remaining lines are in the rest.
func readText(in io.Reader) (*text, error) {
	r := bufio.NewReaderSize(in, copyBuffer)
	t := &text{rest: r}
	for len(t.header) <= envelope.MaxHeader {
		line, err := r.ReadSlice('\n')
		whole := err == nil
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		keep := true
		switch {
		case len(line) == 0: // the input's end: there is no body to part from the header
			t.end = []byte{}
			return t, nil
		case len(t.header) == 0 && isFromLine(line):
			keep = false
		case isEmpty(line):
			t.end = []byte("\n")
			return t, nil
		case len(t.header) > 0 && isBlank(line[0]), isField(line):
			t.header = append(t.header, line...)
		default:
			t.end = append([]byte("\n"), line...)
			return t, nil
		}
		for !whole && errors.Is(err, bufio.ErrBufferFull) {
			line, err = r.ReadSlice('\n')
			whole = err == nil
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
				return nil, err
			}
			if keep {
				t.header = append(t.header, line...)
			}
			if len(t.header) > envelope.MaxHeader {
				return t, nil
			}
		}
	}
	return t, nil
}

// withoutEnd reports whether the header was too long to be read to its end.
func (t *text) withoutEnd() error {
	if t.end != nil {
		return nil
	}
	return fmt.Errorf("no end of the header after %d bytes", len(t.header))
}

// isFromLine reports whether a line separates messages in an mbox file or came from one.
func isFromLine(line []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(line, ">"), []byte("From "))
}

func isEmpty(line []byte) bool {
	return bytes.Equal(line, []byte("\n")) || bytes.Equal(line, []byte("\r\n"))
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

// isField reports whether a line begins a header field: RFC 5322 section 3.6.8, and
// blanks before the colon by section 4.5.
func isField(line []byte) bool {
	name, _, ok := bytes.Cut(line, []byte(":"))
	name = bytes.TrimRight(name, " \t")
	if !ok || len(name) == 0 {
		return false
	}
	for _, b := range name {
		if b <= ' ' || b >= 0x7f {
			return false
		}
	}
	return true
}
