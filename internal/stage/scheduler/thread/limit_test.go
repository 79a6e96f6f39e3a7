package thread

import (
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// busyBench returns a thread with much to do whose host nothing is known of.
func busyBench(t *testing.T, p Policy) (*bench, *Thread) {
	b := newBench(t, p)
	for range 2000 {
		b.add("h")
	}
	return b, b.ring.threads[keyOf("smtp", "h")]
}

// K14: full mailboxes make a host get less, and never nothing. The limit of a host, after rounds in which all that runs is answered alike.
func TestLimitFollowsTheHost(t *testing.T) {
	type round struct {
		res  Result
		wait HostWait
	}
	served := round{res: Delivered}
	tests := map[string]struct {
		policy Policy
		rounds []round
		want   []int // deliveries at once in each round
	}{
		"starts at five, doubles":        {Policy{MaxThread: 30, Start: -1}, []round{served, served, served, served}, []int{5, 10, 20, 30}},
		"starts at most at maxthr":       {Policy{MaxThread: 3, Start: -1}, []round{served, served}, []int{3, 3}},
		"starts as told":                 {Policy{MaxThread: 30, Start: 2}, []round{served, served, served}, []int{2, 4, 8}},
		"no maxthr":                      {Policy{Start: 4}, []round{served, served, served}, []int{4, 8, 16}},
		"halved once by all of a round":  {Policy{MaxThread: 40, Start: 40}, []round{{HostDeferred, HostWait{}}, served}, []int{40, 1}},
		"grows by one after that":        {Policy{MaxThread: 8, Start: 8}, []round{{HostDeferred, HostWait{}}, served, served, served, served}, []int{8, 1, 4, 5, 6}},
		"full mailboxes halve it":        {Policy{MaxThread: 40, Start: 20}, []round{{Deferred, HostWait{}}, {Deferred, HostWait{}}, {Deferred, HostWait{}}, {Deferred, HostWait{}}, {Deferred, HostWait{}}}, []int{20, 20, 10, 10, 5}},
		"a failed message is an answer":  {Policy{MaxThread: 30, Start: 5}, []round{{Failed, HostWait{}}, served}, []int{5, 10}},
		"a host that is busy is no dead": {Policy{MaxThread: 16, Start: 16}, []round{{HostDeferred, HostWait{Busy: true}}, served}, []int{16, 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := busyBench(t, tt.policy)
			var got []int
			for _, r := range tt.rounds {
				running := append([]*Vertex{b.until()}, b.takeAll()...)
				got = append(got, len(running))
				for _, v := range running {
					b.end(v, r.res, r.wait)
				}
			}
			assert.Same(t, got, tt.want, "at once")
		})
	}
}

// A host that says 421 to some of many connections keeps the others, gets half as many,
// and is in no trouble; when it says so to the only one, it is.
func TestBusyHostIsGivenLess(t *testing.T) {
	b, th := busyBench(t, Policy{MaxThread: 20, Start: 20})
	running := b.takeAll()
	for _, v := range running[:5] {
		if r := b.end(v, HostDeferred, HostWait{Busy: true, Text: "421 too many connections"}); r.Host {
			t.Fatal("the thread waits")
		}
	}
	if th.Tries() != 0 || th.Limit() != 10 || b.take() != nil {
		t.Errorf("got %d tries, limit %d, want none and 10", th.Tries(), th.Limit())
	}
	for _, v := range running[5:12] {
		b.end(v, Delivered, HostWait{})
	}
	assert.Equal(t, len(b.takeAll()), 2, "messages begun when 8 were left")
	b, th = busyBench(t, Policy{MaxThread: 1})
	if r := b.end(b.take(), HostDeferred, HostWait{Busy: true}); !r.Host || th.Tries() != 1 {
		t.Error("the only connection was refused and the thread does not wait")
	}
}

// A host that was dead for long is one of which nothing is known when it answers; one
// that failed once goes on with half.
func TestLimitAfterTrouble(t *testing.T) {
	for failures, want := range map[int]int{1: 10, 3: 5} {
		b, th := busyBench(t, Policy{MaxThread: 20, Start: 5})
		th.limit = 20
		for range failures {
			for _, v := range append([]*Vertex{b.until()}, b.takeAll()...) {
				b.end(v, HostDeferred, HostWait{})
			}
		}
		b.end(b.until(), Delivered, HostWait{})
		assert.Equal(t, th.Limit(), want, "after %d failures in a row: limit", failures)
	}
}

// What is not used says nothing about what a host bears.
func TestLimitThatIsNotReachedDoesNotGrow(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 50, Start: 5})
	v := b.add("h")
	for range 100 {
		b.add("h")
		b.end(b.take(), Delivered, HostWait{})
	}
	assert.Equal(t, v.Thread.Limit(), 5)
}

// The limit of one host concerns no other.
func TestLimitIsOfOneHost(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 10, Start: 10})
	for range 20 {
		b.add("bad")
		b.add("good")
	}
	for _, v := range b.takeAll() {
		if v.Thread.Host == "bad" {
			b.end(v, HostDeferred, HostWait{})
		}
	}
	b.now = b.now.Add(time.Second)
	for host, want := range map[string]int{"good": 10, "bad": 5} {
		assert.Equal(t, b.ring.threads[keyOf("smtp", host)].Limit(), want, host)
	}
}

// What an agent comes to that was queued in it counts as well as what is taken.
func TestLimitGrowsWithWhatWasQueued(t *testing.T) {
	b := newBench(t, Policy{Start: 4})
	for range 20 {
		b.add("h")
	}
	v, w := b.take(), b.take()
	h := v.Thread
	queued := b.c.TakeMore(h, b.now)
	b.end(w, HostDeferred, HostWait{Busy: true})
	if h.Limit() != 2 {
		t.Fatalf("limit %d, want 2", h.Limit())
	}
	b.end(v, Delivered, HostWait{})
	b.c.Promote(queued, b.now)
	assert.Equal(t, h.peak, 1, "at once")
}
