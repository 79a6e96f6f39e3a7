package workspec

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// keyRecipients is the key of an event that is about several recipients. Its value is a
// list with commas between: the offset of a recipient, or A-B for all recipients whose r
// lines stand at A, at B, or between them. An event about 10,000 recipients of one host
// so takes no more room than an event about one of them.
const keyRecipients = "rcpts"

// About yields the recipients that an event is about, as far as they are in s, in the
// order of the event. It yields none for an event about the whole message.
func (s *Spec) About(e *Event) iter.Seq[*Recipient] {
	return func(yield func(*Recipient) bool) {
		if e.Recipient != 0 {
			if r := s.find(e.Recipient); r != nil {
				yield(r)
			}
			return
		}
		for word := range strings.SplitSeq(e.Get(keyRecipients), ",") {
			from, to, ok := parseRange(word)
			if !ok {
				continue
			}
			for r := range s.between(from, to) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// find returns the recipient at an offset, nil if there is none.
func (s *Spec) find(offset int64) *Recipient {
	for r := range s.between(offset, offset) {
		return r
	}
	return nil
}

// between yields the recipients whose offsets are from the one to the other.
func (s *Spec) between(from, to int64) iter.Seq[*Recipient] {
	return func(yield func(*Recipient) bool) {
		for gi, i := range s.placesBetween(from, to) {
			if !yield(&s.Groups[gi].Recipients[i]) {
				return
			}
		}
	}
}

// placesBetween is between, and yields the number of the group and that in it.
func (s *Spec) placesBetween(from, to int64) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		// Groups are in the order of the file, and so are their recipients.
		first := sort.Search(len(s.Groups), func(i int) bool {
			list := s.Groups[i].Recipients
			return s.Groups[i].Sender.Offset > from || len(list) > 0 && list[len(list)-1].Offset >= from
		})
		for gi := first; gi < len(s.Groups) && s.Groups[gi].Sender.Offset <= to; gi++ {
			list := s.Groups[gi].Recipients
			i, _ := slices.BinarySearchFunc(list, from, func(r Recipient, at int64) int { return cmp.Compare(r.Offset, at) })
			for ; i < len(list) && list[i].Offset <= to; i++ {
				if !yield(gi, i) {
					return
				}
			}
		}
	}
}

// numbering numbers the recipients of a specification in the file's order.
type numbering struct {
	s      *Spec
	before []int32 // how many stand before each group
	n      int32   // of all
}

func (s *Spec) numbering() numbering {
	n := numbering{s: s, before: make([]int32, len(s.Groups))}
	for gi := range s.Groups {
		n.before[gi] = n.n
		n.n += int32(len(s.Groups[gi].Recipients))
	}
	return n
}

// about is Spec.About with the numbers of the recipients.
func (n *numbering) about(e *Event, fn func(r int32)) {
	among := func(from, to int64) {
		for gi, i := range n.s.placesBetween(from, to) {
			fn(n.before[gi] + int32(i))
		}
	}
	if e.Recipient != 0 {
		among(e.Recipient, e.Recipient)
		return
	}
	for word := range strings.SplitSeq(e.Get(keyRecipients), ",") {
		if from, to, ok := parseRange(word); ok {
			among(from, to)
		}
	}
}

// parseRange reads a word of the key rcpts.
func parseRange(word string) (from, to int64, ok bool) {
	first, last, ranges := strings.Cut(word, "-")
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil || from <= 0 {
		return 0, 0, false
	}
	if !ranges {
		return from, from, true
	}
	to, err = strconv.ParseInt(last, 10, 64)
	return from, to, err == nil && to >= from
}

// SetAbout has an event be about recipients of s, whose offsets ascend: about one by its
// offset, about several by the key rcpts, where those that stand side by side in the file
// become a range.
func (s *Spec) SetAbout(e *Event, chosen []int64) {
	e.Recipient = 0
	e.Attrs = slices.DeleteFunc(slices.Clone(e.Attrs), func(a Attr) bool { return a.Key == keyRecipients })
	if len(chosen) == 1 {
		e.Recipient = chosen[0]
		return
	}
	e.Attrs = append(e.Attrs, Attr{keyRecipients, s.ranges(chosen)})
}

// ranges is the value of the key rcpts.
func (s *Spec) ranges(chosen []int64) string {
	var b []byte
	last, n := int64(0), 0
	end := func() {
		if n > 1 {
			b = append(b, '-')
			b = strconv.AppendInt(b, last, 10)
		}
	}
	next := int64(0) // what stands behind last; 0: nothing, or a recipient that was left out
	for _, offset := range chosen {
		if n == 0 || offset != next {
			end()
			if len(b) > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, offset, 10)
			n = 0
		}
		last, n = offset, n+1
		next = s.behind(last)
	}
	end()
	return string(b)
}

// behind is the offset of the recipient after another one; 0: there is none, or it was left out.
func (s *Spec) behind(offset int64) int64 {
	for r := range s.between(offset+1, 1<<62) {
		if _, apart := slices.BinarySearch(s.Apart, r.Offset); apart {
			return 0
		}
		return r.Offset
	}
	return 0
}

// hasRange reports whether the value of the key rcpts holds a range.
func hasRange(list []byte) bool { return bytes.IndexByte(list, '-') >= 0 }
