package thread

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// addFrom takes in a message of a sender, accepted a while ago.
func (b *bench) addFrom(sender uint32, age time.Duration, h History) *Vertex {
	b.n++
	m := &Message{Number: b.n, Stamp: b.now.Add(-age).UnixNano(), Open: 1, Sender: sender}
	return b.c.Add(m, b.ring, "smtp", "h", []Recipient{NewRecipient(100, "")}, h, b.now)
}

// One sender's 100k messages against another's single one to the same host, with the
// host taking one at a time.
func TestAnotherSendersMessageIsNextButOne(t *testing.T) {
	for _, ageOrder := range []bool{true, false} {
		for _, h := range []History{{}, {Attempts: 1}} {
			b := newBench(t, Policy{MaxThread: 1, AgeOrder: ageOrder})
			for range 100_000 {
				b.addFrom(7, time.Hour, h)
			}
			for range 10 {
				b.end(b.take(), Delivered, HostWait{})
			}
			single := b.addFrom(8, 0, h)
			for n := 0; ; n++ {
				v := b.take()
				b.end(v, Delivered, HostWait{})
				if v == single {
					break
				}
				if n == 1 {
					t.Errorf("ageorder %v, history %+v: more than one of the other sender went first", ageOrder, h)
					break
				}
			}
		}
	}
}

// Senders share a host evenly, whatever each has queued, and a steady stream of new
// senders does not keep out those that wait.
func TestSendersTakeTurns(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 1, AgeOrder: true})
	for i := range 3000 {
		b.addFrom([]uint32{1, 1, 1, 1, 1, 1, 2, 2, 2, 3}[i%10], time.Duration(i)*time.Second, History{})
	}
	served := map[uint32]int{}
	for i := range 600 {
		b.addFrom(uint32(1000+i), 0, History{})
		v := b.take()
		served[min(v.Message.Sender, 1000)]++
		b.end(v, Delivered, HostWait{})
	}
	for sender := range uint32(3) {
		if got := served[sender+1]; got < 10 {
			t.Errorf("sender %d had %d turns of 600", sender+1, got)
		}
	}
	if served[1] != served[2] && served[1] != served[2]+1 && served[1] != served[2]-1 {
		t.Errorf("one sender had %d turns, another %d", served[1], served[2])
	}
}

// M28, Z3: with ageorder, oldest first per destination: those of one sender, and those of many
// senders with one message each. Without, not.
func TestOldestFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		many     uint32
		ageOrder bool
	}{"one sender": {0, true}, "many senders": {1, true}, "without ageorder": {0, false}} {
		b := newBench(t, Policy{MaxThread: 1, AgeOrder: tt.ageOrder})
		for i := range 500 {
			b.addFrom(tt.many*scatter32(i), time.Duration(i*7919%500)*time.Hour, History{})
		}
		last, sorted := int64(0), true
		for range 500 {
			v := b.take()
			sorted = sorted && v.Message.Stamp >= last
			last = v.Message.Stamp
			b.end(v, Delivered, HostWait{})
		}
		assert.Equal(t, sorted, tt.ageOrder, "%s: the oldest went first", name)
	}
}

func scatter32(i int) uint32 { return SenderKey(uint32(scatter(uint64(i))), Own) }

// New against old: new mail has its first try at every second turn though thousands
// that were deferred are due, and those go on though new mail never ends.
func TestNewAndOldMailTakeTurns(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 1, AgeOrder: true})
	for i := range 5000 {
		b.addFrom(scatter32(i), 24*time.Hour, History{Attempts: 3})
	}
	for range 10 {
		b.end(b.take(), Delivered, HostWait{})
	}
	fresh := 0
	for i := range 100 {
		b.addFrom(scatter32(-i), 0, History{})
		v := b.take()
		if v.Attempts == 0 {
			fresh++
		}
		b.end(v, Delivered, HostWait{})
	}
	assert.Equal(t, fresh, 50, "turns of 100 for new mail")
}

// Whatever is done to an order, it is a search tree of what it holds, and the heads are
// the first of each sender, in a heap.
func TestOrderStaysInOrder(t *testing.T) {
	for _, byAge := range []bool{true, false} {
		random := rand.New(rand.NewPCG(1, 9))
		o := order{byAge: byAge}
		var out, in []*Vertex
		for i := range 400 {
			m := &Message{Number: uint64(i / 2), Stamp: random.Int64N(50), Sender: uint32(random.IntN(20))}
			v := &Vertex{Message: m, head: -1}
			v.setRecipients([]Recipient{NewRecipient(int64(i), "")})
			out = append(out, v)
		}
		for range 20_000 {
			switch i := random.IntN(3); {
			case i == 0 && len(out) > 0:
				k := random.IntN(len(out))
				o.push(out[k])
				in, out = append(in, out[k]), slices.Delete(out, k, k+1)
			case i == 1 && len(in) > 0:
				k := random.IntN(len(in))
				o.drop(in[k])
				out, in = append(out, in[k]), slices.Delete(in, k, k+1)
			case i == 2 && len(in) > 0:
				v := o.next()
				k := slices.Index(in, v)
				out, in = append(out, v), slices.Delete(in, k, k+1)
			}
			if problem := o.check(len(in)); problem != "" {
				t.Fatal(problem)
			}
		}
	}
}

// check returns what is wrong with an order of n vertices.
func (o *order) check(n int) string {
	var list []*Vertex
	var walk func(v *Vertex)
	walk = func(v *Vertex) {
		if v == nil {
			return
		}
		walk(v.left)
		list = append(list, v)
		walk(v.right)
	}
	walk(o.root)
	if len(list) != n {
		return fmt.Sprintf("%d vertices, want %d", len(list), n)
	}
	heads := 0
	for i, v := range list {
		if i > 0 && !o.less(list[i-1], v) {
			return "not sorted"
		}
		first := i == 0 || list[i-1].Message.Sender != v.Message.Sender
		if first != (v.head >= 0) || first && o.heads[v.head] != v {
			return "a head is not the first of its sender"
		}
		if first {
			heads++
		}
	}
	for i := 1; i < len(o.heads); i++ {
		if o.first(o.heads[i], o.heads[(i-1)/2]) {
			return "the heads are no heap"
		}
	}
	if heads != len(o.heads) {
		return fmt.Sprintf("%d heads, want %d", len(o.heads), heads)
	}
	return ""
}
