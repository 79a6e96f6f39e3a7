package workspec

import (
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
)

// Print writes s back in canonical form, appended lines included; file is the
// file's bytes that Groups' header offsets point into. A specification that Parse
// read from a file in canonical form, as Writer's and ZMailer's are, comes out byte
// for byte, but for a torn last line; one that was made by hand comes out in
// Writer's order, with a z line if Complete and HasZ are set.
func Print(w io.Writer, s *Spec, file []byte) error {
	p := printer{Writer: Writer{W: w, format: s.Format, refused: "\n"}, s: s, file: file}
	if s.Lines == nil {
		p.byHand()
	} else {
		p.inOrder()
	}
	p.flush(0)
	if p.err != nil {
		return fmt.Errorf("print work specification: %w", p.err)
	}
	return nil
}

type printer struct {
	Writer
	s       *Spec
	file    []byte
	e, x, t int // lines of ErrorTo, Obsoletes, Start that were written
}

// part is one thing that is at an offset of the file.
type part struct {
	offset int64
	print  func()
}

// inOrder prints s in the order of the file that it was read from. What was added
// to it since has no offset and comes last.
func (p *printer) inOrder() {
	s := p.s
	parts := make([]part, 0, len(s.Lines)+len(s.Diagnostics)+len(s.History)+2*len(s.Groups))
	for i := range s.Lines {
		parts = append(parts, part{s.Lines[i].Offset, func() { p.line(&s.Lines[i]) }})
	}
	for i := range s.Groups {
		g := &s.Groups[i]
		parts = append(parts, part{g.Sender.Offset, func() { p.sender(&g.Sender) }})
		for j := range g.Recipients {
			parts = append(parts, part{g.Recipients[j].Offset, func() { p.recipient(&g.Recipients[j]) }})
		}
		if p.ownsHeader(i) {
			parts = append(parts, part{g.HeaderOffset, func() { p.block(g) }})
		}
	}
	if s.ZOffset > 0 {
		closing := p.close
		if !hasSum(p.file, s.ZOffset) {
			closing = func() { p.number('z', p.offset()) }
		}
		parts = append(parts, part{s.ZOffset, closing})
	}
	for i := range s.Diagnostics {
		d := &s.Diagnostics[i]
		parts = append(parts, part{p.orLast(d.LineOffset, i, 'd'), func() { p.buf = AppendDiagnostic(p.buf, d) }})
	}
	for i := range s.History {
		e := &s.History[i]
		parts = append(parts, part{p.orLast(e.LineOffset, i, 'h'), func() { p.buf = AppendEvent(p.buf, e) }})
	}
	sort.SliceStable(parts, func(i, j int) bool { return parts[i].offset < parts[j].offset })
	for _, part := range parts {
		part.print()
	}
}

// orLast is where the i-th line with that letter stands, the end if it has no place.
func (p *printer) orLast(offset int64, i int, id byte) int64 {
	if offset > 0 || i == 0 && len(p.file) > 0 && p.file[0] == id {
		return offset
	}
	return p.s.Size
}

// byHand prints s in the order that Writer writes.
func (p *printer) byHand() {
	s := p.s
	if s.Format != 0 {
		p.formatLine(s.Format)
	}
	if s.HasZ {
		p.buf = append(p.buf, promise+"\n"...)
	}
	p.Preamble(s)
	for i := range s.Groups {
		g := &s.Groups[i]
		p.sender(&g.Sender)
		for j := range g.Recipients {
			p.recipient(&g.Recipients[j])
		}
		if p.ownsHeader(i) {
			p.block(g)
		}
	}
	if s.Complete && s.HasZ {
		p.close()
	}
	for i := range s.Diagnostics {
		p.buf = AppendDiagnostic(p.buf, &s.Diagnostics[i])
	}
	for i := range s.History {
		p.buf = AppendEvent(p.buf, &s.History[i])
	}
}

// ownsHeader reports whether group i is the last of those that share its block.
func (p *printer) ownsHeader(i int) bool {
	g := p.s.Groups
	return (g[i].HeaderOffset > 0 || p.s.Lines == nil) &&
		(i == len(g)-1 || g[i+1].HeaderOffset != g[i].HeaderOffset)
}

// block prints a group's m block, closed if it was.
func (p *printer) block(g *Group) {
	if g.HeaderOffset < 0 || g.HeaderEnd < g.HeaderOffset || g.HeaderEnd > int64(len(p.file)) {
		p.fail(errOffsets)
		return
	}
	b := p.file[g.HeaderOffset:g.HeaderEnd]
	p.header(b)
	if n := len(b); n > 0 && b[n-1] != '\n' {
		p.buf = append(p.buf, '\n')
	}
	if p.s.Lines == nil || g.HeaderEnd < int64(len(p.file)) && p.file[g.HeaderEnd] == '\n' {
		p.buf = append(p.buf, '\n')
	}
}

// line prints a preamble line from its field, or an ignored line as it stood.
func (p *printer) line(l *Line) {
	s := p.s
	switch l.ID {
	case 0:
		p.ignored(l.Text)
	case '@':
		p.formatLine(s.Format)
	case 'i':
		p.value('i', s.Message)
	case 'o':
		p.number('o', s.BodyOffset)
	case 'v':
		p.value('v', s.Verbose)
	case 'l':
		p.value('l', s.Ident)
	case 'u':
		if s.Own {
			p.value('u', own)
		}
	case 'e':
		p.next('e', s.ErrorTo, &p.e)
	case 'x':
		p.next('x', s.Obsoletes, &p.x)
	case 'T':
		p.next('T', s.Start, &p.t)
	}
}

// next prints the next of several lines, or none if it is gone.
func (p *printer) next(id byte, values []string, n *int) {
	if *n < len(values) {
		p.value(id, values[*n])
		*n++
	}
}

// ignored prints a line that Parse could not use. A wrong z line must not become
// right because the canonical form moved it.
func (p *printer) ignored(text string) {
	if v, z := strings.CutPrefix(text, "z "); z {
		if n, _, _ := strings.Cut(v, " "); n == strconv.FormatInt(p.offset(), 10) {
			text = "z 0"
		}
	}
	p.buf = append(p.buf, text...)
	p.buf = append(p.buf, '\n')
}
