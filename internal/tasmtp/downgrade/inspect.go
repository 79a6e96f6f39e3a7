package downgrade

// method is how a leaf is encoded.
type method uint8

const (
	keep method = iota
	quoted
	base64d
)

// encodingLine is about how much a header grows.
const encodingLine = 40

// choice is what becomes of one part.
type choice struct {
	encoding string // to be said in its header; "": the header stays as it is
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
	line         int   // length of the line being read
	longest      int
}

func (in *inspector) open(p *part, header []byte) {
	in.leaf, in.seen = *p, counts{}
	if len(in.plan.choices) > 0 {
		in.plan.Size += int64(len(header)) // the first is counted when it is changed
	}
	var c choice
	if p.kind != kindLeaf && p.kind != kindRigid && !p.inside {
		// RFC 2045 §6.4: what holds parts has the encoding of the widest of them.
		switch {
		case p.encoding == "binary" && in.plan.eight:
			c.encoding = "8bit"
		case (p.encoding == "binary" || p.encoding == "8bit") && !in.plan.eight:
			c.encoding = "7bit"
		}
	}
	in.plan.choices = append(in.plan.choices, c)
}

func (in *inspector) content(b []byte) {
	s := &in.seen
	s.bytes += int64(len(b))
	for _, c := range b {
		if c == '\n' {
			s.longest = max(s.longest, s.line)
			s.line = 0
			s.lines++
			continue
		}
		s.line++
		if c >= 0x80 || c < ' ' && c != '\t' || c == 0x7f || c == '=' {
			s.high++
			s.eight = s.eight || c >= 0x80 || c == 0
		}
	}
}

func (in *inspector) frame(b []byte, _ bool) { in.plan.Size += int64(len(b)) }

// close chooses for the leaf that ends.
func (in *inspector) close() error {
	s, p := &in.seen, &in.leaf
	s.longest = max(s.longest, s.line)
	c := &in.plan.choices[len(in.plan.choices)-1]
	binary := p.encoding == "binary"
	must := s.eight && (!in.plan.eight || binary) || binary && p.kind == kindLeaf && !p.inside
	long := s.longest > maxLine && !in.plan.eight && p.identity() && p.kind == kindLeaf && !p.inside
	switch {
	case !must && !long:
		if p.encoding == "8bit" && !in.plan.eight && !p.inside {
			c.encoding = "7bit" // which it was all the time
		}
		in.plan.Size += s.bytes
		return nil
	case p.inside:
		return &Error{prohibited, "a signed part would change (RFC 1847)"}
	case !p.identity():
		return &Error{notSupported, "a part has bytes that its encoding " + p.encoding + " does not allow"}
	case p.kind == kindRigid:
		return &Error{notSupported, "a part with 8-bit content is broken, or of a type that must not be encoded"}
	}
	in.plan.Parts++
	c.bare = p.bare
	c.raw = binary && !p.text
	in.plan.Size += encodingLine
	if binary || !p.text || 3*s.high > s.bytes {
		c.encoding, c.method = "base64", base64d
		in.plan.Size += (s.bytes + s.lines) * 4 / 3 * 77 / 76
		return nil
	}
	c.encoding, c.method = "quoted-printable", quoted
	coded := s.bytes + 2*s.high
	in.plan.Size += coded + coded/75*2
	return nil
}
