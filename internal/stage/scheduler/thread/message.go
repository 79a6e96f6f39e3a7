package thread

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Message is one message with recipients that wait. The caller fills in what is
// exported and keeps Open right for recipients that are in no vertex. There may be
// millions: it is kept small.
type Message struct {
	Number uint64 // in its name, by which answers of agents name it; see Inode
	Stamp  int64  // when it was accepted, in nanoseconds since 1970

	first *Vertex
	due   int64 // milliseconds of the core's time: see Remind
	odd   *odd  // what few messages have

	Open   int32  // recipients without a final outcome
	Total  int32  // recipients, final ones included
	Sender uint32 // SenderKey of who sent it: senders take turns
	Seen   uint32 // free for the caller: its last look at the directory
	slot   int32
	name   [3]byte // the number of levels and the owner, see SetName; and entered
	Owes   bool    // free for the caller: its specification holds more than tags
}

// odd is what few messages have.
type odd struct {
	name  string // that cannot be made of numbers
	away  int64  // milliseconds that do not count for its age
	ahead int64  // milliseconds from its stamp to the core's time when it was accepted
	// aside is milliseconds that do not count for the age of some vertices.
	aside map[*Vertex]int64
	inode uint64 // 0: Number
	// moves is how often recipients were given another source, by their offset.
	moves map[int64]int
	// common: other messages have it, too; it is not changed.
	common bool
}

func (m *Message) oddly() *odd {
	switch {
	case m.odd == nil:
		m.odd = &odd{}
	case m.odd.common:
		m.odd = &odd{ahead: m.odd.ahead}
	}
	return m.odd
}

func (m *Message) ahead() int64 {
	if m.odd == nil {
		return 0
	}
	return m.odd.ahead
}

// Inode returns the number in the message's spool ID: Number, unless SetInode said another
// one.
func (m *Message) Inode() uint64 {
	if m.odd == nil || m.odd.inode == 0 {
		return m.Number
	}
	return m.odd.inode
}

// SetInode sets the inode number of the spool ID, where the message's name has another number.
func (m *Message) SetInode(number uint64) { m.oddly().inode = number }

// Away returns how much of its age does not count.
func (m *Message) Away() time.Duration {
	if m.odd == nil {
		return 0
	}
	return time.Duration(m.odd.away) * time.Millisecond
}

// SetAway sets how much of its age does not count.
func (m *Message) SetAway(d time.Duration) {
	if d != m.Away() {
		m.oddly().away = d.Milliseconds()
	}
}

// SetAway sets how much of the age of v does not count, beside Message.Away.
func (v *Vertex) SetAway(d time.Duration) {
	o := v.Message.oddly()
	if o.aside == nil {
		o.aside = map[*Vertex]int64{}
	}
	o.aside[v] = d.Milliseconds()
}

// away returns how much of its age does not count, in milliseconds.
func (v *Vertex) away() int64 {
	o := v.Message.odd
	if o == nil {
		return 0
	}
	return o.away + o.aside[v]
}

// SetMoves sets how often the recipient at an offset was given another source, and reports
// whether that is new. The gate is asked by Ask.
func (m *Message) SetMoves(recipient int64, n int) bool {
	if m.moves()[recipient] == n {
		return false
	}
	o := m.oddly()
	if o.moves == nil {
		o.moves = map[int64]int{}
	}
	o.moves[recipient] = n
	return true
}

func (m *Message) moves() map[int64]int {
	if m.odd == nil {
		return nil
	}
	return m.odd.moves
}

// Moves returns how often the recipients were given another source: each number that one of
// them has.
func (v *Vertex) Moves() []int {
	of := v.Message.moves()
	if len(of) == 0 {
		return []int{0}
	}
	var list []int
	for _, r := range v.Recipients() {
		if n := of[r.Offset()]; !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

// Moved counts that the recipient at an offset was given another source.
func (m *Message) Moved(recipient int64) { m.SetMoves(recipient, m.moves()[recipient]+1) }

// SetName sets the message's name below transport/. Number is set before. A name as
// the postoffice gives them takes no memory: it is made of the number, the owner and
// the number of hash directories.
func (m *Message) SetName(name string) {
	levels := strings.Count(name, "/")
	_, owner, _ := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], "-")
	n, _ := strconv.ParseUint(owner, 10, 20)
	if m.odd != nil && m.odd.name != "" {
		m.odd.name = ""
	}
	m.name = [3]byte{byte(n), byte(n >> 8), byte(n>>16) | byte(min(levels, 3))<<4 | m.name[2]&entered}
	if !m.Named(name) {
		m.oddly().name = strings.Clone(name)
	}
}

// Name returns the message's name below transport/.
func (m *Message) Name() string {
	var room [40]byte
	return string(m.AppendName(room[:0]))
}

// Named reports whether that is the message's name.
func (m *Message) Named(name string) bool {
	var room [40]byte
	return string(m.AppendName(room[:0])) == name
}

// entered, in the last byte of a message's name, marks it as known to the core.
const entered = 1 << 7

// AppendName appends what Name gives.
func (m *Message) AppendName(b []byte) []byte {
	if m.odd != nil && m.odd.name != "" {
		return append(b, m.odd.name...)
	}
	levels := m.name[2] >> 4 & 3
	if levels > 1 {
		b = append(b, byte('A'+m.Number/26%26), '/')
	}
	if levels > 0 {
		b = append(b, byte('A'+m.Number%26), '/')
	}
	b = strconv.AppendUint(b, m.Number, 10)
	if owner := uint64(m.name[0]) | uint64(m.name[1])<<8 | uint64(m.name[2]&15)<<16; owner > 0 {
		b = strconv.AppendUint(append(b, '-'), owner, 10)
	}
	return b
}

// Vertices calls fn for each vertex of m; fn may end that one.
func (m *Message) Vertices(fn func(*Vertex)) {
	var next *Vertex
	for v := m.first; v != nil; v = next {
		next = v.sibling
		fn(v)
	}
}

// InOrder has the vertices that were added first stand first, as they will mostly end
// first: what ends is looked for from there. It is called once, when all are added.
func (m *Message) InOrder() {
	var first *Vertex
	for v := m.first; v != nil; {
		next := v.sibling
		v.sibling = first
		first, v = v, next
	}
	m.first = first
}

// Recipient is one recipient of a vertex.
type Recipient struct {
	Address string
	low     uint32 // of the offset
	high    uint16
	Result  Result // of the attempt under way
}

// NewRecipient makes the recipient of the r line at an offset.
func NewRecipient(offset int64, address string) Recipient {
	return Recipient{Address: address, low: uint32(offset), high: uint16(offset >> 32)}
}

// Offset returns the place of its r line.
func (r *Recipient) Offset() int64 { return int64(r.high)<<32 | int64(r.low) }

// Result is an agent's answer for one recipient. The zero value is none yet.
type Result uint8

// Results.
const (
	None Result = iota
	Deferred
	HostDeferred // the trouble is the host's
	Failed
	Delivered
)

// Final reports whether nothing more is to be done for the recipient.
func (r Result) Final() bool { return r >= Failed }

// Recipients returns those of the vertex, by offset.
func (v *Vertex) Recipients() []Recipient {
	switch {
	case v.state == gone:
		return nil
	case v.more != nil:
		return *v.more
	}
	return v.one[:]
}

// setRecipients keeps a single one without a list.
func (v *Vertex) setRecipients(list []Recipient) {
	v.more = nil
	if len(list) == 1 {
		v.one[0] = list[0]
		return
	}
	v.one[0] = Recipient{}
	several := list // so that a single one needs no memory
	v.more = &several
}

// end leaves a vertex without recipients.
func (v *Vertex) end() {
	v.state, v.more, v.one[0] = gone, nil, Recipient{}
}

// Find returns the recipient at an offset, nil if the vertex has none there.
func (v *Vertex) Find(offset int64) *Recipient {
	list := v.Recipients()
	lo, hi := 0, len(list)
	for lo < hi {
		mid := (lo + hi) / 2
		if list[mid].Offset() < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(list) && list[lo].Offset() == offset {
		return &list[lo]
	}
	return nil
}

// Answered reports whether every recipient has a result.
func (v *Vertex) Answered() bool {
	// Answers mostly come in order, so that with very many the last one decides.
	for _, r := range slices.Backward(v.Recipients()) {
		if r.Result == None {
			return false
		}
	}
	return true
}
