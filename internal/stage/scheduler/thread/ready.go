package thread

import "container/heap"

// The ready vertices of a thread are in two classes, those that were tried and those
// that were not, which take turns, so that neither old mail nor new delays the
// other. In each class senders take turns, a round after the other; in a round the
// sender comes first whose oldest message is the oldest. A sender that comes while a
// round is on takes part in the next one. Among those of one sender the oldest comes
// first, or, without ageorder, the next one in a fixed random order after the one taken
// last: no message waits longer than one cycle.
//
// A class is a search tree by sender and age whose shape is a matter of chance (a treap),
// and a heap of the first vertex of each sender. All that is done takes a time that
// grows with the logarithm of their number.

// order is one class of ready vertices.
type order struct {
	root  *Vertex
	heads []*Vertex // the first of each sender: a heap by turn and age
	turn  uint32    // of the sender that was served last
	last  uint32    // without ageorder, the place in the random order of the one taken last
	byAge bool
}

// scatter makes numbers that have no order of ones that do.
func scatter(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// shuffled returns the place of v in the random order.
func (v *Vertex) shuffled() uint32 { return uint32(scatter(v.Message.Number + 1)) }

// above reports which of two is nearer to the root.
func (v *Vertex) above(w *Vertex) bool {
	return scatter(v.Message.Number^1<<63) > scatter(w.Message.Number^1<<63)
}

// before orders two vertices of one sender.
func (o *order) before(v, w *Vertex) bool {
	a, b := v.Message, w.Message
	if o.byAge {
		if x, y := a.when(), b.when(); x != y {
			return x < y
		}
	} else if x, y := v.shuffled(), w.shuffled(); x != y {
		return x < y
	}
	if a.Number != b.Number {
		return a.Number < b.Number
	}
	return v.Recipients()[0].Offset() < w.Recipients()[0].Offset()
}

// less is the order of the tree.
func (o *order) less(v, w *Vertex) bool {
	if a, b := v.Message.Sender, w.Message.Sender; a != b {
		return a < b
	}
	return o.before(v, w)
}

func (o *order) insert(root, v *Vertex) *Vertex {
	switch {
	case root == nil:
		return v
	case v.above(root):
		v.left, v.right = o.split(root, v)
		return v
	case o.less(v, root):
		root.left = o.insert(root.left, v)
	default:
		root.right = o.insert(root.right, v)
	}
	return root
}

func (o *order) split(root, v *Vertex) (left, right *Vertex) {
	switch {
	case root == nil:
		return nil, nil
	case o.less(root, v):
		root.right, right = o.split(root.right, v)
		return root, right
	default:
		left, root.left = o.split(root.left, v)
		return left, root
	}
}

func (o *order) erase(root, v *Vertex) *Vertex {
	switch {
	case root == v:
		root = merge(v.left, v.right)
		v.left, v.right = nil, nil
	case o.less(v, root):
		root.left = o.erase(root.left, v)
	default:
		root.right = o.erase(root.right, v)
	}
	return root
}

func merge(left, right *Vertex) *Vertex {
	switch {
	case left == nil:
		return right
	case right == nil:
		return left
	case left.above(right):
		left.right = merge(left.right, right)
		return left
	default:
		right.left = merge(left, right.left)
		return right
	}
}

// head returns the first vertex of a sender, nil if there is none.
func (o *order) head(sender uint32) (found *Vertex) {
	for x := o.root; x != nil; {
		if x.Message.Sender < sender {
			x = x.right
			continue
		}
		found, x = x, x.left
	}
	if found != nil && found.Message.Sender != sender {
		return nil
	}
	return found
}

// following returns the vertex of a sender that follows the last one taken in the random
// order, nil if none does.
func (o *order) following(sender uint32) (found *Vertex) {
	for x := o.root; x != nil; {
		if s := x.Message.Sender; s < sender || s == sender && x.shuffled() <= o.last {
			x = x.right
			continue
		}
		found, x = x, x.left
	}
	if found != nil && found.Message.Sender != sender {
		return nil
	}
	return found
}

func (o *order) push(v *Vertex) {
	head := o.head(v.Message.Sender)
	o.root = o.insert(o.root, v)
	switch {
	case head == nil:
		v.mark = o.turn + 1
		heap.Push(o, v)
	case o.before(v, head):
		o.succeed(head, v)
	}
}

// drop takes out a vertex and gives the one that came to be its sender's first instead,
// nil if v was not or there is none.
func (o *order) drop(v *Vertex) (next *Vertex) {
	o.root = o.erase(o.root, v)
	if v.head < 0 {
		return nil
	}
	if next = o.head(v.Message.Sender); next != nil {
		o.succeed(v, next)
		return next
	}
	heap.Remove(o, int(v.head))
	return nil
}

// succeed puts another vertex into the place of a sender's first.
func (o *order) succeed(head, next *Vertex) {
	next.mark, next.head = head.mark, head.head
	head.head = -1
	o.heads[next.head] = next
	heap.Fix(o, int(next.head))
}

// next takes out the vertex whose turn it is.
func (o *order) next() *Vertex {
	head := o.heads[0]
	v := head
	o.turn = v.mark
	if !o.byAge {
		if w := o.following(v.Message.Sender); w != nil {
			v = w
		}
		o.last = v.shuffled()
	}
	if next := o.drop(v); v == head {
		head = next
	}
	if head != nil {
		head.mark = o.turn + 1
		heap.Fix(o, int(head.head))
	}
	return v
}

// first orders two senders by their first vertices.
func (o *order) first(v, w *Vertex) bool {
	if v.mark != w.mark {
		return int32(v.mark-w.mark) < 0
	}
	return o.before(v, w)
}

func (o *order) Len() int           { return len(o.heads) }
func (o *order) Less(i, j int) bool { return o.first(o.heads[i], o.heads[j]) }

func (o *order) Swap(i, j int) {
	h := o.heads
	h[i], h[j] = h[j], h[i]
	h[i].head, h[j].head = int32(i), int32(j)
}

func (o *order) Push(x any) {
	v := x.(*Vertex)
	v.head = int32(len(o.heads))
	o.heads = append(o.heads, v)
}

func (o *order) Pop() any {
	last := len(o.heads) - 1
	v := o.heads[last]
	o.heads[last] = nil
	o.heads = o.heads[:last]
	v.head = -1
	return v
}

// class returns where v is while it is ready.
func (v *Vertex) class() int {
	if v.Attempts > 0 {
		return 1
	}
	return 0
}

// isReady reports whether v may be delivered now.
func (v *Vertex) isReady() bool { return int(v.place) < v.Thread.ready }

// waitList is the vertices of a thread, those that may be delivered now in front.
type waitList struct {
	list     []*Vertex
	ready    int       // so many may be delivered now
	orders   [2]order  // of those that are ready: never tried, tried
	turn     uint8     // which of them was served last
	small    int       // of those that are ready, those of messages to few
	own      int32     // of those that are ready, those of own users
	reports  int32     // and reports
	mails    uint8     // others that were served since the last report
	reported *[2]order // as orders, of reports; nil: there were none
	rcpts    int       // of all
	withheld int32     // those that a suspension is about, see Gate
	oldest   *Vertex   // nil if that is not known
}

// add puts a vertex on the list of the thread.
func (t *waitList) add(v *Vertex) {
	v.place = int32(len(t.list))
	t.list = append(t.list, v)
	if v.is(withheld) {
		t.withheld++
	}
	t.rcpts += len(v.Recipients())
	if len(t.list) == 1 || t.oldest != nil && v.Message.when() < t.oldest.Message.when() {
		t.oldest = v
	}
}

// remove takes a vertex that is not ready off the list.
func (t *waitList) remove(v *Vertex) {
	last := len(t.list) - 1
	t.swap(int(v.place), last)
	t.list[last] = nil
	t.list = t.list[:last]
	t.rcpts -= len(v.Recipients())
	if v.is(withheld) {
		t.withheld--
	}
	if t.oldest == v {
		t.oldest = nil
	}
}

// first returns the vertex of the oldest message.
func (t *waitList) first() *Vertex {
	if t.oldest == nil {
		for _, v := range t.list {
			if t.oldest == nil || v.Message.when() < t.oldest.Message.when() {
				t.oldest = v
			}
		}
	}
	return t.oldest
}

// pushReady lets v be delivered, if it may not yet and is not suspended.
func (t *waitList) pushReady(v *Vertex) {
	if v.isReady() || v.is(withheld) {
		return
	}
	t.tally(v, 1)
	t.swap(int(v.place), t.ready)
	t.ready++
	t.ordersFor(v)[v.class()].push(v)
}

func (t *waitList) dropReady(v *Vertex) {
	if !v.isReady() {
		return
	}
	t.tally(v, -1)
	t.ordersFor(v)[v.class()].drop(v)
	t.unready(v)
}

func (t *waitList) unready(v *Vertex) {
	t.ready--
	t.swap(int(v.place), t.ready)
}

func (t *waitList) swap(i, j int) {
	t.list[i], t.list[j] = t.list[j], t.list[i]
	t.list[i].place, t.list[j].place = int32(i), int32(j)
}

// pick takes a ready vertex out of the thread. A host that failed is probed with any
// one, so that one message cannot block the rest (M28). When the host has answered
// another one meanwhile, those that it failed wait for their own time: nil if there are
// no others.
func (t *Thread) pick(c *Core, ms int64, closed uint8) *Vertex {
	for t.ready > 0 {
		var v *Vertex
		if t.tries > 0 {
			v = t.list[c.rand.IntN(t.ready)]
			t.dropReady(v)
		} else {
			orders := t.line(tierOf(t.standing, Report) < closed)
			if orders == nil {
				return nil
			}
			v = t.inOrder(orders)
		}
		if t.next != 0 || !v.is(blamed) || v.next <= ms {
			v.set(blamed, false)
			return v
		}
		v.set(blamed, false)
		c.arm(v, ms)
	}
	return nil
}

// inOrder takes the next one of the class whose turn it is.
func (t *waitList) inOrder(orders *[2]order) *Vertex {
	t.turn = 1 - t.turn
	if len(orders[t.turn].heads) == 0 {
		t.turn = 1 - t.turn
	}
	v := orders[t.turn].next()
	t.tally(v, -1)
	t.unready(v)
	return v
}

// tally counts a ready vertex, or no longer.
func (t *waitList) tally(v *Vertex, n int32) {
	if !v.is(bulk) {
		t.small += int(n)
	}
	switch v.Message.Origin() {
	case Own:
		t.own += n
	case Report:
		t.reports += n
	}
}

// ordersFor returns the orders that a vertex is in while it is ready. Reports have their own,
// so that the rest can be served without them.
func (t *waitList) ordersFor(v *Vertex) *[2]order {
	if v.Message.Origin() != Report {
		return &t.orders
	}
	if t.reported == nil {
		t.reported = new([2]order)
		for i := range t.reported {
			t.reported[i].byAge = t.orders[i].byAge
		}
	}
	return t.reported
}

// mailPerReport is how much other mail to a host is served for each report.
const mailPerReport = 3

// line returns the orders whose turn it is; nil: what is ready are reports, which may not
// begin now. reports: they may.
func (t *waitList) line(reports bool) *[2]order {
	reports, mail := reports && t.reports > 0, t.ready > int(t.reports)
	if reports && (!mail || t.mails >= mailPerReport) {
		t.mails = 0
		return t.reported
	}
	if !mail {
		return nil
	}
	t.mails = min(t.mails+1, mailPerReport)
	return &t.orders
}
