package workspec

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Events of a specification whose history was summarised.
const (
	// EventSummarised follows the z line: lines of attempts that reported nothing
	// new were left out. lines=N: how many in all; kept=BYTES: the size of what was left.
	EventSummarised = "summarised"
	// EventSuperseded is written before a summarised copy takes the file's place: who reads
	// it asks whether the file still has its name (postoffice.Spec.Replaced).
	EventSuperseded = "superseded"
)

const (
	keyLines = "lines"
	keyKept  = "kept"
)

// Superseded reports whether the file may have been replaced by a summarised copy.
func (s *Spec) Superseded() bool {
	return slices.ContainsFunc(s.History, func(e Event) bool { return e.Event == EventSuperseded })
}

// SupersededEvent returns the line for that.
func SupersededEvent(now time.Time) Event { return Event{Time: now, Event: EventSuperseded} }

// SummarisedEvent returns the line for a history that was found to be as short as it can be.
func SummarisedEvent(now time.Time) Event {
	return Event{Time: now, Event: EventSummarised, Attrs: []Attr{{keyLines, "0"}, {keyKept, "0"}}}
}

// Summarised returns the offset at which the lines begin that were appended since the
// history was last summarised or, if it never was, since the file was written. It may be
// off by the length of a line.
func (s *Spec) Summarised() int64 {
	at := s.ZOffset
	for i := range s.History {
		if e := &s.History[i]; e.Event == EventSummarised {
			kept, err := strconv.ParseInt(e.Get(keyKept), 10, 64)
			if err == nil && kept >= 0 && e.LineOffset+kept < s.Size {
				at = max(at, e.LineOffset+kept)
			}
		}
	}
	return at
}

// How much of a history is kept: with every change of the reply it may take twice the room
// that it took after one attempt, or smallHistory if that is more. Beyond that only the
// first and last changes are kept, fewer until it fits; the first and the last attempt
// always are.
const smallHistory = 32 << 10

// keptChanges are the numbers of changes that are tried.
var keptChanges = [...]int{64, 24, 8, 4, 1}

// Summarise returns the specification with a history that says in fewer lines how the
// attempts for each recipient ended: the first one, each one whose reply was not that of
// the one before it, and the last one; the numbers of attempts show how many were between.
// Of sent, unlocked and in-doubt events it keeps those that no later one has made void, and
// of sent events that list no recipient those whose owner still has a lock or lost one without an
// answer. All else stays as it is: what the router wrote, byte for byte, diagnostics,
// orders, and lines of other programs.
//
// It returns nil for a file that is not complete or has no checksum, so that its end is
// not sure, and for one about which the new history would not say the same.
func Summarise(file []byte, now time.Time) []byte {
	s, err := Parse(file)
	if err != nil || !s.Complete || !hasSum(file, s.ZOffset) {
		return nil
	}
	h := newHistory(file, s)
	floor := len(h.write(1, false, now))
	budget := max(2*floor, floor+smallHistory)
	var out []byte
	for _, changes := range keptChanges {
		if out = h.write(changes, true, now); len(out) <= budget {
			break
		}
	}
	if after, err := Parse(out); err != nil || !s.saysTheSame(after) {
		return nil
	}
	return out
}

// history is one to be summarised.
type history struct {
	file    []byte
	s       *Spec
	numbers numbering
	all     []int64 // offsets of recipients, in the file's order
	rcpts   []*Recipient
	// doubts is what the whole history says.
	doubts Doubts
	// decides is for each recipient the last event that decides whether it is in doubt:
	// earlier ones do not count any more. -1: none.
	decides []int32
	last    []int32   // its last deferral; -1: none
	changes [][]int32 // its deferrals whose reply was not that of the one before
}

func newHistory(file []byte, s *Spec) *history {
	h := &history{file: file, s: s, numbers: s.numbering(), doubts: Doubts{one: map[int64]doubt{}}}
	for gi := range s.Groups {
		for ri := range s.Groups[gi].Recipients {
			h.all = append(h.all, s.Groups[gi].Recipients[ri].Offset)
			h.rcpts = append(h.rcpts, &s.Groups[gi].Recipients[ri])
		}
	}
	n := len(h.all)
	h.decides, h.last, h.changes = make([]int32, n), make([]int32, n), make([][]int32, n)
	for i := range n {
		h.decides[i], h.last[i] = -1, -1
	}
	run := make([]int32, n) // the last deferral of a run of the same ones; -1: none
	for i := range run {
		run[i] = -1
	}
	masked := map[int32]string{}
	mask := func(i int32) string {
		if _, ok := masked[i]; !ok {
			masked[i] = withoutNumbers(s.History[i].Text)
		}
		return masked[i]
	}
	for i := range s.History {
		e, at := &s.History[i], int32(i)
		h.doubts.next(s, e, func(recipient int64) { h.decides[h.number(recipient)] = at })
		switch e.Event {
		case EventSent, EventInDoubt, EventUnlocked:
		case EventDeferred:
			before, same := int32(-1), false // neighbours mostly have the same one
			h.numbers.about(e, func(k int32) {
				if run[k] >= 0 && run[k] != before {
					before, same = run[k], h.alike(run[k], at, mask)
				}
				if run[k] < 0 || !same {
					h.changes[k] = append(h.changes[k], at)
				}
				run[k], h.last[k] = at, at
			})
		default:
			if !e.listsNone() {
				h.each(e, func(r int32) { run[r] = -1 })
			}
		}
	}
	return h
}

// number is that of the recipient at an offset.
func (h *history) number(offset int64) int32 {
	i, _ := slices.BinarySearch(h.all, offset)
	return int32(i)
}

// each calls fn for every recipient that an event is about.
func (h *history) each(e *Event, fn func(r int32)) {
	if e.listsNone() {
		for r := range h.all {
			fn(int32(r))
		}
		return
	}
	h.numbers.about(e, fn)
}

// alike reports whether two deferrals of a recipient say the same.
func (h *history) alike(a, b int32, mask func(int32) string) bool {
	x, y := &h.s.History[a], &h.s.History[b]
	if x.Get("status") != y.Get("status") || (x.Get("host") == "") != (y.Get("host") == "") || (x.Get("attempt") == "0") != (y.Get("attempt") == "0") {
		return false
	}
	return x.Text == y.Text || mask(a) == mask(b)
}

// withoutNumbers returns a reply without the words that are another one each time: those that
// hold a digit and are neither the reply's codes at its start nor an address.
func withoutNumbers(text string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		if (i > 1 || len(w) > 5) && strings.ContainsAny(w, "0123456789") && !strings.Contains(w, "@") {
			words[i] = "#"
		}
	}
	return strings.Join(words, " ")
}

// keeps reports whether the event still says something about a recipient.
func (h *history) keeps(e *Event, at, r int32, changes int, last bool) bool {
	if e.Event == EventSent && e.listsNone() {
		// It may be about recipients of which nothing will be said any more, so it does not
		// wait for a later event about each of them.
		return at >= h.decides[r] && h.doubts.needs(e, h.rcpts[r])
	}
	if e.Event != EventDeferred {
		return at >= h.decides[r]
	}
	if last && (at == h.last[r] || at == h.decides[r]) || e.Get("attempt") == "0" {
		return true
	}
	i, found := slices.BinarySearch(h.changes[r], at)
	// The first ones and twice as many of the last ones.
	n := len(h.changes[r])
	return found && (i < (changes+2)/3 || last && i >= n-changes*2/3)
}

// write writes the file with some changes for each recipient.
func (h *history) write(changes int, last bool, now time.Time) []byte {
	out := &summary{h: h, stamp: make([]int32, len(h.all)), moment: 1, block: map[string]int{}}
	appended := h.s.ZOffset
	appended += int64(bytes.IndexByte(h.file[appended:], '\n')) + 1
	at, pos, next := int32(0), int64(0), appended
	for line := range bytes.Lines(wholeLines(h.file[appended:])) {
		pos, next = next, next+int64(len(line))
		for int(at) < len(h.s.History) && h.s.History[at].LineOffset < pos {
			at++
		}
		if int(at) < len(h.s.History) && h.s.History[at].LineOffset == pos {
			out.event(&h.s.History[at], line, at, changes, last)
			continue
		}
		if n := len(line) - 1; n > 0 && (line[n-1] != canceled || line[0] != 'd' && line[0] != 'h') {
			out.line(line)
		}
	}
	out.flush()
	file := append(make([]byte, 0, int(appended)+len(out.kept)+64), h.file[:appended]...)
	note := Event{Time: now, Event: EventSummarised, Attrs: []Attr{{keyLines, strconv.Itoa(out.left)}, {keyKept, strconv.Itoa(len(out.kept))}}}
	return append(AppendEvent(file, &note), out.kept...)
}

// summary is a history that is being written.
type summary struct {
	h    *history
	kept []byte
	left int // lines that were left out
	// What is said at one moment of recipients that are not among others of it may change
	// places, so what is said of several becomes one line.
	events []Event
	about  [][]int64
	block  map[string]int // of events, by what they say
	moment int32
	stamp  []int32 // the moment of each recipient
	// Scratch.
	list    []int64
	numbers []int32
}

// event takes in one event.
func (w *summary) event(e *Event, line []byte, at int32, changes int, last bool) {
	whole := e.listsNone()
	switch e.Event {
	case EventSummarised:
		if n, err := strconv.Atoi(e.Get(keyLines)); err == nil && n > 0 {
			w.left += n
		}
		return
	case EventSuperseded:
		return
	case EventDeferred:
		if whole {
			break // it says nothing of anybody
		}
		w.deferral(e, at, changes, last)
		return
	case EventSent, EventUnlocked, EventInDoubt:
		all := 0
		list := w.list[:0]
		w.h.each(e, func(r int32) {
			all++
			if w.h.keeps(e, at, r, changes, last) {
				list = append(list, w.h.all[r])
			}
		})
		w.list = list
		switch {
		case len(list) == 0:
			w.left++
			return
		case len(list) == all || e.Recipient == 0 && (whole || e.Event == EventUnlocked):
		default:
			some := *e
			slices.Sort(list)
			w.h.s.SetAbout(&some, list)
			w.flush()
			w.kept = AppendEvent(w.kept, &some)
			return
		}
	}
	w.line(line)
}

func (w *summary) deferral(e *Event, at int32, changes int, last bool) {
	list, again := w.numbers[:0], false
	w.h.each(e, func(r int32) {
		if w.h.keeps(e, at, r, changes, last) {
			list = append(list, r)
			again = again || w.stamp[r] == w.moment
		}
	})
	w.numbers = list
	if len(list) == 0 {
		w.left++
		return
	}
	if again || len(w.events) > 0 && !w.events[0].Time.Equal(e.Time) {
		w.flush()
	}
	for _, r := range list {
		w.stamp[r] = w.moment
	}
	key := saying(e)
	i, there := w.block[key]
	if !there {
		i = len(w.events)
		w.block[key] = i
		w.events, w.about = append(w.events, *e), append(w.about, nil)
	} else {
		w.left++
	}
	w.about[i] = slices.Grow(w.about[i], len(list))
	for _, r := range list {
		w.about[i] = append(w.about[i], w.h.all[r])
	}
}

// line takes in a line as it is.
func (w *summary) line(line []byte) {
	w.flush()
	w.kept = append(w.kept, line...)
}

// flush writes the deferrals of a moment.
func (w *summary) flush() {
	for i := range w.events {
		slices.Sort(w.about[i])
		w.h.s.SetAbout(&w.events[i], slices.Compact(w.about[i]))
		w.kept = AppendEvent(w.kept, &w.events[i])
	}
	w.events, w.about = w.events[:0], w.about[:0]
	clear(w.block)
	w.moment++
}

// sameDeferral reports whether two deferrals say the same of their recipients.
func sameDeferral(a, b *Event) bool { return saying(a) == saying(b) }

// saying returns all that a deferral says of each of its recipients: its attributes, whatever
// their keys are, but for the list of recipients, and its text.
func saying(e *Event) string {
	var b strings.Builder
	for _, a := range e.Attrs {
		if a.Key != keyRecipients {
			b.WriteString(a.Key + "=" + a.Value + "\x00")
		}
	}
	return b.String() + "\x00" + e.Text
}
