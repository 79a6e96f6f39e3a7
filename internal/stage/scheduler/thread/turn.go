package thread

import "math/bits"

// turn is the threads of a ring that may be fed. Whose turn it is: the thread with the
// fewest deliveries under way, so that slow hosts do not take every place; of several,
// the one that waits longest. Threads that have nothing but parts of messages to many
// recipients take every second turn only, so that one such message does not stand
// before all others. Tiers have lists of their own, so that those without a free place
// need not be passed over one by one.
type turn struct {
	tiers    [tiers]*shelf // nil: nothing was ever in it
	count    int
	class    uint8  // that is served next
	listings uint64 // so far
}

// shelf is the threads of one tier.
type shelf struct {
	lists [2][levels]line
	some  [2]uint32 // which lists hold a thread
}

// line is a list of threads.
type line struct{ head, tail *Thread }

// listing is where a thread is listed, if it is.
type listing struct {
	listed             bool
	class, level, tier uint8
	since              uint64 // and before whom
	prev, succ         *Thread
}

// levels is how many numbers of deliveries are distinguished.
const levels = 24

// levelOf returns the place of a thread with so many deliveries: numbers up to 15 have one
// each, above that each doubling has.
func levelOf(running int) uint8 {
	if running < 16 {
		return uint8(max(running, 0))
	}
	return uint8(min(bits.Len(uint(running))+11, levels-1))
}

// bulky is how many recipients make a message one of those that take every second turn.
const bulky = 100

// classOf returns the class of a thread.
func (t *Thread) classOf() uint8 {
	if t.small > 0 {
		return 0
	}
	return 1
}

// list puts a thread at the end of those that are like it.
func (r *Ring) list(t *Thread) {
	r.turn.listings++
	t.since = r.turn.listings
	t.listed, t.class, t.level, t.tier = true, t.classOf(), levelOf(t.running), t.tierNow()
	s := r.turn.tiers[t.tier]
	if s == nil {
		s = new(shelf)
		r.turn.tiers[t.tier] = s
	}
	l := &s.lists[t.class][t.level]
	t.prev, t.succ = l.tail, nil
	if l.tail != nil {
		l.tail.succ = t
	} else {
		l.head = t
	}
	l.tail = t
	s.some[t.class] |= 1 << t.level
	r.turn.count++
}

func (r *Ring) unlist(t *Thread) {
	if !t.listed {
		return
	}
	s := r.turn.tiers[t.tier]
	l := &s.lists[t.class][t.level]
	if t.prev != nil {
		t.prev.succ = t.succ
	} else {
		l.head = t.succ
	}
	if t.succ != nil {
		t.succ.prev = t.prev
	} else {
		l.tail = t.prev
	}
	if l.head == nil {
		s.some[t.class] &^= 1 << t.level
	}
	t.listed, t.prev, t.succ = false, nil, nil
	r.turn.count--
}

// misplaced reports whether a listed thread has changed since.
func (t *Thread) misplaced() bool {
	return t.listed && (t.class != t.classOf() || t.level != levelOf(t.running) || t.tier != t.tierNow())
}

// inTurn calls fn for the listed threads of the tiers before one in their turn, until it
// says false. It may unlist the one that it is given.
func (r *Ring) inTurn(closed uint8, fn func(*Thread) bool) {
	shelves := r.turn.tiers[:closed]
	for i := range uint8(2) {
		class := (r.turn.class + i) % 2
		some := uint32(0)
		for _, s := range shelves {
			if s != nil {
				some |= s.some[class]
			}
		}
		for ; some != 0; some &= some - 1 {
			var next [tiers]*Thread
			level := bits.TrailingZeros32(some)
			for tier, s := range shelves {
				if s != nil {
					next[tier] = s.lists[class][level].head
				}
			}
			for {
				first := -1
				for tier, t := range next {
					if t != nil && (first < 0 || t.since < next[first].since) {
						first = tier
					}
				}
				if first < 0 {
					break
				}
				t := next[first]
				next[first] = t.succ
				if !fn(t) {
					return
				}
			}
		}
	}
}
