package mailbox

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"zmailer/internal/mail/envelope"
)

// writer writes a stored message: without the fields that are not sent on, with line ends
// LF, and with lines unquoted if it stood in an mbox.
type writer struct {
	bcc    bool // Bcc is not sent on
	quoted bool // ">From " means "From "
}

func (c writer) write(out io.Writer, r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	w := bufio.NewWriterSize(out, 32<<10)
	var field []byte // with its continuations
	flush := func() error {
		if len(field) == 0 {
			return nil
		}
		f := envelope.Fields(field)[0]
		if !hidden(&f, c.bcc) {
			if _, err := w.Write(field); err != nil {
				return err
			}
		}
		field = field[:0]
		return nil
	}
	for inHeader := true; ; {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			if err := flush(); err != nil {
				return err
			}
			return w.Flush()
		}
		if err != nil {
			return err
		}
		if inHeader && len(line) > 0 && (line[0] == ' ' || line[0] == '\t') && len(field) > 0 && len(field) < envelope.MaxHeader {
			field = append(field, line...)
			continue
		}
		if inHeader {
			if err := flush(); err != nil {
				return err
			}
		}
		if inHeader = inHeader && string(line) != "\n"; inHeader {
			field = append(field, line...)
			continue
		}
		if c.quoted && bytes.HasPrefix(bytes.TrimLeft(line, ">"), []byte("From ")) && line[0] == '>' {
			line = line[1:]
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
}

// readLine gives a line with LF behind it, or a piece of one that is longer than memory
// is to be.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return line, nil
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, nil
	case err != nil:
		return nil, err
	}
	if n := len(line); n > 1 && line[n-2] == '\r' {
		line[n-2] = '\n'
		line = line[:n-1]
	}
	return line, nil
}
