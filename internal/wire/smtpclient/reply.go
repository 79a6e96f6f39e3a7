package smtpclient

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/human"
)

// maxReply is how much text of one reply is kept; RFC 5321 §4.5.3.1.5 allows 512
// octets a line, and no operator reads more than a few of them. What is longer than
// maxReplyBytes in all is no reply.
const (
	maxReply      = 4 << 10
	maxReplyBytes = 64 << 10
)

// ErrNoReply is a server that sends something else than replies.
var ErrNoReply = errors.New("not an SMTP reply")

// Reply is one reply of the server (RFC 5321 §4.2). The zero value is none.
type Reply struct {
	Code int
	Text string // of its lines without the code, parted by \n
}

// IsZero reports an absent reply.
func (r Reply) IsZero() bool { return r.Code == 0 }

// Class returns the code's first digit.
func (r Reply) Class() int { return r.Code / 100 }

// Status returns the enhanced code of the first line, or X.0.0 (RFC 2034 §4).
func (r Reply) Status() status.Code { return status.OfReply(r.Code, r.firstLine()) }

func (r Reply) firstLine() string {
	first, _, _ := strings.Cut(r.Text, "\n")
	return first
}

// String returns the reply on one line: "550 5.1.1 no such user". The enhanced code,
// which servers repeat on every line (RFC 2034 section 4), is kept once.
func (r Reply) String() string {
	if !strings.Contains(r.Text, "\n") {
		return strconv.Itoa(r.Code) + " " + r.Text
	}
	lines := strings.Split(r.Text, "\n")
	code, _, _ := strings.Cut(lines[0], " ")
	_, enhanced := status.Parse(code)
	for i, l := range lines[1:] {
		if enhanced {
			if rest, ok := strings.CutPrefix(l, code); ok && (rest == "" || rest[0] == ' ') {
				lines[i+1] = strings.TrimPrefix(rest, " ")
			}
		}
	}
	return strconv.Itoa(r.Code) + " " + strings.Join(lines, " ")
}

// readReply reads one reply, of one or several lines. An error that is not the
// connection's wraps ErrNoReply; the two sides are out of step then.
func readReply(r *bufio.Reader) (Reply, error) {
	line, err := readLine(r)
	if err != nil {
		return Reply{}, err
	}
	code, text, more, err := parseLine(line)
	if err != nil {
		return Reply{}, err
	}
	if !more {
		return Reply{Code: code, Text: clean(text)}, nil
	}
	var b strings.Builder
	b.WriteString(clean(text))
	for total := len(line); more; {
		if line, err = readLine(r); err != nil {
			return Reply{}, err
		}
		if total += len(line); total > maxReplyBytes {
			return Reply{}, fmt.Errorf("%w: more than %d bytes", ErrNoReply, maxReplyBytes)
		}
		var c int
		if c, text, more, err = parseLine(line); err != nil {
			return Reply{}, err
		}
		// RFC 5321 §4.2.1: the code is the same on every line.
		if c != code {
			return Reply{}, fmt.Errorf("%w: code %d, then %d", ErrNoReply, code, c)
		}
		if b.Len()+1+len(text) <= maxReply {
			b.WriteByte('\n')
			b.WriteString(clean(text))
		}
	}
	return Reply{Code: code, Text: b.String()}, nil
}

// wholeReply reports whether bytes begin with a whole reply.
func wholeReply(b []byte) bool {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return false
		}
		if i < 4 || b[3] != '-' {
			return true
		}
		b = b[i+1:]
	}
}

// readLine reads a line without its end, which may lack the CR. It is valid until
// the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrNoReply, r.Size())
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

// parseLine parts a reply line: three digits, then a blank, a hyphen if more lines
// follow, or nothing.
func parseLine(line []byte) (code int, text []byte, more bool, err error) {
	bad := func() error { return fmt.Errorf("%w: %.80q", ErrNoReply, line) }
	if len(line) < 3 || line[0] < '2' || line[0] > '5' {
		return 0, nil, false, bad()
	}
	for _, d := range line[:3] {
		if d < '0' || d > '9' {
			return 0, nil, false, bad()
		}
		code = code*10 + int(d-'0')
	}
	if len(line) == 3 {
		return code, nil, false, nil
	}
	if line[3] != ' ' && line[3] != '-' {
		return 0, nil, false, bad()
	}
	return code, line[4:], line[3] == '-', nil
}

// clean makes a server's text fit for one line of a diagnostic: control characters, and those that
// are not seen or turn the text around, become blanks, invalid UTF-8 becomes question marks.
func clean(text []byte) string {
	dirty := false
	for _, b := range text {
		if b < ' ' || b >= 0x7f {
			dirty = true
			break
		}
	}
	s := string(text)
	if !dirty {
		return s
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || 0x7f <= r && r < 0xa0 || human.Unseen(r) {
			return ' '
		}
		return r
	}, s)
}
