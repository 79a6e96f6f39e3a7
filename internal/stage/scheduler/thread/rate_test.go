package thread

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Z10: rate limits per host and per clause on the virtual clock: in no time of the given
// length begin more, and over a long time as many begin as may.
func TestRates(t *testing.T) {
	tests := map[string]struct {
		policy Policy
		hosts  int
		rate   Rate // of all, which the policy comes to
	}{
		"clause, 100 a minute":         {Policy{Rate: Rate{100, time.Minute}}, 7, Rate{100, time.Minute}},
		"clause, 7 a second":           {Policy{Rate: Rate{7, time.Second}}, 3, Rate{7, time.Second}},
		"clause, 3000 a second":        {Policy{Rate: Rate{3000, time.Second}}, 3, Rate{3000, time.Second}},
		"clause, 1 an hour":            {Policy{Rate: Rate{1, time.Hour}}, 2, Rate{1, time.Hour}},
		"host, 10 a second":            {Policy{HostRate: Rate{10, time.Second}}, 1, Rate{10, time.Second}},
		"host, 11 a minute":            {Policy{HostRate: Rate{11, time.Minute}, MaxThread: 2}, 1, Rate{11, time.Minute}},
		"hosts below a lower clause's": {Policy{HostRate: Rate{10, time.Second}, Rate: Rate{5, time.Second}}, 4, Rate{5, time.Second}},
		"clause above its hosts'":      {Policy{HostRate: Rate{10, time.Second}, Rate: Rate{50, time.Second}}, 2, Rate{20, time.Second}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.policy)
			n := 5 * tt.rate.N
			for i := range n {
				b.add(fmt.Sprint(i % tt.hosts))
			}
			var begun []time.Time
			for len(begun) < n {
				v := b.until()
				if v.Attempts != 0 || v.step != 0 {
					t.Fatal("to wait for a token counts as an attempt")
				}
				begun = append(begun, b.now)
				b.end(v, Delivered, HostWait{})
			}
			for i := tt.rate.N; i < n; i++ {
				if begun[i].Sub(begun[i-tt.rate.N]) < tt.rate.Per {
					t.Fatalf("%d began within %v", tt.rate.N+1, begun[i].Sub(begun[i-tt.rate.N]))
				}
			}
			took := begun[n-1].Sub(begun[0])
			if least := 4 * tt.rate.Per; took > least+tt.rate.Per+time.Duration(n)*time.Microsecond {
				t.Errorf("%d took %v, want at most %v", n, took, least+tt.rate.Per)
			}
		})
	}
}

// Z10: "throttled" is a state, not an attempt, and not the host's trouble.
func TestThrottledIsAState(t *testing.T) {
	b := newBench(t, Policy{HostRate: Rate{1, time.Minute}})
	v, w := b.add("h"), b.add("h")
	th := v.Thread
	first := b.take()
	b.end(first, Delivered, HostWait{})
	if b.take() != nil {
		t.Fatal("a second one began at once")
	}
	s := th.Stats(b.now)
	if s.State != Throttled || !s.Until.Equal(b.now.Add(time.Minute)) || s.Tries != 0 || s.Ready != 1 || s.Attempts != 1 {
		t.Errorf("got %+v", s)
	}
	if next := b.c.Next(); !next.Equal(b.now.Add(time.Minute)) {
		t.Errorf("wakes at %v, want in a minute", next.Sub(b.now))
	}
	if b.until() != w || w.Attempts != 0 {
		t.Error("it began with attempts behind it")
	}
	// The rate of one host does not hold for others.
	if b.add("other"); b.take() == nil {
		t.Error("another host waits too")
	}
}

// A host that asks for patience is not tried before; what runs goes on.
func TestThrottleUntil(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 5, Start: 1})
	v := b.add("h")
	b.add("h")
	b.take()
	b.c.Throttle(v.Thread, b.now.Add(time.Hour), b.now)
	b.end(v, Delivered, HostWait{})
	start := b.now
	if b.until(); b.now.Sub(start) != time.Hour {
		t.Errorf("the next began after %v, want 1h", b.now.Sub(start))
	}
}

// Z10: a rate holds though the host has no other mail between, and no agent is left.
func TestRateOutlivesItsThread(t *testing.T) {
	for _, p := range []Policy{{HostRate: Rate{1, time.Minute}}, {Rate: Rate{1, time.Minute}}} {
		b := newBench(t, p)
		b.add("h")
		b.end(b.take(), Delivered, HostWait{})
		if b.c.Remove(b.ring) {
			t.Fatal("the ring is gone, and its rate with it")
		}
		b.add("h")
		start := b.now
		b.end(b.until(), Delivered, HostWait{})
		assert.Equal(t, b.now.Sub(start), time.Minute, "time until the next")
		if b.c.Remove(b.ring) {
			t.Error("the ring is gone")
		}
		for b.c.Touched() != nil {
		}
		b.step()
		if b.c.Touched() != b.ring || !b.c.Remove(b.ring) || !b.c.Next().IsZero() {
			t.Error("the ring stays for ever")
		}
	}
}

// A ring without a token asks for no agent.
func TestThrottledRingIsNotHungry(t *testing.T) {
	b := newBench(t, Policy{Rate: Rate{1, time.Minute}})
	b.add("a")
	b.add("b")
	b.take()
	if b.ring.Hungry() {
		t.Error("it wants an agent for what it has no token for")
	}
	if b.take() != nil || b.ring.Hungry() || b.ring.Until(b.now).IsZero() {
		t.Error("it is hungry")
	}
	b.now = b.c.Next()
	b.c.Advance(b.now)
	if r := b.c.Touched(); r == nil {
		t.Error("it is not given")
	} else if !r.Hungry() || b.take() == nil {
		t.Error("it is not hungry when there is a token")
	}
}

// A clock that is set changes no rate.
func TestRateSurvivesAClockThatIsSet(t *testing.T) {
	for _, by := range []time.Duration{day(1), day(-1)} {
		b := newBench(t, Policy{HostRate: Rate{1, time.Minute}, Rate: Rate{2, time.Minute}})
		b.add("h")
		b.add("h")
		b.end(b.take(), Delivered, HostWait{})
		b.now = b.now.Add(by)
		b.c.Shift(by)
		start := b.now
		if b.until(); b.now.Sub(start) != time.Minute {
			t.Errorf("set by %v: the next began after %v, want 1m", by, b.now.Sub(start))
		}
	}
}

// M30: a rate that a new scheduler.conf raises is not waited for by the old one.
func TestNewRateCountsAtOnce(t *testing.T) {
	hourly := Rate{1, time.Hour}
	tests := map[string]struct{ was, is Policy }{
		"clause, faster": {Policy{Rate: hourly}, Policy{Rate: Rate{1, time.Second}}},
		"clause, none":   {Policy{Rate: hourly}, Policy{}},
		"host, faster":   {Policy{HostRate: hourly}, Policy{HostRate: Rate{1, time.Second}}},
		"host, none":     {Policy{HostRate: hourly}, Policy{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.was)
			b.add("h")
			b.add("h")
			b.end(b.take(), Delivered, HostWait{})
			if b.take() != nil {
				t.Fatal("the old rate does not count")
			}
			is := tt.is
			is.Interval, is.Retries = b.ring.Policy.Interval, b.ring.Policy.Retries
			b.c.Follow(b.ring, is, b.now)
			for r := b.c.Touched(); r != nil; r = b.c.Touched() {
				b.take() // nothing, where there is no token yet
			}
			b.now = b.now.Add(time.Second)
			b.c.Advance(b.now)
			if !b.ring.Hungry() && b.ring.Running() == 0 {
				t.Error("a ring without agents asks for none")
			}
			if b.ring.Running() == 0 && b.take() == nil {
				t.Error("the old rate counts still")
			}
		})
	}
}

// A time far away that an agent says, or that stands in a damaged file, does not end a
// host's mail for ever.
func TestHostIsNotLeftAloneForEver(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	tests := map[string]func(b *bench){
		"it failed": func(b *bench) {
			b.add("h")
			b.end(b.take(), HostDeferred, HostWait{Until: b.now.Add(century)})
		},
		"it has too many": func(b *bench) {
			for range 4 {
				b.add("h")
			}
			v := b.take()
			b.take()
			b.end(v, HostDeferred, HostWait{Until: b.now.Add(century), Busy: true})
		},
		"patience": func(b *bench) { b.c.Throttle(b.add("h").Thread, b.now.Add(century), b.now) },
		"a file":   func(b *bench) { b.addOld("h", 0, History{Attempts: 1, HostTries: 1, Next: b.now.Add(century)}) },
	}
	for name, fn := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Policy{})
			fn(b)
			b.ring.Threads(func(h *Thread) {
				if s := h.Stats(b.now); s.Until.IsZero() || s.Until.After(b.now.Add(farthest)) {
					t.Errorf("%s until %v", s.State, s.Until)
				}
			})
		})
	}
}
