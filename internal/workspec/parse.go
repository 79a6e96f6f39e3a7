package workspec

import (
	"bytes"
	"fmt"
	"strings"
)

// Parse reads a whole specification. It returns ErrUnknownFormat or a
// *SyntaxError; a torn last line or a missing z is no error, see Spec, nor is a line
// that cannot be read behind zeros where a block never reached the disk: the file is
// not Complete. Strings do not alias b.
func Parse(b []byte) (*Spec, error) { return parse(b, nil) }

// ParseOnly is Parse for who has to do with some of very many recipients: only those that
// want chooses are in the Spec, and of diagnostics and of events about one recipient's
// attempts only theirs. All else is as Parse has it. It is not for Print.
func ParseOnly(b []byte, want func(offset int64, channel, host []byte) bool) (*Spec, error) {
	return parse(b, want)
}

func parse(b []byte, want func(offset int64, channel, host []byte) bool) (*Spec, error) {
	p := parser{b: b, s: &Spec{Size: int64(len(b)), Lines: make([]Line, 0, 8)}, want: want, zeros: lost(b)}
	for p.pos < len(b) {
		n := bytes.IndexByte(b[p.pos:], '\n')
		if n < 0 {
			// Crash: a write(2) got this far. Nothing was promised for it.
			p.s.Torn = true
			break
		}
		p.line = b[p.pos : p.pos+n]
		next := p.pos + n + 1
		if reason, err := p.read(&next); err != nil {
			return nil, err
		} else if reason != "" && p.s.ZOffset == 0 && lost(b[:next]) {
			return p.s, nil
		} else if reason != "" {
			return nil, &SyntaxError{Offset: int64(p.pos), Line: string(p.line), Reason: reason}
		}
		p.pos = next
	}
	p.s.attribute()
	p.s.Complete = p.closed() && (p.s.ZOffset > 0 || !p.s.HasZ && !lost(b))
	return p.s, nil
}

// Complete tells whether b is a whole specification of a writer that closes its
// files: one that parses and whose z line is right. It is what recovery asks of a
// dead router's work file; of others, which may know no z line, see Spec.Complete.
func Complete(b []byte) bool {
	s, err := Parse(b)
	return err == nil && s.Complete && s.HasZ
}

// parser is the state of one pass over a file.
type parser struct {
	b    []byte
	s    *Spec
	pos  int    // offset of the line at hand
	line []byte // without its newline

	group    *Group     // the last s line's
	rcpt     *Recipient // the last r line's
	cut      bool       // the file ends inside a header block
	zeros    bool       // there are some: the checksum is to be asked
	sum      sum        // of the bytes before summed
	summed   int
	appended bool // past the z line

	want   func(offset int64, channel, host []byte) bool // nil: all
	chosen []int64                                       // offsets of those that it chose
	other  Recipient                                     // scratch: one that it did not
	gap    bool                                          // the last one was such

	texts strings.Builder // where strings are put, many in one allocation
}

// read reads one line. A header block's end is put into next. reason says what is
// wrong with a line that cannot be ignored.
func (p *parser) read(next *int) (reason string, err error) {
	if len(p.line) == 0 {
		p.ignore(p.line) // two writers ended one torn line
		return "", nil
	}
	if p.line[len(p.line)-1] == canceled && (p.line[0] == 'd' || p.line[0] == 'h') {
		p.ignore(p.line) // torn, and ended by the next writer
		return "", nil
	}
	switch p.line[0] {
	case '@':
		return p.format()
	case 's', 'r', 'N', 'R', 'n', 'm':
		if p.appended {
			return "line of a group behind the z line", nil
		}
		return p.groupLine(next), nil
	case 'i', 'o', 'v', 'l', 'u', 'e', 'x', 'T':
		return p.preamble(), nil
	case 'M':
		if p.s.Format&FormatM != 0 && len(p.line) == 1 {
			p.mimeBlock(next)
			return "", nil
		}
	case 'V':
		if !p.appended && p.verp() {
			return "", nil
		}
	case 'z':
		p.closing()
		return "", nil
	case 'd':
		if d, ok := p.diagnostic(); ok {
			if p.others(d.Recipient) {
				return "", nil
			}
			p.s.Diagnostics = append(p.s.Diagnostics, d)
			return "", nil
		}
	case 'h':
		if p.othersEvent() {
			return "", nil
		}
		if e, ok := p.event(); ok {
			p.s.History = append(p.s.History, e)
			return "", nil
		}
	}
	p.ignore(p.line)
	return "", nil
}

// format reads the @ line.
func (p *parser) format() (reason string, err error) {
	bits, ok := hexOrDecimal(p.value())
	if !ok {
		return "bad number in @ line", nil
	}
	if bits&^FormatOurs != 0 {
		return "", fmt.Errorf("%w: %#08x", ErrUnknownFormat, bits)
	}
	if p.pos != 0 {
		return "@ line is not the first", nil
	}
	p.s.Format = bits
	p.place('@')
	return "", nil
}

// preamble reads a line that has one value, wherever it stands.
func (p *parser) preamble() (reason string) {
	id := p.line[0]
	if len(p.line) > 1 && p.line[1] != ' ' {
		if id == 'i' || id == 'o' {
			return "no blank after the letter"
		}
		p.ignore(p.line)
		return ""
	}
	s, v := p.s, p.value()
	switch id {
	case 'e':
		s.ErrorTo = append(s.ErrorTo, p.text(v))
	case 'x':
		s.Obsoletes = append(s.Obsoletes, p.text(v))
	case 'T':
		s.Start = append(s.Start, p.text(v))
	default:
		for _, l := range s.Lines {
			if l.ID == id {
				return "second line of its kind"
			}
		}
		if reason := p.single(id, v); reason != "" {
			return reason
		}
	}
	p.place(id)
	return ""
}

// single reads a line that may stand once.
func (p *parser) single(id byte, v []byte) (reason string) {
	switch s := p.s; id {
	case 'i':
		if len(v) == 0 {
			return "no name in i line"
		}
		s.Message = p.text(v)
	case 'o':
		n, ok := decimal(v)
		if !ok {
			return "bad number in o line"
		}
		s.BodyOffset = n
	case 'v':
		s.Verbose = p.text(v)
	case 'l':
		s.Ident = p.text(v)
	case 'u':
		s.Own = string(v) == own
	}
	return ""
}

// closing reads a z line. The first one that is not the promise decides.
func (p *parser) closing() {
	p.s.HasZ = true
	if p.appended || string(p.line) == promise {
		p.ignore(p.line)
		return
	}
	digits, check, _ := bytes.Cut(p.value(), []byte{' '})
	n, ok := decimal(digits)
	p.appended = true
	p.sumUp(p.pos, p.pos)
	if !ok || p.line[1] != ' ' || n != int64(p.pos) || !p.closed() || p.zeros && !p.sum.right(check) && lost(p.b[:p.pos]) {
		p.ignore(p.line)
		return
	}
	p.s.ZOffset = n
}

// closed tells that every group so far ends with its header block.
func (p *parser) closed() bool {
	groups := p.s.Groups
	return len(groups) > 0 && groups[len(groups)-1].HeaderOffset > 0 && !p.cut
}

// value is what stands after the letter and the byte behind it.
func (p *parser) value() []byte { return p.line[min(2, len(p.line)):] }

// place records where a preamble line stands.
func (p *parser) place(id byte) {
	p.s.Lines = append(p.s.Lines, Line{Offset: int64(p.pos), ID: id})
}

// ignore keeps a line for Print.
func (p *parser) ignore(line []byte) {
	p.s.Lines = append(p.s.Lines, Line{Offset: int64(p.pos), Text: p.text(line)})
}

// text copies v into a string that shares its memory with its neighbours in the
// file but not with b.
func (p *parser) text(v []byte) string {
	if len(v) == 0 {
		return ""
	}
	start := p.room(len(v))
	p.texts.Write(v)
	return p.texts.String()[start:]
}

// room makes room for n bytes in texts and says where they will start.
func (p *parser) room(n int) int {
	if p.texts.Cap()-p.texts.Len() < n {
		// A grown Builder would copy what is there; a new one leaves it in place.
		size := min(max(512, 2*p.texts.Cap()), 16<<10, len(p.b)-p.pos)
		p.texts.Reset()
		p.texts.Grow(max(size, n))
	}
	return p.texts.Len()
}

// textLike is text(v), or last if it says the same: neighbouring lines repeat much.
func (p *parser) textLike(v []byte, last string) string {
	if string(v) == last {
		return last
	}
	return p.text(v)
}
