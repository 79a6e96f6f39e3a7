package contentrules

import (
	"bufio"
	"bytes"
	"io"
	"mime"
	"strings"

	"zmailer/internal/mail/envelope"
)

const (
	// MaxHeader is how long a message's header may be for a scan: each of many clients may send
	// one. Bytes.
	MaxHeader = 512 << 10
	// maxFields is how many fields it may have.
	maxFields = 5000
	// maxField is how much of a field of a part is looked at (Postfix's header_size_limit).
	maxField = 102400
	// maxLine is how much of a line is looked at; the rest is a line of its own (Postfix's
	// line_length_limit).
	maxLine = 2048
	// maxDepth is how many multiparts in each other are known, maxBoundary how long the
	// boundary of one may be: Postfix's mime_nesting_limit, mime_boundary_length_limit. It fits in a line.
	maxDepth    = 100
	maxBoundary = 1000
	// DefaultBodySize is how much of each part's body is looked at (Postfix's
	// body_checks_size_limit). Bytes.
	DefaultBodySize = 51200
)

// Scanner looks at a message that is written to it, with LF line ends, header first. It keeps
// the header, and of what follows one field or line.
type Scanner struct {
	rules *Rules // nil: only the header is kept
	below bool   // rules concern the content below the header
	from  Origin
	limit int // bytes of each body

	head    []byte // the message's header, then one field of a part
	line    []byte // what was written since the last newline
	more    bool   // it goes on with a line of which a piece was looked at
	state   place
	seen    bool    // the message's header has ended
	fields  int     // of it
	tooLong bool    // it did not within MaxHeader
	left    int     // bytes of the present body that are looked at
	bounds  []bound // of the multiparts that are open
	// kind is what the header that is read declares.
	kind    partKind
	outcome Outcome
	top     []byte // the message's header when it has ended
	over    rest   // of a field that is longer than what is looked at
	copy    *copyWriter
}

// rest is what becomes of the rest of a field whose begin was looked at.
type rest uint8

const (
	restNone    rest = iota
	restStays        // the field stays
	restRemoved      // it was replaced or removed
)

// copyWriter writes a content as the rules leave it.
type copyWriter struct {
	w      *bufio.Writer
	header bool // the message's header is written, too
	open   bool // a line was begun
	end    bool // a line has ended; its newline is written with what follows
}

func (c *copyWriter) put(b string, end bool) {
	if c.end {
		_ = c.w.WriteByte('\n') // Flush returns the error
	}
	_, _ = c.w.WriteString(b)
	c.open, c.end = !end, end
}

// Edits reports whether a rule may change the content below the message's header.
func (s *Scanner) Edits() bool { return s.rules != nil && s.rules.editContent(s.from) }

// Rewrite reads the content that was scanned once more, header first, and writes what is below the
// header as the rules leave it, whole with the header.
func (s *Scanner) Rewrite(w io.Writer, content io.Reader, whole bool) error {
	out := bufio.NewWriter(w)
	again := &Scanner{rules: s.rules, from: s.from, limit: s.limit, below: true, copy: &copyWriter{w: out, header: whole}}
	if _, err := io.Copy(again, content); err != nil {
		return err
	}
	again.End()
	return out.Flush()
}

type partKind struct {
	typed    bool   // by a Content-Type
	boundary string // of a multipart
	digest   bool   // its parts are messages, unless they say otherwise (RFC 2046 section 5.1.5)
	message  bool   // message/rfc822, message/global
}

type bound struct {
	boundary string
	digest   bool
}

// Scan begins to look at a message. limit is how much of each body is looked at; 0:
// DefaultBodySize.
func (r *Rules) Scan(from Origin, limit int) *Scanner {
	if limit <= 0 {
		limit = DefaultBodySize
	}
	s := &Scanner{rules: r, from: from, limit: limit, below: r.ConcernContent(from)}
	if !r.Concern(from) {
		s.rules = nil
	}
	return s
}

// Write implements io.Writer; it never fails.
func (s *Scanner) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 && !s.done() {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			s.part(b)
			break
		}
		s.part(b[:i])
		if !s.done() {
			s.endLine()
		}
		b = b[i+1:]
	}
	return n, nil
}

// done reports whether nothing more can be found.
func (s *Scanner) done() bool {
	if !s.seen {
		return s.tooLong
	}
	return s.copy == nil && (s.outcome.final() || !s.below)
}

// part takes a piece of a line.
func (s *Scanner) part(b []byte) {
	if !s.seen {
		if len(s.head)+len(s.line)+len(b) > MaxHeader {
			s.tooLong = true
			return
		}
		s.line = append(s.line, b...)
		return
	}
	for len(s.line)+len(b) > maxLine {
		n := maxLine - len(s.line)
		s.line = append(s.line, b[:n]...)
		b = b[n:]
		s.whole(true)
	}
	s.line = append(s.line, b...)
}

func (s *Scanner) endLine() { s.whole(false) }

// whole takes the line that has come; goes: it is longer, and the rest follows.
func (s *Scanner) whole(goes bool) {
	line, more := s.line, s.more
	s.line, s.more = s.line[:0], goes
	if s.state == inBody {
		s.bodyLine(line, more, goes)
		return
	}
	switch {
	case more:
		s.add(line, goes)
	case len(line) == 0 && !goes:
		top := s.state == inHeader
		s.endHeader()
		if s.copy != nil && (!top || s.copy.header) {
			s.write("", true)
		}
	case len(line) > 0 && (line[0] == ' ' || line[0] == '\t'):
		s.add(line, goes)
	case s.state == inHeader:
		if s.fields++; s.fields > maxFields {
			s.tooLong = true
		}
		s.add(line, goes)
	case s.boundary(line, goes):
	case !isField(line):
		// Programs take it for the begin of the body.
		s.endHeader()
		s.bodyLine(line, false, goes)
	default:
		s.flush()
		s.add(line, goes)
	}
}

func isField(line []byte) bool {
	f := envelope.Fields(line)
	return len(f) == 1 && f[0].Name != ""
}

// write writes to the copy, if one is made.
func (s *Scanner) write(text string, end bool) {
	if s.copy != nil {
		s.copy.put(text, end)
	}
}

// add adds a line, or a piece of one, to the header that is read.
func (s *Scanner) add(line []byte, goes bool) {
	if s.state != inHeader && s.over == restNone && len(s.head)+len(line) > maxField {
		s.over = s.field()
	}
	switch {
	case s.over == restStays:
		s.write(string(line), !goes)
		return
	case s.over == restRemoved:
		return
	}
	s.head = append(s.head, line...)
	if !goes {
		s.head = append(s.head, '\n')
	}
}

// flush ends a field of a part's header.
func (s *Scanner) flush() {
	if s.over == restNone && len(s.head) > 0 {
		s.field()
	}
	s.over = restNone
}

// field follows the rules about the field that was read, and returns what becomes of the rest of it.
func (s *Scanner) field() rest {
	text, ended := strings.CutSuffix(string(s.head), "\n")
	s.head = s.head[:0]
	s.declare(envelope.Fields([]byte(text + "\n")))
	if s.outcome.final() && s.copy == nil {
		return restStays
	}
	out, changed := s.rules.part(s.state, s.from, text, &s.outcome)
	if !changed {
		s.write(text, ended)
		return restStays
	}
	stays := len(out) > 0 && out[len(out)-1] == text
	for i, one := range out {
		s.write(one, ended || !stays || i < len(out)-1)
	}
	if stays {
		return restStays
	}
	return restRemoved
}

// endHeader ends the header that is read.
func (s *Scanner) endHeader() {
	if s.state == inHeader {
		s.seen, s.top, s.head = true, s.head, nil
		if s.copy != nil && s.copy.header && len(s.top) > 0 {
			s.write(strings.TrimSuffix(string(s.top), "\n"), true)
		}
		fields := envelope.Fields(s.top)
		s.declare(fields)
		if s.rules != nil {
			s.rules.header(fields, s.from, &s.outcome, false)
		}
	} else {
		s.flush()
	}
	s.state, s.left = inBody, s.limit
	kind := s.kind
	s.kind = partKind{}
	switch {
	case kind.boundary != "" && len(s.bounds) < maxDepth:
		s.bounds = append(s.bounds, bound{kind.boundary, kind.digest})
	case kind.message:
		s.state = inNested
	}
}

// declare notes the first Content-Type of a header (RFC 2045 section 5).
func (s *Scanner) declare(fields []envelope.Field) {
	for _, f := range fields {
		if s.kind.typed || !strings.EqualFold(f.Name, "Content-Type") {
			continue
		}
		s.kind = partKind{typed: true}
		value := f.Value()
		// A parameter that is broken does not hide the boundary: programs read it anyway.
		kind, params, err := mime.ParseMediaType(value)
		if err != nil {
			kind, params = roughly(value)
		}
		switch {
		case strings.HasPrefix(kind, "multipart/"):
			s.kind.boundary, s.kind.digest = params["boundary"], kind == "multipart/digest"
			if b := s.kind.boundary; len(b) > maxBoundary {
				s.kind.boundary = b[:maxBoundary]
			}
		case kind == "message/rfc822" || kind == "message/global" || kind == "message/news":
			s.kind.message = true
		}
	}
}

// roughly reads type and boundary of a Content-Type that is none by RFC 2045.
func roughly(value string) (kind string, params map[string]string) {
	kind, rest, _ := strings.Cut(strings.ToLower(value), ";")
	kind = strings.TrimSpace(kind)
	i := strings.Index(rest, "boundary")
	if i < 0 {
		return kind, nil
	}
	raw := strings.TrimLeft(value[len(value)-len(rest)+i+len("boundary"):], " \t=")
	if raw != "" && raw[0] == '"' {
		raw, _, _ = strings.Cut(raw[1:], `"`)
	} else if end := strings.IndexAny(raw, "; \t"); end >= 0 {
		raw = raw[:end]
	}
	return kind, map[string]string{"boundary": raw}
}

// boundary reports whether a line begins or ends a part, and does so.
func (s *Scanner) boundary(line []byte, goes bool) bool {
	if len(s.bounds) == 0 || len(line) < 3 || line[0] != '-' || line[1] != '-' {
		return false
	}
	for i := len(s.bounds) - 1; i >= 0; i-- {
		b := s.bounds[i].boundary
		// RFC 2046 section 5.1.1; as Postfix, with what follows on the line.
		if len(line)-2 < len(b) || string(line[2:2+len(b)]) != b {
			continue
		}
		if s.state != inBody {
			s.flush()
		}
		// Postfix, too, gives it to the rules about the body.
		s.bodyRules(line, goes)
		s.kind = partKind{}
		if bytes.HasPrefix(line[2+len(b):], []byte("--")) {
			s.bounds = s.bounds[:i]
			s.state, s.left = inBody, s.limit
		} else {
			s.bounds = s.bounds[:i+1]
			s.kind.message = s.bounds[i].digest
			s.state = inPart
		}
		return true
	}
	return false
}

// bodyLine takes a line of a body, or a piece of one.
func (s *Scanner) bodyLine(line []byte, more, goes bool) {
	if !more && s.boundary(line, goes) {
		return
	}
	if s.left <= 0 {
		s.write(string(line), !goes)
		return
	}
	s.left -= len(line) + 1
	s.bodyRules(line, goes)
}

func (s *Scanner) bodyRules(line []byte, goes bool) {
	if s.copy == nil && (len(s.rules.steps[inBody]) == 0 || s.outcome.final()) {
		return
	}
	text := string(line)
	out, changed := s.rules.part(inBody, s.from, text, &s.outcome)
	if !changed {
		s.write(text, !goes)
		return
	}
	for i, one := range out {
		s.write(one, !goes || i < len(out)-1)
	}
	if s.copy != nil && len(out) == 0 && !goes && s.copy.open {
		s.write("", true) // the line that the removed piece ends
	}
}

// Outcome returns what is decided so far.
func (s *Scanner) Outcome() *Outcome { return &s.outcome }

// TooLong reports whether the message's header did not end within MaxHeader: its rules cannot
// be followed.
func (s *Scanner) TooLong() bool { return s.tooLong }

// End ends the message and returns what is decided about it.
func (s *Scanner) End() *Outcome {
	ended := len(s.line) == 0 && !s.more
	if !s.done() && !ended {
		s.endLine()
	}
	if !s.seen && !s.tooLong {
		s.endHeader()
	} else if !s.done() && s.state != inBody {
		s.flush()
	}
	if s.copy != nil && s.copy.end && ended {
		_ = s.copy.w.WriteByte('\n')
	}
	return &s.outcome
}

// Header returns the message's own header, once it has ended.
func (s *Scanner) Header() []byte { return s.top }
