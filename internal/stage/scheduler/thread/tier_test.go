package thread

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// places100 has the limits of the built-in policy, but that of a host.
func places100() Policy {
	return Policy{MaxRing: 100, MaxThread: 100, MaxUnproven: 50}
}

// mail takes in a message of an origin, each from another sender, to a host.
func (b *bench) mail(o Origin, host string, h History) *Vertex {
	b.n++
	m := &Message{Number: b.n, Stamp: b.now.UnixNano(), Open: 1, Total: 1, Sender: SenderKey(uint32(scatter(b.n)), o)}
	return b.c.Add(m, b.ring, "smtp", host, []Recipient{NewRecipient(100, "")}, h, b.now)
}

// proved has a host answer.
func (b *bench) proved(host string) {
	b.t.Helper()
	v := b.mail(Own, host, History{})
	if got := b.take(); got != v {
		b.t.Fatalf("%s is not tried", host)
	}
	b.end(v, Delivered, HostWait{})
}

// began counts deliveries by a name.
func began(list []*Vertex, name func(*Vertex) string) map[string]int {
	n := map[string]int{}
	for _, v := range list {
		n[name(v)]++
	}
	return n
}

// Whatever waits for hosts that fall silent, mail to a host that answers and own mail to a
// new host begin at once; and so they do in a scheduler that knows of no host yet.
func TestAtk3SilentHostsLeavePlaces(t *testing.T) {
	failed := func(b *bench) History {
		return History{Attempts: 2, Next: b.now.Add(-time.Second), HostTries: 2, HostText: "silent"}
	}
	fresh := func(*bench) History { return History{} }
	for name, c := range map[string]struct {
		origin  Origin
		history func(*bench) History
		most    int
	}{
		"reports to new hosts":               {Report, fresh, 25},
		"others' mail to new hosts":          {Relayed, fresh, 38},
		"own mail to new hosts":              {Own, fresh, 50},
		"reports to hosts that failed":       {Report, failed, 13},
		"others' mail to hosts that failed":  {Relayed, failed, 13},
		"own mail to hosts that had failed":  {Own, failed, 25},
		"reports to hosts that had answered": {Report, nil, 38},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, places100())
			b.proved("answers")
			if c.history == nil {
				for i := range 500 {
					b.proved(fmt.Sprint("silent", i))
				}
				c.history = fresh
			}
			for i := range 500 {
				b.mail(c.origin, fmt.Sprint("silent", i), c.history(b))
			}
			b.c.Advance(b.now)
			assert.Equal(t, len(b.takeAll()), c.most, "messages begun of 500")
			if b.ring.Hungry() {
				t.Error("an agent is wanted, and there is nothing for it")
			}
			for i := range 12 {
				for _, want := range []*Vertex{b.mail(Own, "answers", History{}), b.mail(Relayed, "answers", History{})} {
					if got := b.take(); got == nil || got.Thread != want.Thread {
						t.Fatalf("round %d: mail to a host that answers does not begin", i)
					}
				}
				if c.most == 50 {
					continue
				}
				if want := b.mail(Own, fmt.Sprint("new", i), History{}); b.take() != want {
					t.Fatalf("round %d: own mail to a new host does not begin", i)
				}
			}
		})
	}
}

// A report to a host that would answer begins beside those to hosts that are known not to.
func TestAtk3KnownSilentLeavePlacesToNew(t *testing.T) {
	b := newBench(t, places100())
	for i := range 500 {
		b.mail(Report, fmt.Sprint("silent", i), History{Attempts: 1, Next: b.now.Add(-time.Second), HostTries: 1})
	}
	b.c.Advance(b.now)
	b.takeAll()
	for i := range 12 {
		if want := b.mail(Report, fmt.Sprint("new", i), History{}); b.take() != want {
			t.Fatalf("report %d to a new host does not begin", i)
		}
	}
}

// What a host did is known while it has no mail, and counts at once for what runs.
func TestAtk3WhatHostsDidIsKnown(t *testing.T) {
	b := newBench(t, Policy{MaxRing: 8, MaxThread: 20, MaxUnproven: 2})
	b.proved("a")
	if len(b.ring.threads) != 0 {
		t.Fatal("the thread is still there")
	}
	for range 4 {
		b.mail(Relayed, "a", History{})
	}
	first := b.takeAll()
	if len(first) != 4 {
		t.Fatalf("%d to a host that answered begin, want 4", len(first))
	}
	// It falls silent: those that still run take places of hosts that did not answer.
	b.end(first[0], HostDeferred, HostWait{})
	assert.Equal(t, b.ring.places.low[0], 3, "places of hosts that do not answer")
	own := b.mail(Own, "new", History{})
	if b.take() != nil {
		t.Error("another host that is not known begins beyond the limit")
	}
	// It answers: they take none, and the other one goes.
	b.end(first[1], Delivered, HostWait{})
	assert.Equal(t, b.ring.places.low[0], 0, "places of hosts that do not answer")
	if b.c.Touched() == nil || b.take() == nil && own.Waiting() {
		t.Error("what waited for a place is forgotten")
	}
}

// A host that was told to be tried again is none that has answered.
func TestAtk3TriedAgainIsNotAnswered(t *testing.T) {
	b := newBench(t, places100())
	b.proved("a")
	v := b.mail(Own, "a", History{})
	b.take()
	b.end(v, HostDeferred, HostWait{})
	b.c.Kick(v.Thread, b.now)
	if b.take() != v {
		t.Fatal("it is not tried")
	}
	assert.Equal(t, b.ring.places.low[0], 1, "places of hosts that did not answer")
}

// Rings of one channel do not take all its places together.
func TestAtk3RingsOfAChannelLeavePlaces(t *testing.T) {
	b := newBench(t, Policy{})
	p := Policy{Interval: time.Minute, Retries: []int{1}, MaxChannel: 20, MaxRing: 20, MaxThread: 20, MaxUnproven: 10}
	rings := []*Ring{b.c.Ring("a", p), b.c.Ring("b", p)}
	for _, b.ring = range rings {
		for i := range 50 {
			b.mail(Report, fmt.Sprint("silent", i), History{})
			b.mail(Own, fmt.Sprint("gone", i), History{})
		}
	}
	got := began(b.feed(), func(v *Vertex) string { return fmt.Sprint(v.Message.Origin()) })
	if got["0"]+got["2"] != 10 || got["2"] > 5 {
		t.Fatalf("%v begin, want 10, and 5 reports at most", got)
	}
	// When one ends the other ring gets its turn.
	var running *Vertex
	b.c.Rings(func(r *Ring) {
		r.Threads(func(t *Thread) {
			for _, v := range t.list {
				if v.Running() && v.Message.Origin() == Own {
					running = v
				}
			}
		})
	})
	b.end(running, Failed, HostWait{})
	assert.Equal(t, len(b.feed()), 1, "begin when a place is free")
}

// Of one host own mail begins though the places for reports to such hosts are taken, and
// reports to a host are served though its other mail never ends.
func TestAtk3ReportsAndMailOfOneHost(t *testing.T) {
	b := newBench(t, places100())
	for i := range 500 {
		b.mail(Report, fmt.Sprint("silent", i), History{})
	}
	b.takeAll()
	for range 5 {
		b.mail(Report, "new", History{})
	}
	want := b.mail(Own, "new", History{})
	if got := b.takeAll(); len(got) != 1 || got[0] != want {
		t.Fatalf("%d begin, want own mail alone", len(got))
	}
	b = newBench(t, places100())
	b.proved("a")
	for range 100 {
		b.mail(Report, "a", History{})
		b.mail(Own, "a", History{})
	}
	reports := 0
	for range 100 {
		v := b.take()
		if v.Message.Origin() == Report {
			reports++
		}
		b.end(v, Delivered, HostWait{})
	}
	assert.Equal(t, reports, 25, "reports among 100")
}

// A thread that waits for such a place says so, and is not taken for one that is stuck.
func TestAtk3WaitingForAPlaceIsAState(t *testing.T) {
	b := newBench(t, places100())
	var last *Vertex
	for i := range 30 {
		last = b.mail(Report, fmt.Sprint("silent", i), History{})
	}
	b.takeAll()
	s := last.Thread.Stats(b.now)
	if s.State != NoPlace || s.Crowd == "" {
		t.Errorf("its state is %s, %q", s.State, s.Crowd)
	}
	if ready, running, _ := last.Thread.Could(b.now); ready+running > 0 {
		t.Error("it is said to be stuck")
	}
}

// One host that has not answered does not take all places that there are for such hosts,
// whatever waits for it.
func TestAtk3OneSilentHostLeavesPlaces(t *testing.T) {
	for unproven, most := range map[int]int{2: 1, 4: 1, 8: 2, 50: 12} {
		b := newBench(t, Policy{MaxRing: 2 * unproven, MaxThread: 100, MaxUnproven: unproven})
		for range 100 {
			b.mail(Relayed, "silent", History{})
		}
		assert.Equal(t, len(b.takeAll()), most, "places of %d for one host", unproven)
		if want := b.mail(Relayed, "new", History{}); b.take() != want {
			t.Errorf("%d places: mail to another host does not begin", unproven)
		}
	}
}

// The smallest limits let everything go.
func TestAtk3OnePlaceIsEnough(t *testing.T) {
	for _, unproven := range []int{1, 2, 3, 4} {
		b := newBench(t, Policy{MaxRing: unproven, MaxThread: 1, MaxUnproven: unproven})
		for o := Own; o <= Report; o++ {
			for i := range 3 {
				b.mail(o, fmt.Sprint("h", i), History{})
				b.mail(o, fmt.Sprint("failed", i), History{Attempts: 1, Next: b.now.Add(-time.Second), HostTries: 1})
			}
		}
		b.c.Advance(b.now)
		n := 0
		for v := b.take(); v != nil; v = b.take() {
			b.end(v, Delivered, HostWait{})
			n++
		}
		assert.Equal(t, n, 18, "%d places: delivered of 18", unproven)
	}
}
