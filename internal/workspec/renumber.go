package workspec

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"
)

// EventRenumbered: the message's file has another inode number than its name said, as
// after a copy or restore, and both files were renamed. was=NAME id=SPOOLID: how they
// were called before.
const EventRenumbered = "renumbered"

// ErrIncomplete is returned by Renumber for a specification that its writer did not
// finish: it is to be routed again, not mended.
var ErrIncomplete = errors.New("the specification is not complete")

// Renumber returns the bytes of a complete specification with another name of its
// message in the i line. All else stays as it is, byte for byte, but for the numbers
// that are offsets into the file: when the name's length changes they follow, in d
// and h lines and in the closing z line. A torn last line is left out, as readers do.
// It refuses what it cannot read back as the same specification.
func Renumber(file []byte, message string) ([]byte, error) {
	old, err := Parse(file)
	if err != nil {
		return nil, err
	}
	if !old.Complete {
		return nil, ErrIncomplete
	}
	if message == "" || bytes.ContainsAny([]byte(message), " \t\n\r\x00") {
		return nil, fmt.Errorf("renumber work specification: %w: %q", ErrValue, message)
	}
	if old.NameOffset == 0 {
		return nil, fmt.Errorf("renumber work specification: %w: there is no i line", ErrValue)
	}
	if old.Torn {
		file = file[:bytes.LastIndexByte(file, '\n')+1]
	}
	r := renumbering{file: file, spec: old, message: message, name: old.NameOffset}
	// A number that grows a digit moves what follows it; mostly one round is it.
	var edits []edit
	for range maxRounds {
		next := r.edits(edits)
		if slices.Equal(next, edits) {
			break
		}
		edits = next
	}
	out := r.seal(apply(file, edits), edits)
	if err := r.verify(out, edits); err != nil {
		return nil, fmt.Errorf("renumber work specification: %w", err)
	}
	return out, nil
}

// maxRounds bounds how often a number that grew a digit may make another one grow.
// verify refuses a result that has not settled.
const maxRounds = 25

// edit puts text where old bytes stood.
type edit struct {
	start, end int64
	text       string
	grown      int64 // bytes that this edit and those before it add
}

func apply(file []byte, edits []edit) []byte {
	out := make([]byte, 0, len(file)+16*len(edits))
	pos := int64(0)
	for _, e := range edits {
		out = append(append(out, file[pos:e.start]...), e.text...)
		pos = e.end
	}
	return append(out, file[pos:]...)
}

// moved returns the offset of a byte after the edits.
func moved(offset int64, edits []edit) int64 {
	n := sort.Search(len(edits), func(i int) bool { return edits[i].end > offset })
	if n == 0 {
		return offset
	}
	return offset + edits[n-1].grown
}

type renumbering struct {
	file    []byte
	spec    *Spec
	message string
	name    int64 // offset of the message's name in the i line
}

// edits returns the changes, in the file's order, if what is at an offset moves as
// the edits before say.
func (r *renumbering) edits(before []edit) []edit {
	list := []edit{{start: r.name, end: r.name + int64(len(r.spec.Message)), text: r.message}}
	number := func(start, end int64) {
		n, ok := decimal(r.file[start:end])
		if !ok || n == 0 {
			return
		}
		if to := moved(n, before); to != n {
			list = append(list, edit{start: start, end: end, text: strconv.FormatInt(to, 10)})
		}
	}
	if z := r.spec.ZOffset; z > 0 {
		end := r.lineEnd(z)
		if hasSum(r.file, z) {
			end -= int64(len(" 00000000"))
		}
		number(z+2, end)
	}
	for i := range r.spec.Diagnostics {
		// d T OFFSET:HEADEROFFSET:NOTARYOFFSET:...
		start := r.spec.Diagnostics[i].LineOffset + 2
		for range 3 {
			end := start + int64(bytes.IndexByte(r.file[start:], ':'))
			number(start, end)
			start = end + 1
		}
	}
	for i := range r.spec.History {
		r.event(&r.spec.History[i], number)
	}
	slices.SortFunc(list, func(a, b edit) int { return cmp.Compare(a.start, b.start) })
	grown := int64(0)
	for i := range list {
		grown += int64(len(list[i].text)) - (list[i].end - list[i].start)
		list[i].grown = grown
	}
	return list
}

// event calls number for the offsets in an h line: h UNIXMS OFFSET EVENT KEY=VALUE...
func (r *renumbering) event(e *Event, number func(start, end int64)) {
	end := r.lineEnd(e.LineOffset)
	pos := e.LineOffset + 2
	word := func() (start, stop int64) {
		start, stop = pos, end
		if n := bytes.IndexByte(r.file[pos:end], ' '); n >= 0 {
			stop = pos + int64(n)
		}
		pos = min(stop+1, end)
		return start, stop
	}
	word()
	number(word())
	word()
	for range e.Attrs {
		start, stop := word()
		list, ok := bytes.CutPrefix(r.file[start:stop], []byte(keyRecipients+"="))
		if !ok {
			continue
		}
		// Offsets, and ranges of them.
		for at := stop - int64(len(list)); at < stop; at++ {
			n := at
			for at < stop && r.file[at] >= '0' && r.file[at] <= '9' {
				at++
			}
			number(n, at)
		}
	}
}

// seal gives the closing z line the checksum of the file as it is now.
func (r *renumbering) seal(out []byte, edits []edit) []byte {
	if r.spec.ZOffset == 0 || !hasSum(r.file, r.spec.ZOffset) {
		return out
	}
	var s sum
	from := int64(0)
	for i := range r.spec.Groups {
		for j := range r.spec.Groups[i].Recipients {
			at := moved(r.spec.Groups[i].Recipients[j].Offset, edits)
			s = s.add(out[from : at+1])
			from = at + 1 + int64(fixedWidth(r.spec.Format))
		}
	}
	z := moved(r.spec.ZOffset, edits)
	s = s.add(out[from:z])
	end := z + int64(bytes.IndexByte(out[z:], '\n'))
	copy(out[end-int64(len(" 00000000")):end], s.appendSum(nil))
	return out
}

func (r *renumbering) lineEnd(offset int64) int64 {
	return offset + int64(bytes.IndexByte(r.file[offset:], '\n'))
}

// verify reads the result back: every line that is named by its offset must be where
// the others say, and be what it was.
func (r *renumbering) verify(out []byte, edits []edit) error {
	got, err := Parse(out)
	if err != nil {
		return err
	}
	old := r.spec
	same := got.Complete && got.Message == r.message && got.HasZ == old.HasZ && len(got.Groups) == len(old.Groups) &&
		len(got.Diagnostics) == len(old.Diagnostics) && len(got.History) == len(old.History) &&
		got.Ignored == old.Ignored && got.Ident == old.Ident && got.Client == old.Client && got.User == old.User && slices.Equal(got.ErrorTo, old.ErrorTo)
	for i := 0; same && i < len(old.Groups); i++ {
		a, b := &old.Groups[i], &got.Groups[i]
		same = b.HeaderOffset == moved(a.HeaderOffset, edits) && len(a.Recipients) == len(b.Recipients)
		for j := 0; same && j < len(a.Recipients); j++ {
			x, y := a.Recipients[j], b.Recipients[j]
			x.Offset, x.NotaryOffset = moved(x.Offset, edits), moved(x.NotaryOffset, edits)
			same = x == y
		}
	}
	for i := 0; same && i < len(old.Diagnostics); i++ {
		a, b := &old.Diagnostics[i], &got.Diagnostics[i]
		same = b.Recipient == moved(a.Recipient, edits) && b.Reported == a.Reported && b.Notary == a.Notary
	}
	for i := 0; same && i < len(old.History); i++ {
		same = got.History[i].Recipient == moved(old.History[i].Recipient, edits) && got.History[i].Event == old.History[i].Event
	}
	if !same {
		return fmt.Errorf("%w: the new name %q would change what the file says", ErrValue, r.message)
	}
	return nil
}

// saysTheSame reports whether another history of the same file has the same content that
// programs act on: of each recipient its last deferral, what a header or minage wished, and whether it is in
// doubt; and every diagnostic, order and other event.
func (s *Spec) saysTheSame(other *Spec) bool {
	if s.ZOffset != other.ZOffset || !other.Complete || !reflect.DeepEqual(s.Groups, other.Groups) || len(s.Diagnostics) != len(other.Diagnostics) {
		return false
	}
	for i := range s.Diagnostics {
		a, b := s.Diagnostics[i], other.Diagnostics[i]
		b.LineOffset = a.LineOffset
		if a != b {
			return false
		}
	}
	a, b := s.told(), other.told()
	same := func(x, y *Event) bool { return x == y || x != nil && y != nil && sameLine(x, y) }
	if !slices.EqualFunc(a.others, b.others, same) || !slices.EqualFunc(a.last, b.last, func(x, y deferral) bool {
		return x.behind == y.behind && (x.event == nil) == (y.event == nil)
	}) {
		return false
	}
	// Many recipients have one event.
	alike := map[[2]*Event]bool{}
	for i := range a.last {
		x, y := a.last[i].event, b.last[i].event
		pair := [2]*Event{x, y}
		if x == nil || i > 0 && pair == [2]*Event{a.last[i-1].event, b.last[i-1].event} || alike[pair] {
			continue
		}
		if !x.Time.Equal(y.Time) || !sameDeferral(x, y) {
			return false
		}
		alike[pair] = true
	}
	before, after := s.Doubts(), other.Doubts()
	for gi := range s.Groups {
		for ri := range s.Groups[gi].Recipients {
			if !sameDoubt(&before, &after, &s.Groups[gi].Recipients[ri]) {
				return false
			}
		}
	}
	return true
}

// deferral is a recipient's last one, and the number of operations and the like before it.
type deferral struct {
	event  *Event
	behind int
}

// told is what programs go by.
type told struct {
	last   []deferral // of each recipient, in the file's order
	others []*Event
}

func (s *Spec) told() told {
	n := s.numbering()
	t := told{last: make([]deferral, n.n)}
	for i := range s.History {
		e := &s.History[i]
		switch e.Event {
		case EventSent, EventUnlocked, EventInDoubt, EventSummarised, EventSuperseded:
		case EventDeferred:
			n.about(e, func(r int32) { t.last[r] = deferral{e, len(t.others)} })
		default:
			t.others = append(t.others, e)
		}
	}
	return t
}

func sameLine(a, b *Event) bool {
	return a.Time.Equal(b.Time) && a.Recipient == b.Recipient && a.Event == b.Event && a.Text == b.Text && slices.Equal(a.Attrs, b.Attrs)
}
