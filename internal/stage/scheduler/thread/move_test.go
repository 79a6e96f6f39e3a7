package thread

import (
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// M29: a queueonly thread begins nothing until it is kicked, then what it has, and
// nothing that comes after that is done.
func TestQueueOnlyWaitsForAKick(t *testing.T) {
	b := newBench(t, Policy{QueueOnly: true, MaxThread: 1})
	v := b.add("h")
	b.add("h")
	if b.take() != nil || v.Thread.Stats(b.now).State != Paused || !b.c.Next().IsZero() {
		t.Fatalf("it is %s", v.Thread.Stats(b.now).State)
	}
	b.c.Kick(v.Thread, b.now)
	b.end(b.take(), Delivered, HostWait{})
	last := b.take()
	b.end(last, Deferred, HostWait{})
	b.add("h")
	if b.take() != nil {
		t.Error("it goes on by itself")
	}
	b.now = b.now.Add(time.Hour)
	b.c.Advance(b.now)
	if b.take() != nil {
		t.Error("it is tried again by itself")
	}
	b.c.Kick(last.Thread, b.now)
	if b.take() == nil || b.ring.threads[keyOf("smtp", "h")].Stats(b.now).State != Active {
		t.Error("a second kick does nothing")
	}
}

// M27: what is never asked for expires as what cannot be delivered does.
func TestPausedMailExpires(t *testing.T) {
	b := newBench(t, Policy{QueueOnly: true, Expiry: time.Hour})
	v := b.add("h")
	start := b.now
	expired, _ := b.step()
	if len(expired) != 1 || expired[0] != v || b.now.Sub(start) != time.Hour {
		t.Errorf("%d expired after %v", len(expired), b.now.Sub(start))
	}
}

// M29: a queueonly thread whose host fails is not probed by itself; Let has it deliver what
// is there.
func TestQueueOnlyHostIsNotProbed(t *testing.T) {
	b := newBench(t, Policy{QueueOnly: true})
	v := b.add("h")
	b.add("h")
	b.c.Let(v.Thread, b.now)
	b.end(b.take(), HostDeferred, HostWait{})
	b.now = b.now.Add(time.Hour)
	b.c.Advance(b.now)
	if b.take() != nil {
		t.Error("it is probed by itself")
	}
	b.c.Let(v.Thread, b.now)
	if b.take() == nil {
		t.Error("it is not tried when somebody asks")
	}
}

// M29: with wakeuprestartonly new mail waits for what waits already.
func TestNewMailJoinsWhatWaits(t *testing.T) {
	b := newBench(t, Policy{JoinWaiting: true})
	b.add("h")
	r := b.end(b.take(), Deferred, HostWait{})
	b.now = b.now.Add(10 * time.Second)
	b.add("h")
	if b.take() != nil {
		t.Error("it began at once")
	}
	if b.until(); !b.now.Equal(r.Next) {
		t.Errorf("it began after %v", b.now.Sub(r.Next))
	}
}

func TestPauseAndResume(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 2})
	v := b.add("h")
	b.add("h")
	b.add("h")
	b.take()
	b.c.Pause(v.Thread, b.now)
	if b.take() != nil {
		t.Error("it began after Pause")
	}
	b.c.Resume(v.Thread, b.now)
	if b.take() == nil {
		t.Error("it waits after Resume")
	}
}

// M30: a reload moves a thread: what waits, what runs and what the host said go along,
// and the new limits count.
func TestMoveTakesAllAlong(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 4, MaxRing: 4})
	for range 10 {
		b.add("h")
	}
	running := b.takeAll()
	th := running[0].Thread
	to := b.c.Ring("other", Policy{Interval: time.Minute, Retries: []int{3}, MaxThread: 6, MaxRing: 6, Start: 6, AgeOrder: true})
	b.c.Move(th, to, b.now)
	if b.ring.Running() != 0 || to.Running() != 4 || !b.c.Remove(b.ring) || th.Ring != to {
		t.Fatalf("the old ring has %d running, the new one %d", b.ring.Running(), to.Running())
	}
	b.ring = to
	assert.Equal(t, len(b.takeAll()), 2, "messages begun")
	for _, v := range running {
		b.end(v, Delivered, HostWait{})
	}
	assert.Equal(t, len(b.takeAll()), 4, "messages begun then")
	if r := b.end(oneRunning(th), Deferred, HostWait{}); r.Next.Sub(b.now) != 3*time.Minute {
		t.Errorf("waits %v, want 3m", r.Next.Sub(b.now))
	}
}

// M30, M34: a reload shortens the waits of a host that were decided on before, but none
// that the host has asked for.
func TestMoveKeepsWhatAHostAskedFor(t *testing.T) {
	for _, asked := range []bool{true, false} {
		b := newBench(t, Policy{Interval: time.Hour, Retries: []int{8}})
		v := b.add("h")
		b.take()
		var w HostWait
		if asked {
			w.Until = b.now.Add(8 * time.Hour)
		}
		b.end(v, HostDeferred, w)
		b.ring.Policy.Retries = []int{1}
		b.c.Move(v.Thread, b.ring, b.now)
		start, want := b.now, time.Hour
		if asked {
			want = 8 * time.Hour
		}
		if b.until(); b.now.Sub(start) < want || b.now.Sub(start) > want*9/8 {
			t.Errorf("asked %v: it is tried after %v, want %v", asked, b.now.Sub(start), want)
		}
	}
}

func oneRunning(t *Thread) (found *Vertex) {
	t.Vertices(0, func(v *Vertex) bool {
		if v.Running() {
			found = v
		}
		return found == nil
	})
	return found
}

// A ring that has the host already takes what does not run.
func TestMoveIntoAThreadOfTheHost(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 1})
	for range 3 {
		b.add("h")
	}
	run := b.take()
	to := b.c.Ring("other", Policy{Interval: time.Minute, Retries: []int{1}, MaxThread: 9, Start: 9})
	v := b.c.Add(&Message{Number: 99, Stamp: b.now.UnixNano(), Open: 1}, to, "smtp", "h", []Recipient{NewRecipient(1, "")}, History{}, b.now)
	b.c.Move(run.Thread, to, b.now)
	s := v.Thread.Stats(b.now)
	if s.Vertices != 3 || s.Ready != 3 || s.Recipients != 3 {
		t.Errorf("got %+v", s)
	}
	b.end(run, Delivered, HostWait{})
	if !b.c.Remove(b.ring) {
		t.Error("the old ring stays")
	}
}

func TestStats(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 3, Retries: []int{1, 5}})
	old := b.addOld("h", time.Hour, History{})
	b.add("h")
	m := &Message{Number: 50, Stamp: b.now.UnixNano(), Open: 3}
	b.c.Add(m, b.ring, "smtp", "h", []Recipient{NewRecipient(1, ""), NewRecipient(2, ""), NewRecipient(3, "")}, History{}, b.now)
	th := old.Thread
	want := func(what string, w Stats) {
		t.Helper()
		w.Oldest, w.Limit = time.Unix(0, old.Message.Stamp), 3
		got := th.Stats(b.now)
		if got.Until = got.Until.UTC(); got.Until.Year() < 2000 {
			got.Until = time.Time{}
		}
		w.Until = w.Until.UTC()
		if w.Until.Year() < 2000 {
			w.Until = time.Time{}
		}
		assert.Equal(t, got, w, what)
	}
	want("ready", Stats{Vertices: 3, Recipients: 5, Ready: 3, State: Active})
	list := b.takeAll()
	want("running", Stats{Vertices: 3, Recipients: 5, Running: 3, State: Active, Attempts: 3})
	var r Round
	for i, v := range list {
		if next := b.end(v, Deferred, HostWait{}); i == 0 || next.Next.Before(r.Next) {
			r = next
		}
	}
	want("put off", Stats{Vertices: 3, Recipients: 5, State: Waiting, Until: r.Next, Attempts: 3})
	for len(b.list(th, waiting)) > 0 && th.ready == 0 {
		b.step()
	}
	v := b.take()
	if v == nil {
		t.Fatal("nothing to take")
	}
	r = b.end(v, HostDeferred, HostWait{Text: "refused"})
	got := th.Stats(b.now)
	if got.State != Trouble || !got.Until.Equal(r.Next) || got.Tries != 1 || got.Trouble != "refused" {
		t.Errorf("in trouble: got %+v", got)
	}
	b.until()
	if got := th.Stats(b.now); got.State != Probing || got.Running != 1 {
		t.Errorf("probed: got %+v", got)
	}
}

// list returns the vertices of a thread in a state.
func (b *bench) list(t *Thread, s state) (list []*Vertex) {
	t.Vertices(0, func(v *Vertex) bool {
		if v.state == s {
			list = append(list, v)
		}
		return true
	})
	return list
}

// An operator who wants a host tried ends its patience too.
func TestRelentEndsPatience(t *testing.T) {
	b := newBench(t, Policy{})
	v := b.add("h")
	b.c.Throttle(v.Thread, b.now.Add(time.Hour), b.now)
	b.c.Relent(v.Thread, b.now)
	if b.take() != v {
		t.Error("it is not tried")
	}
}

// Recipients that may go now do not wait for others of their message that may not, which
// they are given with.
func TestWhoJoinsIsNotLate(t *testing.T) {
	b := newBench(t, Policy{})
	v := b.addOld("h", 0, History{Attempts: 3, Next: b.now.Add(3 * time.Minute)})
	v.Message.Open++
	b.c.Join(v, []Recipient{NewRecipient(200, "")}, b.now.Add(time.Minute), b.now)
	if !v.Next().Equal(b.now.Add(time.Minute)) {
		t.Errorf("it waits for %v, want a minute", v.Next().Sub(b.now))
	}
	b.c.Join(v, []Recipient{NewRecipient(300, "")}, time.Time{}, b.now)
	if b.take() != v || len(v.Recipients()) != 3 {
		t.Error("it waits still")
	}
}

// Pause lets nothing of the thread begin until Kick asks for it, and again when what
// there was then is over or waits. What runs goes on.
func (c *Core) Pause(t *Thread, now time.Time) {
	t.pausing, t.paused = true, true
	c.update(t, c.ms(now))
}

// Resume ends a pause.
func (c *Core) Resume(t *Thread, now time.Time) {
	t.pausing, t.paused = false, false
	c.update(t, c.ms(now))
}
