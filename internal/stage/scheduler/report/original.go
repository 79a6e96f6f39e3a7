package report

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/envelope"
)

// surveyHeader is survey of a header block that is returned, and sets what its bytes say of
// the report.
func surveyHeader(header []byte, rep *dsn.Report) (shape, error) {
	h, err := survey(bytes.NewReader(header))
	switch {
	case err != nil || !h.eight:
	case utf8.Valid(header):
		rep.UTF8 = true // its sender knows SMTPUTF8
	default:
		rep.Legacy = true
	}
	return h, err
}

// Message is the message that is reported on.
type Message struct {
	io.ReaderAt
	io.Closer
	Size, Body int64 // of the file, and where in it the body begins
}

// original sets what of the message the report returns.
func (r *Report) original(rep *dsn.Report) (done func(), err error) {
	whole, done, err := r.whole(rep)
	if whole || err != nil {
		return done, err
	}
	header := capped(r.Header, r.Conf.Size)
	h, err := surveyHeader(header, rep)
	if err != nil {
		return nil, err
	}
	rep.Original, rep.Encoding = bytes.NewReader(header), h.encoding()
	if h.odd {
		rep.Encoding = "quoted-printable"
	}
	return done, nil
}

// whole has the report return the whole message, if it may: only a report of failures does
// (RFC 3461 section 4.3). A message/rfc822 part cannot be encoded (RFC 2046 section 5.2.1),
// so a message with lines that SMTP does not allow is not returned.
func (r *Report) whole(rep *dsn.Report) (whole bool, done func(), err error) {
	nothing := func() {}
	if r.Kind != Failed || r.Returned || strings.EqualFold(r.Ret, "HDRS") {
		return false, nothing, nil
	}
	m, err := r.Open()
	if m == nil || err != nil {
		return false, nothing, err // removed by hand: the headers are in the specification
	}
	size := m.Size - m.Body
	if limit := r.Conf.Limit(r.Ret); limit > 0 && m.Size > limit || size < 0 {
		return false, nothing, m.Close()
	}
	b, err := survey(io.NewSectionReader(m, m.Body, size))
	if err != nil || b.odd {
		return false, nothing, errors.Join(err, m.Close())
	}
	h, err := surveyHeader(r.Header, rep)
	if err != nil || h.odd {
		return false, nothing, errors.Join(err, m.Close())
	}
	b.eight = b.eight || h.eight
	rep.Full, rep.Encoding = true, b.encoding()
	rep.Original = io.MultiReader(bytes.NewReader(r.Header), strings.NewReader("\n"), io.NewSectionReader(m, m.Body, size))
	return true, func() {
		// Opened for reading: close has nothing to lose.
		_ = m.Close()
	}, nil
}

// capped returns a header block up to a size, 0 for any: whole fields, as long as the first
// one is no larger than that.
func capped(header []byte, size int64) []byte {
	if size <= 0 || int64(len(header)) <= size {
		return header
	}
	n := 0
	for _, field := range envelope.Fields(header) {
		if int64(n+len(field.Raw)) > size {
			break
		}
		n += len(field.Raw)
	}
	if n == 0 {
		n = bytes.LastIndexByte(header[:size], '\n') + 1
	}
	if n == 0 {
		return append(bytes.Clone(header[:size]), '\n')
	}
	return header[:n]
}

// shape is what kind of bytes a text has.
type shape struct {
	eight bool // some are not ASCII
	odd   bool // RFC 5321 does not allow them: NUL, a CR, a line above 998 bytes
}

func (s shape) encoding() string {
	if s.eight {
		return "8bit"
	}
	return "7bit"
}

// survey reads a text to its end, in constant memory.
func survey(r io.Reader) (shape, error) {
	const longest = 998
	var s shape
	line := 0
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		for _, c := range buf[:n] {
			line++
			switch {
			case c == '\n':
				line = 0
			case c >= utf8.RuneSelf:
				s.eight = true
			case c == 0 || c == '\r':
				s.odd = true
			}
			s.odd = s.odd || line > longest
		}
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return s, err
		}
	}
}
