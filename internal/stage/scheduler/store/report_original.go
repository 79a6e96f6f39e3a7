package store

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
)

// describeMessage sets what the report says of the message as a whole.
func (s *Store) describeMessage(f *work, o *owed, rep *dsn.Report) {
	if !f.noMessage {
		rep.SpoolID = f.id.String()
	}
	if id, err := address.DecodeXText(o.r.EnvID); err == nil {
		rep.EnvID = id
	}
	var accept, content string
	received := false
	for _, field := range envelope.Fields(f.header(o.g)) {
		switch strings.ToLower(field.Name) {
		case "received":
			if !received { // the first one is the router's
				rep.ReceivedFrom = receivedFrom(field.Value())
			}
			received = true
		case "message-id":
			rep.InReplyTo = field.Value()
		case "accept-language":
			accept = field.Value()
		case "content-language":
			content = field.Value()
		}
	}
	texts := s.Conf.Current().Reports.Texts
	if texts == nil {
		return
	}
	rep.Texts, rep.Language = texts, texts.Choose(accept, content)
	rep.Trouble = func(language, kind string, err error) {
		s.Log.Warn("report-text", "id", f.id, "name", f.Name, "file", "reports/"+language+"/"+kind, "reason", err.Error(),
			"advice", "the built-in text was used; mend this one")
	}
}

// receivedFrom is the host that a Received field names, with its comment (RFC 3464
// §2.2.4).
func receivedFrom(value string) string {
	rest, ok := strings.CutPrefix(value, "from ")
	if !ok {
		return ""
	}
	host, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
	host, _, _ = strings.Cut(host, "\t")
	rest = strings.TrimLeft(rest, " \t")
	if !strings.HasPrefix(rest, "(") {
		return host
	}
	depth := 0
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			return host + " " + rest[:i+1]
		}
	}
	return host
}

// original sets what of the message the report returns. further: an earlier report
// has returned it already.
func (s *Store) original(f *work, o *owed, rep *dsn.Report, further bool) (done func(), err error) {
	whole, done, err := s.whole(f, o, rep, further)
	if whole || err != nil {
		return done, err
	}
	header := capped(f.header(o.g), s.Conf.Current().Reports.Size)
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

// whole sets that the report returns all of the message, if it may: RFC 3461 §4.3, only a
// failure report does. A message cannot be encoded (RFC 2046 §5.2.1): with lines that
// nobody may send it stays here.
func (s *Store) whole(f *work, o *owed, rep *dsn.Report, further bool) (whole bool, done func(), err error) {
	nothing := func() {}
	if o.kind != kindFailed || further || strings.EqualFold(o.r.Ret, "HDRS") {
		return false, nothing, nil
	}
	msg, info, err := f.OpenMessage()
	if errors.Is(err, postoffice.ErrGone) {
		return false, nothing, nil // removed by hand; the headers are here
	}
	if err != nil {
		return false, nil, err
	}
	header, size := f.header(o.g), info.Size-f.spec.BodyOffset
	if limit := s.Conf.Current().Reports.Limit(o.r.Ret); limit > 0 && info.Size > limit || size < 0 {
		return false, nothing, msg.Close()
	}
	b, err := survey(io.NewSectionReader(msg, f.spec.BodyOffset, size))
	if err != nil || b.odd {
		return false, nothing, errors.Join(err, msg.Close())
	}
	h, err := surveyHeader(header, rep)
	if err != nil || h.odd {
		return false, nothing, errors.Join(err, msg.Close())
	}
	b.eight = b.eight || h.eight
	rep.Full, rep.Encoding = true, b.encoding()
	rep.Original = io.MultiReader(bytes.NewReader(header), strings.NewReader("\n"), io.NewSectionReader(msg, f.spec.BodyOffset, size))
	return true, func() {
		// Opened for reading: close has nothing to lose.
		_ = msg.Close()
	}, nil
}

// capped is a header block up to a size, 0 for any: whole fields, as long as the first one
// is no larger than that.
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
