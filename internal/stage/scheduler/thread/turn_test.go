package thread

import (
	"testing"
	"time"
)

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
	if small != 10 {
		t.Errorf("%d of 20 turns for small messages, want 10", small)
	}
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
	if good != 50 {
		t.Errorf("%d of 50 were delivered within 5m of a wait of 30m", good)
	}
}
