package thread

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is a core that is used at random, and what must be true of it.
type world struct {
	*bench
	random   *rand.Rand
	rings    []*Ring
	messages []*Message
	running  []*Vertex
	queued   []*Vertex // behind others
	starts   map[*Thread][]time.Time
	gate     *gate
	sifting  bool
}

// suspend has a gate decide that suspends a host and a sender, or takes it away.
func (w *world) suspend() {
	if w.random.IntN(3) == 0 {
		w.open()
		return
	}
	w.sifting = w.random.IntN(2) == 0
	w.gate = &gate{
		hosts:   map[string]*Suspension{fmt.Sprint("host", w.random.IntN(6)): {}},
		senders: map[uint32]*Suspension{SenderKey(uint32(w.random.IntN(5))<<2, Origin(w.random.IntN(origins))): {}},
	}
	w.c.SetGate(w.gate, w.sifting, w.now)
}

// open takes the gate away.
func (w *world) open() {
	w.gate = nil
	w.c.SetGate(nil, false, w.now)
}

// Whatever is done in whatever order: counts are right, no limit and no rate is
// exceeded, and nothing that may run is forgotten: when nothing runs and nothing is to
// come, nothing is left that may.
func TestRandomOperationsKeepTheRules(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range 1500 {
				w.act()
				w.check()
			}
			w.drain()
		})
	}
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{bench: newBench(t, Policy{}), random: rand.New(rand.NewPCG(seed, 77)), starts: map[*Thread][]time.Time{}}
	w.c.Remove(w.ring)
	p := Policy{
		Interval: time.Minute, Retries: []int{1, 2, 3}, Jitter: 10, Expiry: 24 * time.Hour, Expiry2: 48 * time.Hour,
		MaxChannel: 9, MaxRing: 8, MaxThread: 4, AgeOrder: seed%2 == 0, MaxUnproven: int(seed%4) * 2,
	}
	for i := range 3 {
		if i == 1 {
			p.HostRate = Rate{N: 5, Per: time.Second}
		}
		if i == 2 {
			p.HostRate, p.Rate, p.QueueOnly = Rate{}, Rate{N: 20, Per: time.Minute}, seed%3 == 0
		}
		w.rings = append(w.rings, w.c.Ring(fmt.Sprint(i), p))
	}
	return w
}

func pick[T any](w *world, list []T) (x T, i int) {
	i = w.random.IntN(len(list))
	return list[i], i
}

func (w *world) act() {
	switch n := w.random.IntN(100); {
	case n < 25:
		w.accept()
	case n < 50:
		w.feed()
	case n < 80 && len(w.running) > 0:
		w.answer()
	case n < 90:
		w.pass(time.Duration(w.random.IntN(3000)) * time.Millisecond)
	case n < 91:
		w.suspend()
	case n < 93:
		w.pass(time.Duration(w.random.IntN(100)) * time.Minute)
	case n < 95 && len(w.messages) > 0:
		m, i := pick(w, w.messages)
		w.c.Drop(m, w.now)
		w.messages = slices.Delete(w.messages, i, i+1)
	default:
		w.order(n)
	}
}

func (w *world) accept() {
	w.n++
	age := time.Duration(w.random.IntN(3600)) * time.Second
	m := &Message{Number: w.n, Stamp: w.now.Add(-age).UnixNano(), Sender: SenderKey(uint32(w.random.IntN(5))<<2, Origin(w.random.IntN(origins))), Total: int32(w.random.IntN(200))}
	w.messages = append(w.messages, m)
	offset := int64(0)
	for range 1 + w.random.IntN(3) {
		list := make([]Recipient, 1+w.random.IntN(3))
		for i := range list {
			offset++
			list[i] = NewRecipient(offset, "")
		}
		m.Open += int32(len(list))
		var h History
		if w.random.IntN(4) == 0 {
			h = History{Attempts: w.random.IntN(5), Next: w.now.Add(time.Duration(w.random.IntN(600)) * time.Second), HostTries: w.random.IntN(2)}
		}
		r, _ := pick(w, w.rings)
		w.c.Add(m, r, []string{"smtp", "local"}[w.random.IntN(5)/4], fmt.Sprint("host", w.random.IntN(6)), list, h, w.now)
	}
}

func (w *world) feed() {
	for r := w.c.Touched(); r != nil; r = w.c.Touched() {
		for v := w.c.Take(r, w.now); v != nil; v = w.c.Take(r, w.now) {
			w.started(v)
			w.running = append(w.running, v)
			if w.random.IntN(10) == 0 {
				if more := w.c.TakeMore(v.Thread, w.now); more != nil {
					w.started(more)
					w.queued = append(w.queued, more)
				}
			}
		}
	}
}

// started checks the rate of a host.
func (w *world) started(v *Vertex) {
	if w.gate != nil && (w.gate.Thread(v.Thread.Channel(), v.Thread.Host) != nil || w.sifting && w.gate.Vertex(v) != nil) {
		w.t.Fatalf("one began that is suspended: %+v", v)
	}
	list := append(w.starts[v.Thread], w.now)
	if r := v.Thread.Ring.Policy.HostRate; r.N > 0 && len(list) > r.N && w.now.Sub(list[len(list)-1-r.N]) < r.Per {
		w.t.Fatalf("%d began within %v", r.N+1, r.Per)
	}
	w.starts[v.Thread] = list
}

func (w *world) answer() {
	v, i := pick(w, w.running)
	w.running = slices.Delete(w.running, i, i+1)
	t := v.Thread
	w.finish(v)
	// The agent comes to what it has queued behind.
	if i := slices.IndexFunc(w.queued, func(v *Vertex) bool { return v.Thread == t }); i >= 0 {
		v := w.queued[i]
		w.queued = slices.Delete(w.queued, i, i+1)
		w.c.Promote(v, w.now)
		w.running = append(w.running, v)
	}
}

func (w *world) finish(v *Vertex) {
	if w.random.IntN(10) == 0 {
		w.c.Stop(v, w.now)
		w.c.Wait(v, w.now)
		return
	}
	list := v.Recipients()
	for i := range list {
		list[i].Result = []Result{Delivered, Delivered, Failed, Deferred, HostDeferred}[w.random.IntN(5)]
	}
	r := w.c.End(v, HostWait{Busy: w.random.IntN(3) == 0}, w.now)
	switch {
	case r.Left == 0:
	case r.Expired:
		w.c.Forget(v)
	default:
		w.c.Wait(v, w.now)
	}
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	expired, _ := w.c.Advance(w.now)
	for _, v := range slices.Clone(expired) {
		w.c.Forget(v)
	}
}

func (w *world) threads() (list []*Thread) {
	for _, r := range w.rings {
		r.Threads(func(t *Thread) { list = append(list, t) })
	}
	slices.SortFunc(list, func(a, b *Thread) int { return cmpThreads(a, b) })
	return list
}

func cmpThreads(a, b *Thread) int {
	if a.Ring.Key+a.Channel()+a.Host < b.Ring.Key+b.Channel()+b.Host {
		return -1
	}
	return 1
}

// order is an operation of an operator.
func (w *world) order(n int) {
	list := w.threads()
	if len(list) == 0 {
		return
	}
	t, _ := pick(w, list)
	switch n {
	case 95:
		w.c.Kick(t, w.now)
	case 96:
		w.c.Pause(t, w.now)
	case 97:
		w.c.Resume(t, w.now)
	case 98:
		w.c.Throttle(t, w.now.Add(time.Duration(w.random.IntN(60))*time.Second), w.now)
	default:
		to, _ := pick(w, w.rings)
		if t.running == 0 && len(w.queued) == 0 {
			w.c.Move(t, to, w.now)
			clear(w.starts)
		}
	}
}

func (w *world) check() {
	inRing, inChannel := map[*Ring]int{}, map[string]int{}
	low := map[*Ring]*places{}
	for _, r := range w.rings {
		low[r] = &places{}
	}
	for _, v := range w.running {
		inRing[v.Thread.Ring]++
		inChannel[v.Thread.Channel()]++
		low[v.Thread.Ring].count(tierOf(v.Thread.learn(), v.Message.Origin()), 1)
	}
	if inChannel["smtp"] > 9 || inChannel["local"] > 9 {
		w.t.Fatalf("%v run in the channels", inChannel)
	}
	for _, r := range w.rings {
		if inRing[r] != r.running || r.running > 8 {
			w.t.Fatalf("%d run in the ring, it has %d", inRing[r], r.running)
		}
		if *low[r] != r.places {
			w.t.Fatalf("%v run in the tiers, it has %v", low[r], r.places)
		}
	}
	for _, t := range w.threads() {
		w.checkThread(t)
	}
	for _, m := range w.messages {
		open := 0
		m.Vertices(func(v *Vertex) { open += len(v.Recipients()) })
		if open != int(m.Open) {
			w.t.Fatalf("message %d has %d open, says %d", m.Number, open, m.Open)
		}
	}
}

func (w *world) checkThread(t *Thread) {
	var ready, reports [2]int
	own := 0
	run, rcpts, small, apart := 0, 0, 0, 0
	for i, v := range t.list {
		if int(v.place) != i || v.Thread != t || v.state == gone || v.isReady() && v.state != waiting {
			w.t.Fatalf("a vertex is not where it says: %+v", v)
		}
		if v.isReady() && v.is(withheld) {
			w.t.Fatalf("one is ready that is suspended: %+v", v)
		}
		if v.is(withheld) {
			apart++
		}
		if v.state == waiting && !v.isReady() && !v.is(withheld) && v.next <= w.now.UnixMilli() && (v.slot < 0 || v.wake > w.now.UnixMilli()) {
			w.t.Fatalf("one that is due is forgotten: %+v", v)
		}
		if v.isReady() {
			switch v.Message.Origin() {
			case Report:
				reports[v.class()]++
			case Own:
				own++
			}
			ready[v.class()]++
			if !v.is(bulk) {
				small++
			}
		}
		if v.state == running && !v.is(queued) {
			run++
		}
		rcpts += len(v.Recipients())
	}
	for i := range t.orders {
		if problem := t.orders[i].check(ready[i] - reports[i]); problem != "" {
			w.t.Fatal(problem)
		}
		if t.reported == nil {
			continue
		}
		if problem := t.reported[i].check(reports[i]); problem != "" {
			w.t.Fatal(problem)
		}
	}
	if own != int(t.own) || reports[0]+reports[1] != int(t.reports) || t.standing != t.learn() || t.listed && t.tier != t.tierNow() {
		w.t.Fatalf("%d own and %v reports are ready: it says %+v", own, reports, t)
	}
	if run != t.running || rcpts != t.rcpts || small != t.small || ready[0]+ready[1] != t.ready || t.running > 4 || t.limit < 1 || t.limit > 4 {
		w.t.Fatalf("%d run, %d recipients, %d small, ready %v: it says %+v", run, rcpts, small, ready, t)
	}
	if apart != int(t.withheld) {
		w.t.Fatalf("%d are suspended, it says %d", apart, t.withheld)
	}
	ms := w.now.UnixMilli()
	if t.mayRun(ms) && !t.listed {
		w.t.Fatal("one that may run has no turn")
	}
	if at := max(t.free(), t.next); t.ready > 0 && !t.paused && at > ms && (t.slot < 0 || t.wake > at) {
		w.t.Fatal("one that waits for a token or a probe is not looked at then")
	}
	var oldest *Vertex
	for _, v := range t.list {
		if oldest == nil || v.Message.when() < oldest.Message.when() {
			oldest = v
		}
	}
	if got := t.Stats(w.now).Oldest; oldest != nil && got.UnixNano() != oldest.Message.when() {
		w.t.Fatalf("the oldest is of %v, it says %v", oldest.Message.when(), got.UnixNano())
	}
}

// drain delivers all that is left by the clock's steps alone.
func (w *world) drain() {
	w.open()
	for _, t := range w.threads() {
		w.c.Resume(t, w.now)
	}
	for _, r := range w.rings {
		r.Policy.QueueOnly = false
	}
	for steps := 0; len(w.threads()) > 0; steps++ {
		if steps > 100_000 {
			w.t.Fatal("no end")
		}
		w.feed()
		if len(w.running)+len(w.queued) > 0 {
			for _, v := range append(w.running, w.queued...) {
				w.end(v, Delivered, HostWait{})
			}
			w.running, w.queued = nil, nil
			continue
		}
		next := w.c.Next()
		if next.IsZero() {
			w.t.Fatalf("%d threads are forgotten", len(w.threads()))
		}
		w.pass(max(next.Sub(w.now), 0))
	}
	w.pass(time.Hour)
	for _, r := range w.rings {
		if r.running != 0 || r.turn.count != 0 || !w.c.Remove(r) {
			w.t.Fatal("a ring is not empty")
		}
	}
	if len(w.c.channels) != 0 || len(w.c.vertices.list) != 0 || len(w.c.threads.list) != 0 {
		w.t.Fatal("something is left")
	}
}
