package thread

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// M24
func TestLimitsAreNeverExceeded(t *testing.T) {
	c := New(rand.New(rand.NewPCG(3, 4)))
	now := time.Unix(1_800_000_000, 0)
	p := Policy{Interval: time.Minute, Retries: []int{1}, MaxChannel: 9, MaxRing: 6, MaxThread: 2}
	rings := []*Ring{c.Ring("r1", p), c.Ring("r2", p)}
	random := rand.New(rand.NewPCG(5, 6))
	for i := range uint64(400) {
		m := &Message{Number: i, Stamp: now.UnixNano(), Open: 1}
		c.Add(m, rings[i%2], "smtp", fmt.Sprint(random.IntN(20)), []Recipient{NewRecipient(1, "")}, History{}, now)
	}
	var active []*Vertex
	done, most := 0, 0
	for done < 400 {
		for r := c.Touched(); r != nil; r = c.Touched() {
			for v := c.Take(r, now); v != nil; v = c.Take(r, now) {
				active = append(active, v)
			}
		}
		perRing, perThread := map[*Ring]int{}, map[*Thread]int{}
		for _, v := range active {
			perRing[v.Thread.Ring]++
			perThread[v.Thread]++
			if perRing[v.Thread.Ring] > 6 || perThread[v.Thread] > 2 || len(active) > 9 {
				t.Fatalf("over a limit: ring %d, thread %d, channel %d", perRing[v.Thread.Ring], perThread[v.Thread], len(active))
			}
		}
		most = max(most, len(active))
		if len(active) == 0 {
			t.Fatalf("stuck after %d", done)
		}
		i := random.IntN(len(active))
		v := active[i]
		active = slices.Delete(active, i, i+1)
		v.Recipients()[0].Result = Delivered
		c.End(v, HostWait{}, now)
		done++
	}
	assert.Equal(t, most, 9, "most at once")
	if len(c.channels) != 0 || len(c.vertices.list) != 0 {
		t.Errorf("left: %d channels, %d vertices", len(c.channels), len(c.vertices.list))
	}
}

// M23, Z9, and the trap "one slow host that starves all":
// threads of a ring take turns, whatever their length.
func TestThreadsTakeTurns(t *testing.T) {
	b := newBench(t, Policy{MaxRing: 4, MaxThread: 4})
	for range 1000 {
		b.add("big")
	}
	first := b.takeAll()
	b.add("small")
	b.end(first[0], Delivered, HostWait{})
	b.end(first[1], Delivered, HostWait{})
	got := []string{b.take().Thread.Host, b.take().Thread.Host}
	if !slices.Contains(got, "small") {
		t.Errorf("next were %v, want small among them", got)
	}
}

// M28: the oldest message makes the host hang up; the others go nevertheless.
func TestOnePoisonousMessageDoesNotBlockTheRest(t *testing.T) {
	for _, ageOrder := range []bool{true, false} {
		b := newBench(t, Policy{AgeOrder: ageOrder, MaxThread: 1, Retries: []int{1}})
		poison := b.addOld("a", time.Hour, History{})
		for range 20 {
			b.add("a")
		}
		done := 0
		for range 500 {
			v := b.until()
			if v == poison {
				b.end(v, HostDeferred, HostWait{})
				continue
			}
			b.end(v, Delivered, HostWait{})
			if done++; done == 20 {
				break
			}
		}
		assert.Equal(t, done, 20, "ageorder %v: delivered of 20", ageOrder)
	}
}

// S8, and the trap "indexes into a list that was pruned": only the recipients that were
// deferred are tried again, and answers find theirs by offset.
func TestPartialOutcomeKeepsTheRest(t *testing.T) {
	b := newBench(t, Policy{})
	m := &Message{Number: 1, Stamp: b.now.UnixNano(), Open: 5}
	v := b.c.Add(m, b.ring, "smtp", "a", []Recipient{NewRecipient(10, ""), NewRecipient(20, ""), NewRecipient(30, "")}, History{}, b.now)
	b.take()
	for off, res := range map[int64]Result{10: Delivered, 20: Deferred, 30: Failed} {
		if v.Answered() {
			t.Error("answered too early")
		}
		v.Find(off).Result = res
	}
	if v.Find(15) != nil || v.Find(5) != nil || v.Find(31) != nil || !v.Answered() {
		t.Error("Find or Answered is wrong")
	}
	r := b.c.End(v, HostWait{}, b.now)
	b.c.Wait(v, b.now)
	if r.Left != 1 || m.Open != 3 || len(v.Recipients()) != 1 || v.Recipients()[0].Offset() != 20 {
		t.Errorf("got %+v, open %d, recipients %+v", r, m.Open, v.Recipients())
	}
	if b.until() != v || v.Recipients()[0].Result != None {
		t.Error("second attempt starts with an old result")
	}
}

func TestReminderComesOnceAtItsLastTime(t *testing.T) {
	b := newBench(t, Policy{})
	m := &Message{Number: 7}
	b.c.Remind(m, b.now.Add(time.Hour))
	b.c.Remind(m, b.now.Add(time.Minute))
	other := &Message{Number: 8}
	b.c.Remind(other, b.now.Add(30*time.Second))
	b.c.Remind(other, time.Time{})
	assert.Equal(t, b.c.Reminder(m).Sub(b.now), time.Minute, "time until the reminder")
	start := b.now
	_, due := b.step()
	if len(due) != 1 || due[0] != m || b.now.Sub(start) != time.Minute {
		t.Errorf("got %v after %v", due, b.now.Sub(start))
	}
	if !b.c.Next().IsZero() || !b.c.Reminder(m).IsZero() {
		t.Error("it comes again")
	}
}

func TestDropForgetsWhatWaits(t *testing.T) {
	b := newBench(t, Policy{})
	m := &Message{Number: 1, Stamp: b.now.UnixNano(), Open: 3}
	for i, host := range []string{"a", "b", "c"} {
		b.c.Add(m, b.ring, "smtp", host, []Recipient{NewRecipient(int64(i+1), "")}, History{}, b.now)
	}
	run := b.take()
	b.c.Remind(m, b.now.Add(time.Hour))
	b.c.Drop(m, b.now)
	if b.take() != nil || m.Open != 1 {
		t.Errorf("open %d after Drop, want the running one", m.Open)
	}
	b.end(run, Delivered, HostWait{})
	if m.Open != 0 || m.first != nil || len(b.ring.threads) != 0 || !b.c.Next().IsZero() || !b.c.Remove(b.ring) {
		t.Error("something is left")
	}
}

// M25: what an agent queues does not count, until the agent comes to it.
func TestQueuedBehindAnotherCountsWhenItsTurnComes(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 1, MaxRing: 2})
	for range 5 {
		b.add("a")
	}
	v := b.take()
	w := b.c.TakeMore(v.Thread, b.now)
	if w == nil || b.take() != nil || b.ring.Running() != 1 {
		t.Fatalf("running %d, want 1", b.ring.Running())
	}
	b.end(v, Delivered, HostWait{})
	b.c.Promote(w, b.now)
	if b.ring.Hungry() || b.take() != nil || b.ring.Running() != 1 {
		t.Errorf("running %d, want 1", b.ring.Running())
	}
	b.end(w, Delivered, HostWait{})
	if b.take() == nil {
		t.Error("nothing follows")
	}
}

// M14: ETRN.
func TestKickEndsEveryWait(t *testing.T) {
	b := newBench(t, Policy{})
	b.add("a")
	b.add("a")
	v := b.take()
	b.end(v, Deferred, HostWait{})
	b.end(b.take(), HostDeferred, HostWait{})
	if b.take() != nil {
		t.Fatal("does not wait")
	}
	b.c.Kick(v.Thread, b.now)
	assert.Equal(t, len(b.takeAll()), 2, "messages begun")
}

// M14: ETRN while a deferral is written down.
func TestKickReachesWhatIsBeingRecorded(t *testing.T) {
	b := newBench(t, Policy{})
	b.add("a")
	v := b.take()
	v.Recipients()[0].Result = Deferred
	b.c.End(v, HostWait{}, b.now)
	b.c.Kick(v.Thread, b.now)
	b.c.Wait(v, b.now)
	if b.take() != v {
		t.Error("it waits")
	}
}

// Memory is what a million recipients will need: see BenchmarkThreadFeed too.
func TestFeedAllocatesNothing(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 1 << 20, AgeOrder: true})
	for i := range 4000 {
		b.add(fmt.Sprint(i % 10))
	}
	got := testing.AllocsPerRun(1000, func() {
		v := b.take()
		v.Recipients()[0].Result = Deferred
		b.c.End(v, HostWait{}, b.now)
		b.c.Wait(v, b.now)
	})
	if got > 0.1 {
		t.Errorf("%v allocations for one attempt", got)
	}
}

func BenchmarkThreadFeed(b *testing.B) {
	for _, hosts := range []int{1, 1000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			x := newBench(b, Policy{MaxThread: 20, Expiry: 72 * time.Hour})
			names := make([]string, hosts)
			for i := range names {
				names[i] = fmt.Sprint("host", i)
			}
			var window []*Vertex
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				x.add(names[i%hosts])
				i++
				if v := x.take(); v != nil {
					window = append(window, v)
				}
				if len(window) == 20 {
					for _, v := range window {
						x.end(v, Delivered, HostWait{})
					}
					window = window[:0]
				}
			}
		})
	}
}

func TestHostsAreOneWhateverTheirCase(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 1})
	v, w := b.add("A.Example"), b.add("a.example")
	if v.Thread != w.Thread || v.Thread.Host != "A.Example" {
		t.Errorf("got threads %q and %q", v.Thread.Host, w.Thread.Host)
	}
	b.end(b.take(), Delivered, HostWait{})
	b.end(b.take(), Delivered, HostWait{})
	if len(b.ring.threads) != 0 {
		t.Error("the thread stays")
	}
}

// A wait that ended while no scheduler ran is a probe that is due, not an end of the
// trouble.
func TestTroubleThatIsDueIsProbed(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 20})
	b.addOld("dead", time.Hour, History{Attempts: 2, Next: b.now.Add(-time.Minute), HostTries: 2})
	for range 50 {
		b.add("dead")
	}
	b.c.Advance(b.now)
	assert.Equal(t, len(b.takeAll()), 1, "messages begun")
}
