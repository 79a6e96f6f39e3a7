package downgrade

import "bytes"

// method is the conversion of a leaf's bytes.
type method uint8

const (
	keep    method = iota
	quoted         // encode as quoted-printable
	base64d        // encode as base64
	escape         // quoted-printable already: escape what it does not allow, break long lines
	wrap           // base64 already: break long lines
)

// encodingLine is about how much a header grows.
const encodingLine = 40

// choice is what becomes of one part.
type choice struct {
	encoding string // new Content-Transfer-Encoding; "": the header stays as it is
	method   method
	bare     bool // Content-Type is added
	raw      bool // of base64: line ends are bytes of the content
}

// inspector chooses for each part.
type inspector struct {
	plan *Plan
	leaf part // that is being read
	seen counts
}

// counts is what a leaf's content is made of.
type counts struct {
	bytes, lines int64
	high         int64 // bytes that quoted-printable has to encode
	eight        bool  // bytes above 127, or NUL
	bareCR       bool
	nul          bool
	cr           bool // the last byte was a CR
	line         int  // length of the line being read
	longest      int
	encoded      encoded
}

// encoded is what quoted-printable content is made of besides.
type encoded struct {
	white   int // white space and = signs at the end of the line so far
	whitest int
	equals  int   // = signs at its end, or before the digit at its end
	digit   bool  // there is one
	coded   int64 // bytes that are not allowed
	// unclear: two = signs precede a byte that is not allowed. For some readers they
	// are one sign, and it cannot be said for both kinds what the byte is.
	unclear bool
}

func (in *inspector) open(p *part, header []byte) error {
	in.leaf, in.seen = *p, counts{}
	if len(in.plan.choices) > 0 {
		in.plan.Size += int64(len(header)) // the first is counted when it is changed
	}
	var c choice
	if p.kind == kindMultipart || p.kind == kindMessage {
		in.relabel(&c, p)
	}
	in.plan.choices = append(in.plan.choices, c)
	if p.spoiled && !in.plan.eight {
		return &Error{notSupported, p.doubt}
	}
	return nil
}

// relabel gives what holds parts the encoding of the widest of them (RFC 2045 §6.4).
func (in *inspector) relabel(c *choice, p *part) {
	switch {
	case p.inside:
	case p.encoding == "binary" && in.plan.eight:
		c.encoding = "8bit"
	case (p.encoding == "binary" || p.encoding == "8bit") && !in.plan.eight:
		c.encoding = "7bit"
	}
	// The label 8bit alone is not worth a broken signature.
	in.plan.changed = in.plan.changed || c.encoding != "" && p.encoding == "binary"
}

// What a byte is, besides a character of a line.
const (
	isHigh = 1 << iota // quoted-printable has to encode it
	is8bit
	isCR
	isNUL
)

var class = func() (t [256]uint8) {
	for c := range t {
		if c >= 0x80 || c < ' ' && c != '\t' || c == 0x7f || c == '=' {
			t[c] = isHigh
		}
		if c >= 0x80 || c == 0 {
			t[c] |= is8bit
		}
	}
	t['\n'] = 0
	t['\r'] |= isCR
	t[0] |= isNUL
	return t
}()

func (in *inspector) content(b []byte) {
	s := &in.seen
	s.bytes += int64(len(b))
	for len(b) > 0 {
		line := b
		end := bytes.IndexByte(b, '\n')
		if end >= 0 {
			line, b = b[:end], b[end+1:]
		} else {
			b = nil
		}
		s.text(line, in.leaf.encoding == encodingQuoted)
		if end >= 0 {
			s.longest = max(s.longest, s.line)
			s.line, s.cr = 0, false
			s.encoded.white, s.encoded.equals = 0, 0
			s.lines++
		}
	}
}

// text counts the kinds of bytes in a line.
func (s *counts) text(line []byte, encoded bool) {
	if len(line) == 0 {
		return
	}
	var all uint8
	high := 0
	for _, c := range line {
		f := class[c]
		all |= f
		high += int(f & isHigh)
	}
	s.high += int64(high)
	s.line += len(line)
	s.eight = s.eight || all&is8bit != 0
	s.nul = s.nul || all&isNUL != 0
	s.bareCR = s.bareCR || s.cr
	s.cr = false
	if all&isCR != 0 {
		last := len(line) - 1
		s.bareCR = s.bareCR || bytes.IndexByte(line[:last], '\r') >= 0
		s.cr = line[last] == '\r'
	}
	if encoded {
		s.encoded.text(line)
	}
}

func (e *encoded) text(line []byte) {
	for _, c := range line {
		e.white++
		switch {
		case c == '=':
			if e.digit {
				e.equals = 0
			}
			e.equals, e.digit = e.equals+1, false
		case c == ' ' || c == '\t' || c == '\r':
			e.unclear = e.unclear || e.equals > 1 && c == '\r'
			e.equals = 0
		case isHex(c) && e.equals > 0 && !e.digit:
			e.white, e.digit = 0, true
			continue
		default:
			e.unclear = e.unclear || e.equals > 1 && class[c]&isHigh != 0
			e.white, e.equals = 0, 0
			e.coded += int64(class[c] & isHigh)
		}
		e.whitest = max(e.whitest, e.white)
		e.digit = e.digit && e.equals > 0
	}
}

// firm reports whether the content can be changed.
func (e *encoded) firm() bool { return e.whitest <= maxWhite && !e.unclear }

func (in *inspector) frame(b []byte) { in.plan.Size += int64(len(b)) }

// maxWhite is the longest run of white space where a line of quoted-printable is
// broken: it must not be broken itself, as that at the end of a line does not count. Bytes.
const maxWhite = 800

// close chooses for the leaf that ends.
func (in *inspector) close(doubt string) error {
	s, p := &in.seen, &in.leaf
	s.longest = max(s.longest, s.line)
	s.bareCR = s.bareCR || s.cr
	c := &in.plan.choices[len(in.plan.choices)-1]
	binary := p.encoding == "binary" && p.kind != kindFrame
	must := s.eight && (!in.plan.eight || binary) || binary && p.kind == kindLeaf
	if p.inside {
		// The label alone is not worth a failure (RFC 2045 §2.8 says what 8bit content is).
		must = s.eight && !in.plan.eight || binary && (s.nul || s.bareCR || s.longest > maxLine)
	}
	if !must && !in.recommended(doubt) {
		if p.encoding == "8bit" && !in.plan.eight && !p.inside && doubt == "" {
			c.encoding = "7bit" // which it was all the time
		}
		in.plan.Size += s.bytes
		return nil
	}
	switch {
	case p.inside:
		return &Error{prohibited, "a signed part would change (RFC 1847)"}
	case doubt != "":
		return &Error{notSupported, doubt}
	case p.kind == kindRigid:
		return &Error{notSupported, "a part with 8-bit content is of a type that must not be encoded"}
	case p.encoding == encodingQuoted && !s.encoded.firm():
		return &Error{notSupported, "a part has bytes that its encoding quoted-printable does not allow, and it is not clear what they mean"}
	case !p.identity() && must && p.encoding != encodingQuoted:
		return &Error{notSupported, "a part has bytes that its encoding " + p.encoding + " does not allow"}
	}
	in.plan.Parts++
	in.plan.changed = true
	in.choose(c, binary)
	return nil
}

// recommended reports whether the leaf would be better encoded, though a server takes it: it has
// lines that are too long, or CRs that are no line ends.
func (in *inspector) recommended(doubt string) bool {
	s, p := &in.seen, &in.leaf
	if in.plan.eight || p.inside || doubt != "" {
		return false
	}
	long := s.longest > maxLine
	switch {
	case p.kind == kindFrame:
		return long
	case p.kind != kindLeaf:
		return false
	case p.identity():
		return long || s.bareCR
	case p.encoding == encodingQuoted:
		return long && s.encoded.firm()
	}
	return p.encoding == encodingBase64 && long && !s.bareCR
}

// choose picks the method for a leaf that is encoded.
func (in *inspector) choose(c *choice, binary bool) {
	s, p := &in.seen, &in.leaf
	switch {
	case p.encoding == encodingQuoted:
		c.method = escape
		in.plan.Size += s.bytes + 2*s.encoded.coded + (s.bytes+2*s.encoded.coded)/75*2
		return
	case p.encoding == encodingBase64:
		c.method = wrap
		in.plan.Size += s.bytes * 77 / 76
		return
	}
	c.bare = p.bare
	c.raw = binary && !p.text
	if p.kind != kindFrame {
		c.encoding = encodingQuoted
		in.plan.Size += encodingLine
	}
	if p.kind != kindFrame && (binary || !p.text || 3*s.high > s.bytes) {
		c.encoding, c.method = encodingBase64, base64d
		in.plan.Size += (s.bytes + s.lines) * 4 / 3 * 77 / 76
		return
	}
	c.method = quoted
	coded := s.bytes + 2*s.high
	in.plan.Size += coded + coded/75*2
}
