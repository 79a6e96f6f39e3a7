package downgrade

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

// sink gets a message's parts as they are read.
type sink interface {
	// open begins a part, or the text before or behind the parts of a multipart, which
	// readers ignore and which has no header. The header is as it was stored.
	open(p *part, header []byte) error
	// content is bytes of a leaf, line ends included. close is the leaf's end, with the
	// reason why it may not be all of the leaf, or more than that; "" if it is sure.
	content(b []byte)
	close(doubt string) error
	// frame is what belongs to no part: boundaries, and empty lines behind headers.
	frame(b []byte)
}

// lines reads a body in fragments of lines.
type lines struct {
	r   *bufio.Reader
	mid bool // the last fragment did not end its line
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, fragment)} }

// next returns a line without its end, or a fragment of one that is long.
func (l *lines) next() (b []byte, begins, ends bool, err error) {
	begins = !l.mid
	b, err = l.r.ReadSlice('\n')
	switch {
	case err == nil:
		l.mid = false
		return b[:len(b)-1], begins, true, nil
	case errors.Is(err, bufio.ErrBufferFull):
		l.mid = true
		return b, begins, false, nil
	case err == io.EOF && len(b) > 0:
		l.mid = true
		return b, begins, false, nil
	}
	return nil, false, false, err
}

// level is a multipart that is open.
type level struct {
	delimiter []byte // "--boundary"
	digest    bool
	signed    bool // it or one around it is signed
	inside    bool // one around it is signed
	shown     bool // its boundary has been met
}

// state is what the next line belongs to.
type state uint8

const (
	inHeader state = iota
	inLeaf
	inFrame // before a multipart's first boundary, or behind its last; no text yet
)

// walker reads a message and gives its parts to a sink.
type walker struct {
	to     sink
	in     *lines
	levels []level
	state  state
	top    bool   // the header being read is a message's
	header []byte // its lines so far
	blank  bool   // the empty line behind the message's header is to come
	held   bool   // a line end that is a boundary's if one follows (RFC 2046 §5.1.1)
	leaf   kind   // of the leaf being read
	doubt  string // why its limits are not sure
	parts  int
	err    error // io.EOF at the end
}

// start begins with the message's header. The empty line behind it is the body's.
func (w *walker) start(header []byte) {
	w.top, w.header, w.blank = true, header, true
	w.opened()
	w.header = nil // it is not ours to write into
}

// read walks to the end of a body.
func (w *walker) read(body io.Reader) error {
	for w.in = newLines(body); w.err == nil; {
		w.step()
	}
	if w.err == io.EOF {
		return nil
	}
	return w.err
}

// step takes the next line, or a fragment of one.
func (w *walker) step() {
	b, begins, ends, err := w.in.next()
	switch {
	case err == io.EOF:
		w.finish()
	case err != nil:
		w.err = err
	case w.blank && empty(b, begins, ends):
		w.blank = false
		w.emptyLine(b)
	default:
		w.blank = false
		if begins && bytes.HasPrefix(b, dashes) {
			i, closing, near := w.boundary(b)
			if i >= 0 {
				w.meet(i, closing, b, ends)
				return
			}
			if w.state == inFrame {
				w.openFrame()
			}
			if w.state == inLeaf && w.doubt == "" && (near || w.leaf == kindFrame && likeBoundary(b)) {
				w.doubt = "a line looks like a boundary and is none"
			}
		}
		w.line(b, begins, ends)
	}
}

// empty reports a whole line with nothing in it, which may have CRLF in a message stored
// with LF.
func empty(b []byte, begins, ends bool) bool {
	return begins && ends && len(bytes.TrimRight(b, "\r")) == 0
}

// emptyLine passes one that ends a header.
func (w *walker) emptyLine(b []byte) {
	if len(b) > 0 {
		w.to.frame(b)
	}
	w.to.frame(newline)
}

var (
	newline = []byte("\n")
	dashes  = []byte("--")
)

// boundary finds the open multipart that a line parts or ends; -1: it is none's. Only
// white space may follow (RFC 2046 §5.1.1). near: the line begins as a boundary of an open
// multipart does, which is enough for some readers.
func (w *walker) boundary(line []byte) (i int, closing, near bool) {
	for i = len(w.levels) - 1; i >= 0; i-- {
		rest, ok := bytes.CutPrefix(line, w.levels[i].delimiter)
		if !ok {
			near = near || encodesTo(line, w.levels[i].delimiter)
			continue
		}
		near = true
		if len(line) > maxLine {
			continue
		}
		rest = bytes.TrimRight(rest, " \t\r")
		if len(rest) == 0 {
			return i, false, false
		}
		if bytes.Equal(rest, dashes) {
			return i, true, false
		}
	}
	return -1, false, near
}

// encodesTo reports whether quoted-printable could make a boundary of a line.
func encodesTo(line, delimiter []byte) bool {
	for _, c := range line {
		if len(delimiter) == 0 {
			break
		}
		switch {
		case len(delimiter) >= 3 && delimiter[0] == '=' && delimiter[1] == hex[c>>4] && delimiter[2] == hex[c&15]:
			delimiter = delimiter[3:]
		case delimiter[0] == c:
			delimiter = delimiter[1:]
		default:
			return false
		}
	}
	return len(delimiter) == 0
}

// likeBoundary reports whether a line could be a boundary that nothing announced: dashes
// and a word. Rulers and the line before a signature are none.
func likeBoundary(line []byte) bool {
	rest := bytes.TrimLeft(line, "-")
	return len(rest) > 0 && rest[0] != ' ' && rest[0] != '\t' && rest[0] != '\r'
}

// meet takes a boundary of the multipart at a level: open parts inside end.
func (w *walker) meet(i int, closing bool, line []byte, ends bool) {
	if w.state == inHeader {
		w.opened() // a part without a body
	}
	w.unseen(i, closing)
	w.endLeaf()
	if w.held {
		w.to.frame(newline)
		w.held = false
	}
	w.to.frame(line)
	if ends {
		w.to.frame(newline)
	}
	w.levels = w.levels[:i+1]
	w.levels[i].shown = true
	w.state, w.top, w.header = inHeader, false, w.header[:0]
	if closing {
		w.levels, w.state = w.levels[:i], inFrame
	}
}

// unseen raises a doubt where the text before the first part of a multipart ends without
// that part: it ends at level i, or at the end of the message if that is -1.
func (w *walker) unseen(i int, closing bool) {
	n := len(w.levels) - 1
	if w.state == inLeaf && w.leaf == kindFrame && n >= 0 && !w.levels[n].shown && (i != n || closing) {
		w.doubt = "the boundary of a multipart is not found in it"
	}
}

func (w *walker) line(b []byte, begins, ends bool) {
	switch w.state {
	case inHeader:
		if empty(b, begins, ends) {
			w.opened()
			w.emptyLine(b)
			return
		}
		if len(w.header)+len(b) > maxHeader {
			w.fail(&Error{notSupported, "a part's header is larger than " + strconv.Itoa(maxHeader) + " bytes"})
			return
		}
		if w.header = append(w.header, b...); ends {
			w.header = append(w.header, '\n')
		}
	case inFrame:
		w.openFrame()
		fallthrough
	case inLeaf:
		if w.held {
			w.to.content(newline)
		}
		w.to.content(b)
		w.held = ends
	}
}

// openFrame begins text before the first boundary of a multipart, or behind its last.
func (w *walker) openFrame() {
	p := part{kind: kindFrame}
	if n := len(w.levels); n > 0 {
		p.inside = w.levels[n-1].signed
		if !w.levels[n-1].shown {
			p.inside = w.levels[n-1].inside
		}
	}
	w.begin(&p, nil)
}

// begin begins a part or a frame.
func (w *walker) begin(p *part, header []byte) {
	w.leaf, w.doubt = p.kind, p.doubt
	if err := w.to.open(p, header); err != nil {
		w.fail(err)
	}
	w.state = inLeaf
}

// opened takes a part whose header has ended.
func (w *walker) opened() {
	var around level
	if n := len(w.levels); n > 0 {
		around = w.levels[n-1]
	}
	p := parsePart(w.header, w.top, around.digest && !w.top)
	p.inside = around.signed
	if p.kind == kindMultipart {
		w.admit(&p)
	}
	if w.parts++; w.parts > maxParts {
		w.fail(&Error{notSupported, "it has more than " + strconv.Itoa(maxParts) + " parts"})
		return
	}
	w.begin(&p, w.header)
	switch p.kind {
	case kindMultipart:
		w.levels = append(w.levels, level{delimiter: []byte("--" + p.boundary), digest: p.digest, signed: p.signed || p.inside, inside: p.inside})
		w.state = inFrame
	case kindMessage:
		w.state, w.top, w.header = inHeader, true, nil
	}
}

// admit makes a multipart rigid that is too deep, or whose boundary is that of one around
// it: its parts look like the other's.
func (w *walker) admit(p *part) {
	if len(w.levels) == maxLevels {
		p.kind, p.doubt = kindRigid, "it is nested more than "+strconv.Itoa(maxLevels)+" deep"
		return
	}
	for i := range w.levels {
		outer := string(w.levels[i].delimiter[len(dashes):])
		if p.boundary == outer || p.boundary == outer+"--" || p.boundary+"--" == outer {
			p.kind, p.doubt = kindRigid, "a multipart has the boundary of the one around it"
		}
	}
}

// finish is the end of the message, which may come anywhere.
func (w *walker) finish() {
	if w.state == inHeader && len(w.header) > 0 {
		w.opened()
	}
	if w.state == inLeaf && w.held {
		w.to.content(newline)
		w.held = false
	}
	w.unseen(-1, false)
	w.endLeaf()
	w.fail(io.EOF)
}

func (w *walker) endLeaf() {
	if w.state == inLeaf {
		if err := w.to.close(w.doubt); err != nil {
			w.fail(err)
		}
		w.state = inFrame
	}
}

// fail keeps the first error.
func (w *walker) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}
