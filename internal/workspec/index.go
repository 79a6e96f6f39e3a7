package workspec

import (
	"bytes"
	"cmp"
	"slices"
	"sort"
	"strconv"
)

// Index has the offsets of the parts of a specification that was read once. A message to
// very many hosts is a job for each of them, and of 10,000 lines each is about one: with
// the index that one is found, and read, without the others. It holds places and no
// text, so what is read there is what the file says at that time.
//
// It is of a file that its writer has closed with a checksum, which distinguishes it from another
// one. What the router wrote keeps its place, and lines are appended (Extend): nothing
// else happens to a specification. Where it does, by hand, offsets do not fit what is
// there, and Follow or Partial.Parse says so.
type Index struct {
	format  uint32
	closing string // the z line and the line that says that the history was summarised
	zAt     uint32
	groups  []groupPlace     // in the file's order, as
	rcpts   []recipientPlace // these
	byHost  []int32          // indexes of rcpts, by the hash of their hosts and then by place
	lines   []linePlace      // appended ones; a line about several recipients more than once
	whole   int32            // the last of lines that is about the whole message; none: -1
	end     int64            // of the lines that are known
	last    []byte           // what is before it: the last line, of a long one its end
	lastTag bool             // its second byte is a diagnostic's tag, which changes
}

// groupPlace is where a group's s line, its first r line, its m line and what follows its
// header block are.
type groupPlace struct{ from, first, header, after uint32 }

// recipientPlace is where an r line begins and its last line ends.
type recipientPlace struct {
	from, to uint32
	host     uint32 // hash; 0: of a host that is not plain ASCII
	lines    int32  // the last of Index.lines about it; none: -1
}

type linePlace struct {
	from, to uint32
	next     int32 // the line before that is about the same; none: -1
}

// Limits of what has an index.
const (
	maxIndexed = 64 << 20 // bytes of a file
	// MaxPlaces is how many places an index may have: 5 MB.
	MaxPlaces = 1 << 18
	maxLast   = 1 << 10 // bytes of the last line that are compared
)

// NewIndex makes the index of a file that was read to s, with ParseOnly or Parse. nil:
// it has none.
func NewIndex(file []byte, s *Spec) *Index {
	if !s.Complete || !hasSum(file, s.ZOffset) || len(file) > maxIndexed {
		return nil
	}
	closing, rest, _ := bytes.Cut(file[s.ZOffset:], []byte{'\n'})
	o := &Index{format: s.Format, closing: string(closing) + "\n", zAt: uint32(s.ZOffset), whole: -1}
	o.ends([]byte(o.closing))
	// A summarised copy may get the number of an inode that another copy had before.
	if line, _, whole := bytes.Cut(rest, []byte{'\n'}); whole && isEvent(line, EventSummarised) {
		o.closing += string(line) + "\n"
		o.ends(append(line[:len(line):len(line)], '\n'))
	}
	o.end = s.ZOffset + int64(len(o.closing))
	o.groups = make([]groupPlace, 0, len(s.Groups))
	for i := range s.Groups {
		next := s.ZOffset
		if i+1 < len(s.Groups) {
			next = s.Groups[i+1].Sender.Offset
		}
		if !o.group(file, &s.Groups[i], next) {
			return nil
		}
	}
	if !o.extend(file[o.end:]) {
		return nil
	}
	o.byHost = make([]int32, len(o.rcpts))
	for i := range o.byHost {
		o.byHost[i] = int32(i)
	}
	slices.SortFunc(o.byHost, func(a, b int32) int {
		return cmp.Or(cmp.Compare(o.rcpts[a].host, o.rcpts[b].host), cmp.Compare(a, b))
	})
	return o
}

// group takes in a group, which next follows. It reports whether everything in it is as
// Writer has it.
func (o *Index) group(file []byte, g *Group, next int64) bool {
	p := groupPlace{from: uint32(g.Sender.Offset), header: uint32(g.HeaderOffset - 2), after: uint32(g.HeaderEnd + 1)}
	to := min(next, int64(p.header))
	if next > int64(p.header) && !onlyErrorTo(file, int64(p.after), next) {
		return false
	}
	for at := g.Sender.Offset; at < to; {
		line := file[at : at+int64(bytes.IndexByte(file[at:to], '\n'))+1]
		switch line[0] {
		case 'r':
			f, reason := splitAddress(bytes.TrimSuffix(line[min(len(line), 1+fixedWidth(o.format)):], []byte{'\n'}))
			if reason != "" {
				return false
			}
			if p.first == 0 {
				p.first = uint32(at)
			}
			if o.Places() >= MaxPlaces {
				return false
			}
			o.rcpts = append(o.rcpts, recipientPlace{from: uint32(at), host: hashHost(f.host), lines: -1})
		case 'e': // of the next group, and of the whole message
			at += int64(len(line))
			continue
		case 's', 'V', 'N', 'R', 'n':
		default:
			return false
		}
		at += int64(len(line))
		if p.first > 0 {
			o.rcpts[len(o.rcpts)-1].to = uint32(at)
		}
	}
	if p.first == 0 {
		p.first = uint32(to)
	}
	o.groups = append(o.groups, p)
	return o.Places() <= MaxPlaces
}

// onlyErrorTo reports whether nothing but e lines is between two groups.
func onlyErrorTo(file []byte, from, to int64) bool {
	for from < to && file[from] == 'e' {
		from += int64(bytes.IndexByte(file[from:to], '\n')) + 1
	}
	return from == to
}

// Places returns how many places the index has; each takes some 20 bytes.
func (o *Index) Places() int { return len(o.groups) + len(o.rcpts) + len(o.lines) }

// End returns where the lines end that the index knows, behind a newline.
func (o *Index) End() int64 { return o.end }

// Last returns where Follow is to be given the file from: before End.
func (o *Index) Last() int64 { return o.end - int64(len(o.last)) }

// Follow takes in what is in the file from Last on: the last line that is known, and
// what was appended since, of which the last line may be torn; that is left for the next
// time. It reports whether the index may still be used.
func (o *Index) Follow(b []byte) bool {
	n := len(o.last)
	if len(b) < n {
		return false
	}
	for i, c := range o.last {
		if b[i] != c && (i != 1 || !o.lastTag) {
			return false // the file was cut off there, and has grown again
		}
	}
	return o.extend(b[n:])
}

// extend takes in lines that were appended at the end.
func (o *Index) extend(appended []byte) bool {
	var last []byte
	for line := range bytes.Lines(wholeLines(appended)) {
		if o.Places() >= MaxPlaces {
			return false
		}
		appendedLine(bytes.TrimSuffix(line, []byte{'\n'}), func(recipient int64) { o.about(recipient, len(line)) })
		o.end += int64(len(line))
		last = line
	}
	if last != nil {
		o.ends(last)
	}
	return o.Places() <= MaxPlaces && o.end <= maxIndexed
}

// ends notes the line before the end.
func (o *Index) ends(line []byte) {
	o.last = append(o.last[:0], line[max(0, len(line)-maxLast):]...)
	o.lastTag = len(line) <= maxLast && line[0] == 'd'
}

// isEvent reports whether a line is an event of that name.
func isEvent(line []byte, event string) bool {
	f := bytes.SplitN(line, []byte{' '}, 5)
	return len(f) > 3 && string(f[0]) == "h" && string(f[3]) == event
}

func wholeLines(b []byte) []byte { return b[:bytes.LastIndexByte(b, '\n')+1] }

// appendedLine calls about for each recipient that one appended line is about, 0 being all;
// for none if the line cannot be read.
func appendedLine(line []byte, about func(recipient int64)) {
	if len(line) < 2 {
		return
	}
	switch line[0] {
	case 'd':
		number, _, _ := bytes.Cut(line[2:], []byte{':'})
		if n, ok := decimal(number); ok {
			about(n)
		}
	case 'h':
		_, rest, _ := bytes.Cut(line[2:], []byte{' '})
		number, rest, _ := bytes.Cut(rest, []byte{' '})
		n, ok := decimal(number)
		// What is about a range of recipients is taken for one about all: it is read for each
		// of them, and takes one place.
		if list, some := listed(rest); some && n == 0 && !hasRange(list) {
			for word := range bytes.SplitSeq(list, []byte{','}) {
				if n, err := strconv.ParseInt(string(word), 10, 64); err == nil && n > 0 {
					about(n)
				}
			}
		} else if ok {
			about(n)
		}
	}
}

// listed returns the value of an event's key rcpts, "EVENT KEY=VALUE... TEXT" being what
// follows its offset. One that is in its text is no harm: then the event is about the
// whole message, too. An unlocked event is always so: see Doubts.
func listed(v []byte) (list []byte, ok bool) {
	event, v, _ := bytes.Cut(v, []byte{' '})
	if string(event) == EventUnlocked {
		return nil, false
	}
	for len(v) > 0 {
		word, rest, _ := bytes.Cut(v, []byte{' '})
		key, value, is := bytes.Cut(word, []byte{'='})
		switch {
		case !is || len(key) == 0:
			return nil, false
		case string(key) == keyRecipients:
			return value, len(value) > 0
		}
		v = rest
	}
	return nil, false
}

// about notes the line of that length at the end for a recipient, 0 being all of them.
func (o *Index) about(recipient int64, length int) {
	last := &o.whole
	if recipient != 0 {
		i, there := slices.BinarySearchFunc(o.rcpts, recipient, func(r recipientPlace, at int64) int { return cmp.Compare(int64(r.from), at) })
		if !there {
			return
		}
		last = &o.rcpts[i].lines
	}
	o.lines = append(o.lines, linePlace{uint32(o.end), uint32(o.end) + uint32(length), *last})
	*last = int32(len(o.lines) - 1)
}

// hashHost is FNV-1a of a host in lower case, 0 for one that is not plain ASCII, of which
// this would not find every spelling (bytes.EqualFold).
func hashHost(host []byte) uint32 {
	h := uint32(2166136261)
	for _, c := range host {
		switch {
		case c >= 0x80:
			return 0
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		}
		h = (h ^ uint32(c)) * 16777619
	}
	return max(h, 1)
}

// Partial is some of a specification's bytes: all that is to be known of some recipients.
type Partial struct {
	Parts []Part // in the file's order, apart from each other
	b     []byte // what is there, one after the other
	of    *Index
	rcpts []int32 // of the index
	lines []filed // appended ones
}

// filed is an appended line and whom it is about.
type filed struct {
	line      int32 // of the index
	recipient int64
}

// Part is a part of the file.
type Part struct {
	From, To int64
	at       int64 // where it begins in the partial read
}

// Part of a file as costly to read as this many bytes more.
const partCost = 1 << 10

// Whole returns the partial read that has a part of the file in b, which begins at an offset.
func Whole(b []byte, from int64) *Partial {
	return &Partial{Parts: []Part{{From: from, To: from + int64(len(b))}}, b: b}
}

// Partial returns what to read for the recipients of a host. nil: the whole file, because
// there are none, or because that is as cheap.
func (o *Index) Partial(host string) *Partial {
	e := o.pick(host)
	if e == nil || e.size()+int64(len(e.Parts))*partCost > o.end {
		return nil
	}
	return e
}

// pick is Partial whatever it costs.
func (o *Index) pick(host string) *Partial {
	want := hashHost([]byte(host))
	if want == 0 {
		return nil
	}
	e := &Partial{of: o}
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
func (e *Partial) find(hash uint32) {
	list := e.of.byHost
	i := sort.Search(len(list), func(i int) bool { return e.of.rcpts[list[i]].host >= hash })
	for ; i < len(list) && e.of.rcpts[list[i]].host == hash; i++ {
		e.rcpts = append(e.rcpts, list[i])
	}
}

func (o *Index) groupOf(recipient uint32) int {
	return sort.Search(len(o.groups), func(i int) bool { return o.groups[i].from > recipient }) - 1
}

func (e *Partial) add(from, to uint32) {
	if from < to {
		e.Parts = append(e.Parts, Part{From: int64(from), To: int64(to)})
	}
}

// chain adds the lines about somebody.
func (e *Partial) chain(i int32, recipient int64) {
	for ; i >= 0; i = e.of.lines[i].next {
		e.lines = append(e.lines, filed{i, recipient})
		e.add(e.of.lines[i].from, e.of.lines[i].to)
	}
}

// join puts parts in order, and those together that touch.
func (e *Partial) join() {
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

// size returns how many bytes the parts have.
func (e *Partial) size() int64 {
	last := &e.Parts[len(e.Parts)-1]
	return last.at + last.To - last.From
}

// Fill has read put the bytes of every part into a buffer, which is grown where it is too
// small, and gives that back.
func (e *Partial) Fill(buf []byte, read func(b []byte, off int64) error) ([]byte, error) {
	e.b = slices.Grow(buf[:0], int(e.size()))[:e.size()]
	for _, p := range e.Parts {
		if err := read(e.b[p.at:p.at+p.To-p.From], p.From); err != nil {
			return e.b, err
		}
	}
	return e.b, nil
}

// Slice returns what is between two offsets of the file, which must be of one part; else
// it is nil. It must not be changed.
func (e *Partial) Slice(from, to int64) []byte {
	i := sort.Search(len(e.Parts), func(i int) bool { return e.Parts[i].To >= to })
	if i == len(e.Parts) || from < e.Parts[i].From || from > to {
		return nil
	}
	start := e.Parts[i].at - e.Parts[i].From
	return e.b[start+from : start+to : start+to]
}

// Len returns how many bytes the partial read has.
func (e *Partial) Len() int { return len(e.b) }

// Parse reads what was filled in: a Spec of these recipients with their groups, and of
// what was appended that which is about them or about the whole message. Offsets are the
// file's; Size, Ignored and ErrorTo are not those of the whole. It reports whether everything
// is where the index says; if not, somebody has put something else there, and the
// whole file is to be read.
func (e *Partial) Parse() (*Spec, bool) {
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

// linesStand reports whether every appended line still ends where it did and is about whom
// it was.
func (e *Partial) linesStand() bool {
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

// inFile returns where the byte at an offset of the partial read is in the file.
func (e *Partial) inFile(at int64) int64 {
	i := sort.Search(len(e.Parts), func(i int) bool { return e.Parts[i].at > at }) - 1
	return e.Parts[i].From + at - e.Parts[i].at
}
