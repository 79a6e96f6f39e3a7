package downgrade

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

// sink is told of a message's parts as they are read.
type sink interface {
	// open begins a part; the header is as it stands.
	open(p *part, header []byte)
	// content is bytes of a leaf, line ends included; close is the leaf's end.
	content(b []byte)
	close() error
	// frame is what belongs to no part: boundaries and empty lines behind headers, and
	// text around boundaries, which nobody reads.
	frame(b []byte, text bool)
}

// lines reads a body in fragments of lines.
type lines struct {
	r   *bufio.Reader
	mid bool // the last fragment did not end its line
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, fragment)} }

// next gives a line without its end, or a fragment of one that is long.
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
}

// state is what the next line belongs to.
type state uint8

const (
	inHeader state = iota
	inLeaf
	inFrame // before a multipart's first boundary, or behind its last
)

// walker reads a message and tells a sink of its parts.
type walker struct {
	to     sink
	in     *lines
	levels []level
	state  state
	top    bool   // the header being read is a message's
	header []byte // its lines so far
	blank  bool   // the empty line behind the message's header is to come
	held   bool   // a line end that is a boundary's if one follows (RFC 2046 §5.1.1)
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
			if i, closing := w.boundary(b); i >= 0 {
				w.meet(i, closing, b, ends)
				return
			}
		}
		w.line(b, begins, ends)
	}
}

// empty tells a whole line with nothing in it, which may have CRLF in a message stored
// with LF.
func empty(b []byte, begins, ends bool) bool {
	return begins && ends && len(bytes.TrimRight(b, "\r")) == 0
}

// emptyLine passes one that ends a header.
func (w *walker) emptyLine(b []byte) {
	if len(b) > 0 {
		w.to.frame(b, false)
	}
	w.to.frame(newline, false)
}

var (
	newline = []byte("\n")
	dashes  = []byte("--")
)

// boundary finds the open multipart that a line parts or ends; -1: it is none's. Only
// white space may follow (RFC 2046 §5.1.1).
func (w *walker) boundary(line []byte) (i int, closing bool) {
	for i = len(w.levels) - 1; i >= 0; i-- {
		rest, ok := bytes.CutPrefix(line, w.levels[i].delimiter)
		if !ok {
			continue
		}
		rest = bytes.TrimRight(rest, " \t\r")
		if len(rest) == 0 {
			return i, false
		}
		if bytes.Equal(rest, dashes) {
			return i, true
		}
	}
	return -1, false
}

// meet takes a boundary of the multipart at a level: what is open inside ends.
func (w *walker) meet(i int, closing bool, line []byte, ends bool) {
	if w.state == inHeader {
		w.opened() // a part without a body
	}
	w.endLeaf()
	if w.held {
		w.to.frame(newline, false)
		w.held = false
	}
	w.to.frame(line, false)
	if ends {
		w.to.frame(newline, false)
	}
	w.levels = w.levels[:i+1]
	w.state, w.top, w.header = inHeader, false, w.header[:0]
	if closing {
		w.levels, w.state = w.levels[:i], inFrame
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
	case inLeaf:
		if w.held {
			w.to.content(newline)
		}
		w.to.content(b)
		w.held = ends
	case inFrame:
		w.to.frame(b, true)
		if ends {
			w.to.frame(newline, true)
		}
	}
}

// opened takes a part whose header has ended.
func (w *walker) opened() {
	var around level
	if n := len(w.levels); n > 0 {
		around = w.levels[n-1]
	}
	p := parsePart(w.header, w.top, around.digest && !w.top)
	p.inside = around.signed
	if p.kind == kindMultipart && (p.boundary == "" || len(w.levels) == maxLevels) {
		p.kind = kindRigid // its parts cannot be told apart
	}
	if w.parts++; w.parts > maxParts {
		w.fail(&Error{notSupported, "it has more than " + strconv.Itoa(maxParts) + " parts"})
		return
	}
	w.to.open(&p, w.header)
	switch p.kind {
	case kindMultipart:
		w.levels = append(w.levels, level{delimiter: []byte("--" + p.boundary), digest: p.digest, signed: p.signed || p.inside})
		w.state = inFrame
	case kindMessage:
		w.state, w.top, w.header = inHeader, true, nil
	default:
		w.state = inLeaf
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
	w.endLeaf()
	w.fail(io.EOF)
}

func (w *walker) endLeaf() {
	if w.state == inLeaf {
		w.fail(w.to.close())
		w.state = inFrame
	}
}

// fail keeps the first error.
func (w *walker) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}
