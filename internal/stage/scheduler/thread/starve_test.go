package thread

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// feed starts what may run, as the scheduler does: rings in the order of Touched.
func (b *bench) feed() (list []*Vertex) {
	for r := b.c.Touched(); r != nil; r = b.c.Touched() {
		for v := b.c.Take(r, b.now); v != nil; v = b.c.Take(r, b.now) {
			list = append(list, v)
		}
	}
	return list
}

// The trap "new mail that starves old", with as many deliveries as a channel may have:
// its rings take turns, however many there are and whatever new mail comes to some.
func TestRingsOfOneChannelTakeTurns(t *testing.T) {
	for _, most := range []int{1, 2, 5} {
		for _, newMail := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d at once, new mail %v", most, newMail), func(t *testing.T) {
				const rings, rounds = 4, 100
				b := newBench(t, Policy{})
				p := Policy{Interval: time.Minute, Retries: []int{1}, MaxChannel: most, MaxThread: most}
				add := func(ring int) {
					b.n++
					m := &Message{Number: b.n, Stamp: b.now.UnixNano(), Open: 1}
					b.c.Add(m, b.c.Ring(fmt.Sprint(ring), p), "smtp", "h", []Recipient{NewRecipient(1, "")}, History{}, b.now)
				}
				for i := range rings * rounds {
					add(i % rings)
				}
				served := map[string]int{}
				running := b.feed()
				for range rings * rounds / 2 {
					if len(running) != most {
						t.Fatalf("%d run at once, want %d", len(running), most)
					}
					if newMail {
						add(0)
					}
					b.end(running[0], Delivered, HostWait{})
					next := b.feed()
					for _, v := range next {
						served[v.Thread.Ring.Key]++
					}
					running = append(running[1:], next...)
				}
				for i := range rings {
					if got := served[fmt.Sprint(i)]; got < rounds/2-most || got > rounds/2+most {
						t.Errorf("ring %d had %d turns of %d, want a %dth", i, got, rings*rounds/2, rings)
					}
				}
			})
		}
	}
}

// The trap "new mail that starves old": a host takes one message at a time, and a new
// one comes for each that goes. What waits longest goes next with ageorder, and has its
// turn without; and one that was deferred goes when its time has come.
func TestNewMailStarvesNoOldMail(t *testing.T) {
	for _, ageOrder := range []bool{true, false} {
		t.Run(fmt.Sprintf("ageorder %v", ageOrder), func(t *testing.T) {
			b := newBench(t, Policy{MaxThread: 1, AgeOrder: ageOrder, Retries: []int{1}})
			old := b.addOld("h", time.Hour, History{})
			for range 20 {
				b.add("h")
			}
			limit := 1
			if !ageOrder {
				limit = 400 // of 21 that may go, one is drawn each time
			}
			turn := func() {
				t.Helper()
				for n := 0; ; n++ {
					if n == limit {
						t.Fatalf("%d others went first", n)
					}
					v := b.until()
					if v == old {
						return
					}
					b.add("h")
					b.end(v, Delivered, HostWait{})
				}
			}
			turn()
			b.end(old, Deferred, HostWait{})
			for next := time.UnixMilli(old.next); b.now.Before(next); {
				b.end(b.until(), Delivered, HostWait{})
				b.add("h")
				b.now = b.now.Add(time.Second)
				b.c.Advance(b.now)
			}
			turn()
		})
	}
}

// M24: a ring that has no free agent and met the channel's limit is looked at when there is
// room in the channel, though it was never asked for a delivery.
func TestHungryRingHearsOfRoomInItsChannel(t *testing.T) {
	b := newBench(t, Policy{MaxChannel: 1})
	other := b.c.Ring("other", b.ring.Policy)
	b.add("a")
	v := b.take()
	b.c.Add(&Message{Number: 99, Open: 1}, other, "smtp", "b", []Recipient{NewRecipient(1, "")}, History{}, b.now)
	for r := b.c.Touched(); r != nil; r = b.c.Touched() {
		if r.Hungry() {
			t.Fatalf("%s is hungry beside a full channel", r.Key)
		}
	}
	b.end(v, Delivered, HostWait{})
	for r := b.c.Touched(); r != nil; r = b.c.Touched() {
		if r == other && r.Hungry() {
			return
		}
	}
	t.Error("the other ring is not given when there is room")
}

// Z9: threads that hold many places of the ring come after one that holds none.
func TestSlowThreadsLeavePlacesToOthers(t *testing.T) {
	b := newBench(t, Policy{MaxRing: 40, MaxThread: 20})
	for range 100 {
		b.add("slow")
		b.add("slower")
	}
	running := b.takeAll()
	for range 20 {
		b.add("fast")
	}
	for _, v := range running[:10] {
		b.end(v, Delivered, HostWait{})
		if w := b.take(); w.Thread.Host != "fast" {
			t.Fatalf("%s got the place that became free", w.Thread.Host)
		}
	}
}

// One message to many hosts takes every second turn beside small ones.
func TestAMessageToManyTakesEverySecondTurn(t *testing.T) {
	b := newBench(t, Policy{MaxRing: 1})
	m := &Message{Number: 1, Stamp: b.now.UnixNano(), Open: 500, Total: 500}
	for i := range 500 {
		b.c.Add(m, b.ring, "smtp", string(rune('A'+i)), []Recipient{NewRecipient(int64(i), "")}, History{}, b.now)
	}
	for range 10 {
		b.add("small")
	}
	small := 0
	for range 20 {
		v := b.take()
		if v.Thread.Host == "small" {
			small++
		}
		b.end(v, Delivered, HostWait{})
	}
	assert.Equal(t, small, 10, "turns of 20 for small messages")
}

// M28: when the host has answered another message, the one that it failed waits for
// its own time, though it is the oldest.
func TestTheBlamedWaitsWhenTheHostAnswersOthers(t *testing.T) {
	b := newBench(t, Policy{AgeOrder: true, MaxThread: 1, Retries: []int{1, 30}})
	poison := b.addOld("a", time.Hour, History{Attempts: 1})
	for range 50 {
		b.add("a")
	}
	if b.take() != poison {
		t.Fatal("the oldest does not come first")
	}
	b.end(poison, HostDeferred, HostWait{})
	good, start := 0, b.now
	for good < 50 && b.now.Sub(start) < 5*time.Minute {
		v := b.until()
		if v == poison {
			b.end(v, HostDeferred, HostWait{})
			continue
		}
		good++
		b.end(v, Delivered, HostWait{})
	}
	assert.Equal(t, good, 50, "delivered within 5m of a wait of 30m")
}
