package engine

import (
	"math/bits"

	"zmailer/internal/stage/scheduler/thread"
)

// table is the messages by number. It is in parts of bounded size, so that neither its
// growth nor a pass over all messages takes the engine long at once: one part at a time.
// A message costs it between 11 and 16 bytes, which are 26 in a map.
type table struct {
	parts [tableParts]tablePart
	n     int
}

// tableParts at a million messages have some 4000 messages each.
const tableParts = 256

// tablePart is an open-addressed table in the order of the numbers' hashes, but for
// those that had to move on.
type tablePart struct {
	slots []*thread.Message
	n     int
}

// hash spreads inode numbers, which are neighbours; the upper bits pick part and slot.
func hash(number uint64) uint64 { return number * 0x9e3779b97f4a7c15 }

func (t *table) part(number uint64) *tablePart { return &t.parts[hash(number)>>56] }

// home returns where a number belongs among so many slots.
func home(number uint64, slots int) int {
	hi, _ := bits.Mul64(hash(number)<<8, uint64(slots))
	return int(hi)
}

// len returns how many messages there are.
func (t *table) len() int { return t.n }

// get returns the message of a number, nil if there is none.
func (t *table) get(number uint64) *thread.Message {
	p := t.part(number)
	if i, ok := p.find(number); ok {
		return p.slots[i]
	}
	return nil
}

// find returns the slot of a number, or the empty one where it would be put.
func (p *tablePart) find(number uint64) (int, bool) {
	if len(p.slots) == 0 {
		return 0, false
	}
	for i := home(number, len(p.slots)); ; {
		m := p.slots[i]
		if m == nil || m.Number == number {
			return i, m != nil
		}
		if i++; i == len(p.slots) {
			i = 0
		}
	}
}

// put takes in a message whose number no other one has.
func (t *table) put(m *thread.Message) {
	p := t.part(m.Number)
	if 4*(p.n+1) > 3*len(p.slots) {
		old := p.slots
		p.slots = make([]*thread.Message, max(8, len(old)*3/2))
		for _, m := range old {
			if m != nil {
				i, _ := p.find(m.Number)
				p.slots[i] = m
			}
		}
	}
	i, _ := p.find(m.Number)
	p.slots[i] = m
	p.n++
	t.n++
}

// remove takes a message out, if it is there.
func (t *table) remove(m *thread.Message) {
	p := t.part(m.Number)
	i, ok := p.find(m.Number)
	if !ok || p.slots[i] != m {
		return
	}
	p.n--
	t.n--
	p.slots[i] = nil
	if p.n == 0 {
		p.slots = nil
		return
	}
	// Those behind the gap that it keeps from their place move up.
	for j := i + 1; ; j++ {
		if j >= len(p.slots) {
			j = 0
		}
		m := p.slots[j]
		if m == nil {
			return
		}
		h := home(m.Number, len(p.slots))
		if far(h, j, len(p.slots)) >= far(i, j, len(p.slots)) {
			p.slots[i], p.slots[j] = m, nil
			i = j
		}
	}
}

// far returns how many slots it is from one on to another.
func far(from, to, slots int) int {
	if to >= from {
		return to - from
	}
	return to - from + slots
}

// each calls fn for the messages of a part; fn must not put or remove any.
func (p *tablePart) each(fn func(m *thread.Message)) {
	for _, m := range p.slots {
		if m != nil {
			fn(m)
		}
	}
}
