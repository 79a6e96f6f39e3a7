package workspec

import (
	"bytes"
	"cmp"
	"slices"
	"sort"
)

// Excerpt is some of a specification's bytes: all that is to be known of some recipients.
type Excerpt struct {
	Parts []Part // in the file's order, apart from each other
	b     []byte // what stands there, one after the other
	of    *Outline
	rcpts []int32 // of the outline
	lines []filed // appended ones
}

// filed is an appended line and whom it is about.
type filed struct {
	line      int32 // of the outline
	recipient int64
}

// Part is a part of the file.
type Part struct {
	From, To int64
	at       int64 // where it begins in the excerpt
}

// Part of a file as costly to read as this many bytes more.
const partCost = 1 << 10

// Whole is the excerpt that has a part of the file in b, which begins at an offset.
func Whole(b []byte, from int64) *Excerpt {
	return &Excerpt{Parts: []Part{{From: from, To: from + int64(len(b))}}, b: b}
}

// Excerpt tells what to read for the recipients of a host. nil: the whole file, because
// there are none, or because that is as cheap.
func (o *Outline) Excerpt(host string) *Excerpt {
	e := o.pick(host)
	if e == nil || e.size()+int64(len(e.Parts))*partCost > o.end {
		return nil
	}
	return e
}

// pick is Excerpt whatever it costs.
func (o *Outline) pick(host string) *Excerpt {
	want := hashHost([]byte(host))
	if want == 0 {
		return nil
	}
	e := &Excerpt{of: o}
	e.find(0)
	e.find(want)
	if len(e.rcpts) == 0 {
		return nil
	}
	slices.Sort(e.rcpts)
	e.add(0, o.groups[0].from)
	e.add(o.zAt, o.zAt+uint32(len(o.closing)))
	e.chain(o.whole, 0)
	last := -1
	for _, i := range e.rcpts {
		r := &o.rcpts[i]
		e.add(r.from, r.to)
		e.chain(r.lines, int64(r.from))
		if gi := o.groupOf(r.from); gi != last {
			g := &o.groups[gi]
			e.add(g.from, g.first)
			e.add(g.header, g.after)
			last = gi
		}
	}
	e.join()
	return e
}

// find adds the recipients whose host has a hash.
func (e *Excerpt) find(hash uint32) {
	list := e.of.byHost
	i := sort.Search(len(list), func(i int) bool { return e.of.rcpts[list[i]].host >= hash })
	for ; i < len(list) && e.of.rcpts[list[i]].host == hash; i++ {
		e.rcpts = append(e.rcpts, list[i])
	}
}

func (o *Outline) groupOf(recipient uint32) int {
	return sort.Search(len(o.groups), func(i int) bool { return o.groups[i].from > recipient }) - 1
}

func (e *Excerpt) add(from, to uint32) {
	if from < to {
		e.Parts = append(e.Parts, Part{From: int64(from), To: int64(to)})
	}
}

// chain adds the lines about somebody.
func (e *Excerpt) chain(i int32, recipient int64) {
	for ; i >= 0; i = e.of.lines[i].next {
		e.lines = append(e.lines, filed{i, recipient})
		e.add(e.of.lines[i].from, e.of.lines[i].to)
	}
}

// join puts parts in order, and those together that touch.
func (e *Excerpt) join() {
	slices.SortFunc(e.Parts, func(a, b Part) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	parts := e.Parts[:1]
	for _, p := range e.Parts[1:] {
		if last := &parts[len(parts)-1]; p.From <= last.To {
			last.To = max(last.To, p.To)
		} else {
			parts = append(parts, p)
		}
	}
	at := int64(0)
	for i := range parts {
		parts[i].at = at
		at += parts[i].To - parts[i].From
	}
	e.Parts = parts
}

// size is how many bytes the parts have.
func (e *Excerpt) size() int64 {
	last := &e.Parts[len(e.Parts)-1]
	return last.at + last.To - last.From
}

// Fill has read put the bytes of every part into a buffer, which is grown where it is too
// small, and gives that back.
func (e *Excerpt) Fill(buf []byte, read func(b []byte, off int64) error) ([]byte, error) {
	e.b = slices.Grow(buf[:0], int(e.size()))[:e.size()]
	for _, p := range e.Parts {
		if err := read(e.b[p.at:p.at+p.To-p.From], p.From); err != nil {
			return e.b, err
		}
	}
	return e.b, nil
}

// Slice is what stands between two offsets of the file, which must be of one part; else
// it is nil. It must not be changed.
func (e *Excerpt) Slice(from, to int64) []byte {
	i := sort.Search(len(e.Parts), func(i int) bool { return e.Parts[i].To >= to })
	if i == len(e.Parts) || from < e.Parts[i].From || from > to {
		return nil
	}
	start := e.Parts[i].at - e.Parts[i].From
	return e.b[start+from : start+to : start+to]
}

// Len is how many bytes the excerpt has.
func (e *Excerpt) Len() int { return len(e.b) }

// Parse reads what was filled in: a Spec of these recipients with their groups, and of
// what was appended that which is about them or about the whole message. Offsets are the
// file's; Size, Lines and ErrorTo are not those of the whole. It tells whether everything
// stands where the outline says; if not, somebody has put something else there, and the
// whole file is to be read.
func (e *Excerpt) Parse() (*Spec, bool) {
	o := e.of
	if string(e.Slice(int64(o.zAt), int64(o.zAt)+int64(len(o.closing)))) != o.closing || !e.linesStand() {
		return nil, false
	}
	s, err := Parse(e.b)
	if err != nil || s.Format != o.format {
		return nil, false
	}
	s.Complete, s.ZOffset = true, int64(o.zAt)
	n := 0
	for i := range s.Groups {
		g := &s.Groups[i]
		g.Sender.Offset = e.inFile(g.Sender.Offset)
		g.HeaderOffset, g.HeaderEnd = e.inFile(g.HeaderOffset), e.inFile(g.HeaderEnd)
		for j := range g.Recipients {
			r := &g.Recipients[j]
			r.Offset = e.inFile(r.Offset)
			if r.NotaryOffset > 0 {
				r.NotaryOffset = e.inFile(r.NotaryOffset)
			}
			if n == len(e.rcpts) || int64(o.rcpts[e.rcpts[n]].from) != r.Offset {
				return nil, false
			}
			n++
		}
		at := o.groupOf(uint32(g.Sender.Offset))
		if at < 0 || g.HeaderOffset != int64(o.groups[at].header)+2 || g.HeaderEnd != int64(o.groups[at].after)-1 {
			return nil, false
		}
	}
	for i := range s.Diagnostics {
		s.Diagnostics[i].LineOffset = e.inFile(s.Diagnostics[i].LineOffset)
	}
	s.attribute()
	for i := range s.History {
		s.History[i].LineOffset = e.inFile(s.History[i].LineOffset)
	}
	return s, n == len(e.rcpts)
}

// linesStand tells whether every appended line still ends where it did and is about whom
// it was.
func (e *Excerpt) linesStand() bool {
	for _, f := range e.lines {
		p := e.of.lines[f.line]
		line := e.Slice(int64(p.from), int64(p.to))
		same := false
		if n := len(line) - 1; n > 0 && bytes.IndexByte(line, '\n') == n {
			appendedLine(line[:n], func(recipient int64) { same = same || recipient == f.recipient })
		}
		if !same {
			return false
		}
	}
	return true
}

// inFile is where the byte at an offset of the excerpt stands in the file.
func (e *Excerpt) inFile(at int64) int64 {
	i := sort.Search(len(e.Parts), func(i int) bool { return e.Parts[i].at > at }) - 1
	return e.Parts[i].From + at - e.Parts[i].at
}
