package workspec

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
)

// Outline is where things stand in a specification that was read once. A message to
// very many hosts is a job for each of them, and of 10,000 lines each is about one: with
// the outline that one is found, and read, without the others. It holds places and no
// text, so what is read there is what the file says at that time.
//
// It is of a file that its writer has closed with a checksum, which tells it from another
// one. What the router wrote keeps its place, and lines are appended (Extend): nothing
// else happens to a specification. Where it does, by hand, places do not fit what stands
// there, and Follow or Excerpt.Parse says so.
type Outline struct {
	format  uint32
	closing string // the z line and the line that says that the history was summarised
	zAt     uint32
	groups  []groupPlace     // in the file's order, as
	rcpts   []recipientPlace // these
	byHost  []int32          // indexes of rcpts, by the hash of their hosts and then by place
	lines   []linePlace      // appended ones; a line about several recipients more than once
	whole   int32            // the last of lines that is about the whole message; none: -1
	end     int64            // of the lines that are known
	last    []byte           // what stands before it: the last line, of a long one its end
	lastTag bool             // its second byte is a diagnostic's tag, which changes
}

// groupPlace is where a group's s line, its first r line, its m line and what follows its
// header block stand.
type groupPlace struct{ from, first, header, after uint32 }

// recipientPlace is where an r line begins and its last line ends.
type recipientPlace struct {
	from, to uint32
	host     uint32 // hash; 0: of a host that is not plain ASCII
	lines    int32  // the last of Outline.lines about it; none: -1
}

type linePlace struct {
	from, to uint32
	next     int32 // the line before that is about the same; none: -1
}

// Limits of what has an outline.
const (
	maxOutlined = 64 << 20 // bytes of a file
	// MaxPlaces is how many places an outline may have: 5 MB.
	MaxPlaces = 1 << 18
	maxLast   = 1 << 10 // bytes of the last line that are compared
)

// NewOutline makes the outline of a file that was read to s, with ParseOnly or Parse. nil:
// it has none.
func NewOutline(file []byte, s *Spec) *Outline {
	if !s.Complete || !hasSum(file, s.ZOffset) || len(file) > maxOutlined {
		return nil
	}
	closing, rest, _ := bytes.Cut(file[s.ZOffset:], []byte{'\n'})
	o := &Outline{format: s.Format, closing: string(closing) + "\n", zAt: uint32(s.ZOffset), whole: -1}
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

// group takes in a group, which next follows. It tells whether everything in it is as
// Writer has it.
func (o *Outline) group(file []byte, g *Group, next int64) bool {
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

// onlyErrorTo tells whether nothing but e lines stands between two groups.
func onlyErrorTo(file []byte, from, to int64) bool {
	for from < to && file[from] == 'e' {
		from += int64(bytes.IndexByte(file[from:to], '\n')) + 1
	}
	return from == to
}

// Places is how many places the outline has; each takes some 20 bytes.
func (o *Outline) Places() int { return len(o.groups) + len(o.rcpts) + len(o.lines) }

// End is where the lines end that the outline knows, behind a newline.
func (o *Outline) End() int64 { return o.end }

// Last is where Follow is to be given the file from: before End.
func (o *Outline) Last() int64 { return o.end - int64(len(o.last)) }

// Follow takes in what stands in the file from Last on: the last line that is known, and
// what was appended since, of which the last line may be torn; that is left for the next
// time. It tells whether the outline may still be used.
func (o *Outline) Follow(b []byte) bool {
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
func (o *Outline) extend(appended []byte) bool {
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
	return o.Places() <= MaxPlaces && o.end <= maxOutlined
}

// ends notes the line that stands before the end.
func (o *Outline) ends(line []byte) {
	o.last = append(o.last[:0], line[max(0, len(line)-maxLast):]...)
	o.lastTag = len(line) <= maxLast && line[0] == 'd'
}

// isEvent reports whether a line is an event of that name.
func isEvent(line []byte, event string) bool {
	f := bytes.SplitN(line, []byte{' '}, 5)
	return len(f) > 3 && string(f[0]) == "h" && string(f[3]) == event
}

func wholeLines(b []byte) []byte { return b[:bytes.LastIndexByte(b, '\n')+1] }

// appendedLine tells whom one appended line is about, 0 being all. Of a line that nobody
// can read it tells nobody.
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

// listed is the value of an event's key rcpts, "EVENT KEY=VALUE... TEXT" being what
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
func (o *Outline) about(recipient int64, length int) {
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
