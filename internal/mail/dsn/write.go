package dsn

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/emersion/go-message/textproto"

	"zmailer/internal/mail/address"
)

// dateFormat is RFC 5322 §3.3's.
const dateFormat = "Mon, 02 Jan 2006 15:04:05 -0700"

// RFC 5322 section 2.1.1: the hard limit and the recommended one, without line end. Bytes.
const (
	maxLine = 998
	foldAt  = 78
)

// returnedBuffer is how much of the original is read before its part's
// header is written, and how much is held at once. Bytes.
const returnedBuffer = 32 << 10

// Write writes headers and body of the report with LF line ends. It reads Original
// to its end and holds no more than a buffer of it; its bytes are copied unchanged.
func Write(w io.Writer, r *Report) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	out := &lineEnds{w: bufio.NewWriterSize(w, returnedBuffer)}
	if err := r.write(out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := out.w.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) check() error {
	if len(r.Recipients) == 0 {
		return errors.New("no recipients")
	}
	for i := range r.Recipients {
		if a := r.Recipients[i].Action; !slices.Contains(actions(), a) {
			return fmt.Errorf("recipient %.300q: action %q", r.Recipients[i].Final, a)
		}
	}
	if r.Encoding == "quoted-printable" && r.Full {
		return errors.New("a message must not be encoded (RFC 2046 §5.2.1)")
	}
	for _, s := range []string{r.From, r.To} {
		m, err := address.Parse(s)
		if err != nil {
			return err
		}
		if m.IsNull() {
			return errors.New("the null sender neither sends nor gets reports")
		}
	}
	return nil
}

func (r *Report) write(out *lineEnds) error {
	subject, body, language, err := r.words()
	if err != nil {
		return err
	}
	mw := textproto.NewMultipartWriter(out)
	if r.Boundary != "" {
		if err := mw.SetBoundary(r.Boundary); err != nil {
			return err
		}
	}
	original, encoding, err := r.peek()
	if err != nil {
		return err
	}
	eight := encoding == "8bit" || r.utf8()
	if err := textproto.WriteHeader(out, r.header(mw.Boundary(), subject, eight)); err != nil {
		return err
	}
	if err := r.writeHuman(mw, body, language); err != nil {
		return err
	}
	if err := r.writeStatus(mw); err != nil {
		return err
	}
	if r.Original != nil {
		if err := r.writeOriginal(mw, out, original, encoding); err != nil {
			return err
		}
	}
	return mw.Close()
}

// utf8 reports whether the report itself needs SMTPUTF8.
func (r *Report) utf8() bool {
	return r.UTF8 || !isASCII(r.To) || !isASCII(r.From)
}

// header returns the report's own (RFC 3464 §2, RFC 3834 §3.1 and §5).
func (r *Report) header(boundary, subject string, eight bool) textproto.Header {
	encoding := "" // 7bit need not be said
	if eight {
		encoding = "8bit" // of a part, so of the whole (RFC 2045 §6.4)
	}
	kind := mime.FormatMediaType("multipart/report", map[string]string{
		"report-type": "delivery-status", "boundary": boundary,
	})
	return fields{
		{"From", `"Mail Delivery System" <` + mailbox(r.From) + ">", true},
		{"To", "<" + mailbox(r.To) + ">", true},
		{"Subject", mime.QEncoding.Encode("utf-8", subject), false},
		{"Date", r.Date.Format(dateFormat), false},
		{"Message-ID", text(r.MessageID, true), false},
		{"In-Reply-To", messageID(r.InReplyTo), false},
		{"References", messageID(r.InReplyTo), false},
		{"Auto-Submitted", "auto-replied", false},
		{"MIME-Version", "1.0", false},
		{"Content-Type", kind, false},
		{"Content-Transfer-Encoding", encoding, false},
	}.header()
}

// mailbox returns an address as a header has it; check has seen that it is one.
func mailbox(s string) string {
	m, err := address.Parse(s)
	if err != nil {
		return text(s, true)
	}
	return m.String()
}

// fields are header fields in the order in which they are to be written.
type fields []field

// A whole field is not folded while that is possible: blanks in an address count.
type field struct {
	name, value string
	whole       bool
}

// raw returns the field as it is written; nothing for a field without a value. Names
// keep the spelling of their RFC.
func (f field) raw() []byte {
	if f.value == "" {
		return nil
	}
	b := append([]byte(f.name), ':')
	if f.whole && len(b)+1+len(f.value) <= maxLine {
		b = append(append(b, ' '), f.value...)
		return append(b, '\r', '\n')
	}
	line := len(b)
	for word := range strings.FieldsSeq(f.value) {
		// A first word stays beside the name, so that no line is but a name.
		if line+1+len(word) > foldAt && line > len(f.name)+1 {
			b = append(b, '\r', '\n')
			line = 0
		}
		b = append(append(b, ' '), word...)
		line += 1 + len(word)
	}
	return append(b, '\r', '\n')
}

// header is for those who write the empty line after it themselves.
func (f fields) header() textproto.Header {
	var h textproto.Header
	for _, one := range slices.Backward(f) {
		if raw := one.raw(); raw != nil {
			h.AddRaw(raw)
		}
	}
	return h
}

// write writes the fields and no empty line.
func (f fields) write(w io.Writer) error {
	for _, one := range f {
		if _, err := w.Write(one.raw()); err != nil {
			return err
		}
	}
	return nil
}

// messageID returns a well-formed one, or nothing (RFC 5322 §3.6.4).
func messageID(s string) string {
	inner, ok := strings.CutPrefix(strings.TrimSpace(s), "<")
	inner, closed := strings.CutSuffix(inner, ">")
	if !ok || !closed || len(inner) > maxWord || !strings.Contains(inner, "@") {
		return ""
	}
	for i := 0; i < len(inner); i++ {
		if b := inner[i]; b <= ' ' || b >= 0x7f || b == '<' || b == '>' {
			return ""
		}
	}
	return "<" + inner + ">"
}

// writeHuman writes the human-readable part (RFC 6522 section 3, first part).
func (r *Report) writeHuman(mw *textproto.MultipartWriter, body, language string) error {
	charset, encoding := "us-ascii", "7bit"
	if !isASCII(body) {
		charset, encoding = "utf-8", "quoted-printable"
		if r.utf8() {
			encoding = "8bit"
		}
	}
	p, err := mw.CreatePart(fields{
		{"Content-Description", "What happened", false},
		{"Content-Type", "text/plain; charset=" + charset, false},
		{"Content-Language", language, false}, // RFC 3282 §2
		{"Content-Transfer-Encoding", encoding, false},
	}.header())
	if err != nil {
		return err
	}
	if encoding != "quoted-printable" {
		_, err := io.WriteString(p, body)
		return err
	}
	q := quotedprintable.NewWriter(p)
	if _, err := io.WriteString(q, body); err != nil {
		return err
	}
	return q.Close()
}

// peek opens the original and gives its encoding, "" if there is none.
func (r *Report) peek() (original *bufio.Reader, encoding string, err error) {
	if r.Original == nil {
		return nil, "", nil
	}
	original = bufio.NewReaderSize(r.Original, returnedBuffer)
	start, err := original.Peek(returnedBuffer)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", fmt.Errorf("read original: %w", err)
	}
	switch {
	case r.Encoding != "":
		encoding = r.Encoding
	case err != nil && isASCII(string(start)):
		encoding = "7bit" // the whole of it has been seen
	default:
		encoding = "8bit"
	}
	return original, encoding, nil
}

// writeOriginal writes the third part (RFC 6522 §3, RFC 6533 §4).
func (r *Report) writeOriginal(mw *textproto.MultipartWriter, out *lineEnds, original io.Reader, encoding string) error {
	kind, what := "text/rfc822-headers", "Header of the message"
	switch global := r.utf8() && !r.Legacy; {
	case r.Full && global:
		kind, what = "message/global", "The message"
	case r.Full:
		kind, what = "message/rfc822", "The message"
	case global:
		kind = "message/global-headers"
	}
	p, err := mw.CreatePart(fields{
		{"Content-Description", what, false},
		{"Content-Type", kind, false},
		{"Content-Transfer-Encoding", encoding, false},
	}.header())
	if err != nil {
		return err
	}
	if encoding != "quoted-printable" {
		return out.copyRaw(original)
	}
	q := quotedprintable.NewWriter(p)
	if _, err := io.Copy(q, original); err != nil {
		return fmt.Errorf("encode original: %w", err)
	}
	return q.Close()
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// lineEnds writes CRLF as LF, because a message file has LF; text that is copied raw
// keeps its bytes.
type lineEnds struct {
	w  *bufio.Writer
	cr bool // a CR waits for what follows
}

func (l *lineEnds) Write(b []byte) (int, error) {
	for _, c := range b {
		if l.cr && c != '\n' {
			l.w.WriteByte('\r')
		}
		if l.cr = c == '\r'; l.cr {
			continue
		}
		l.w.WriteByte(c)
	}
	// bufio keeps its first error and gives it on every later call.
	_, err := l.w.Write(nil)
	return len(b), err
}

// copyRaw copies without touching a byte.
func (l *lineEnds) copyRaw(from io.Reader) error {
	if l.cr {
		l.w.WriteByte('\r')
		l.cr = false
	}
	// WriteTo and ReadFrom do not distinguish the errors of the two sides.
	buf := make([]byte, 4<<10)
	for {
		n, err := from.Read(buf)
		if _, werr := l.w.Write(buf[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read original: %w", err)
		}
	}
}
