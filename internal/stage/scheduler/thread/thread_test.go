package thread

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// bench drives a core on a virtual clock.
type bench struct {
	t    testing.TB
	c    *Core
	ring *Ring
	now  time.Time
	n    uint64
}

func newBench(t testing.TB, p Policy) *bench {
	if p.Interval == 0 {
		p.Interval = time.Minute
	}
	if p.Retries == nil {
		p.Retries = []int{1, 1, 2, 3}
	}
	if p.Start == 0 {
		p.Start = 1 << 20
	}
	if p.Jitter == 0 {
		p.Jitter = 12
	}
	b := &bench{t: t, c: New(rand.New(rand.NewPCG(1, 2))), now: time.Unix(1_800_000_000, 0)}
	b.ring = b.c.Ring("ring", p)
	return b
}

// add takes in a message, accepted now, with one recipient for the host.
func (b *bench) add(host string) *Vertex { return b.addOld(host, 0, History{}) }

func (b *bench) addOld(host string, age time.Duration, h History) *Vertex {
	b.n++
	m := &Message{Number: b.n, Stamp: b.now.Add(-age).UnixNano(), Open: 1}
	return b.c.Add(m, b.ring, "smtp", host, []Recipient{NewRecipient(100, "")}, h, b.now)
}

func (b *bench) take() *Vertex { return b.c.Take(b.ring, b.now) }

// takeAll takes what may run now.
func (b *bench) takeAll() (list []*Vertex) {
	for v := b.take(); v != nil; v = b.take() {
		list = append(list, v)
	}
	return list
}

// end ends an attempt with one result for all recipients and lets the rest wait.
func (b *bench) end(v *Vertex, res Result, w HostWait) Round {
	for i := range v.Recipients() {
		v.Recipients()[i].Result = res
	}
	r := b.c.End(v, w, b.now)
	if r.Left > 0 && !r.Expired {
		b.c.Wait(v, b.now)
	}
	return r
}

// step moves the clock to what comes next and does it.
func (b *bench) step() (expired []*Vertex, due []*Message) {
	b.t.Helper()
	next := b.c.Next()
	if next.IsZero() {
		b.t.Fatal("nothing is to come")
	}
	if next.After(b.now) {
		b.now = next
	}
	return b.c.Advance(b.now)
}

// until moves the clock by steps until a vertex may run.
func (b *bench) until() *Vertex {
	b.t.Helper()
	for range 1000 {
		if v := b.take(); v != nil {
			return v
		}
		b.step()
	}
	b.t.Fatal("nothing to run in 1000 steps")
	return nil
}

// M26
func TestRetryWaitsFollowTheList(t *testing.T) {
	b := newBench(t, Policy{Retries: []int{1, 2, 5}})
	v := b.add("a")
	var got []int
	for range 40 {
		if b.until() != v {
			t.Fatal("another vertex ran")
		}
		before := b.now
		r := b.end(v, Deferred, HostWait{})
		wait := r.Next.Sub(before)
		units := int(wait / time.Minute)
		if wait < time.Duration(units)*time.Minute || wait >= time.Duration(units)*time.Minute*9/8 {
			t.Fatalf("wait %v is not within an eighth of whole intervals", wait)
		}
		got = append(got, units)
	}
	assert.Same(t, got[:3], []int{1, 2, 5}, "first waits")
	seen := map[int]bool{}
	for i := 3; i < len(got); {
		start := slices.Index([]int{1, 2, 5}, got[i])
		seen[start] = true
		for _, want := range []int{1, 2, 5}[start:] {
			if i < len(got) && got[i] != want {
				t.Fatalf("after the end: got %v, want a run to the end of the list from some place", got[3:])
			}
			i++
		}
	}
	if len(seen) != 3 {
		t.Errorf("re-entered at %v only", seen)
	}
}

// The trap "growth factor cut to an integer": waits are multiples of the interval,
// whatever part of a minute or an hour that is.
func TestWaitsKeepPartsOfTheirUnits(t *testing.T) {
	for _, interval := range []time.Duration{90 * time.Second, 100 * time.Millisecond, 7*time.Minute + 3*time.Second, 36 * time.Hour} {
		b := newBench(t, Policy{Interval: interval, Retries: []int{1, 2, 3, 5}})
		v := b.add("a")
		for _, n := range []time.Duration{1, 2, 3, 5} {
			if b.until() != v {
				t.Fatal("another vertex ran")
			}
			wait := b.end(v, Deferred, HostWait{}).Next.Sub(b.now)
			least := n * interval.Truncate(time.Millisecond)
			if wait < least-time.Millisecond || wait >= least*9/8+time.Millisecond {
				t.Errorf("interval %v: the wait of %d is %v, want %v and up to an eighth more", interval, n, wait, least)
			}
		}
	}
}

// M26: what failed together does not come back together.
func TestJitterSpreadsRetries(t *testing.T) {
	b := newBench(t, Policy{})
	for range 100 {
		b.add("a")
	}
	times := map[time.Time]bool{}
	for _, v := range b.takeAll() {
		times[b.end(v, Deferred, HostWait{}).Next] = true
	}
	if len(times) < 50 {
		t.Errorf("got %d different times of 100", len(times))
	}
}

// A5: attempts and next time are those of the former process.
func TestHistoryIsResumed(t *testing.T) {
	b := newBench(t, Policy{Retries: []int{1, 2, 30}})
	v := b.addOld("a", time.Hour, History{Attempts: 2, Next: b.now.Add(90 * time.Second)})
	if got := b.take(); got != nil {
		t.Fatal("ran before its time")
	}
	start := b.now
	b.until()
	assert.Equal(t, b.now.Sub(start), 90*time.Second, "waited")
	r := b.end(v, Deferred, HostWait{})
	if got := r.Next.Sub(b.now).Truncate(10 * time.Minute); r.Attempt != 3 || got != 30*time.Minute {
		t.Errorf("got attempt %d, wait %v; want 3 and the third wait", r.Attempt, got)
	}
}

// M27
func TestExpiry(t *testing.T) {
	day := 24 * time.Hour
	tests := map[string]struct {
		policy  Policy
		age     time.Duration
		history History
		attempt bool          // deliver what is ready and let it fail
		want    time.Duration // after which it expires; -1: not within 30 days
	}{
		"never tried, scheduler was down past expiry": {Policy{Expiry: day}, 5 * day, History{}, false, -1},
		"down past expiry, one attempt made then":     {Policy{Expiry: day}, 5 * day, History{}, true, 0},
		"tried before, expiry passed meanwhile":       {Policy{Expiry: day}, 5 * day, History{Attempts: 1}, false, 0},
		"tried before, in the middle of its wait":     {Policy{Expiry: day}, day - time.Hour, History{Attempts: 1, Next: time.Unix(1_800_000_000, 0).Add(9 * time.Hour)}, false, time.Hour},
		"tried again and again":                       {Policy{Expiry: day}, 0, History{}, true, day},
		"no expiry":                                   {Policy{}, 5 * day, History{Attempts: 3}, true, -1},
		"expiry2 wants no attempt":                    {Policy{Expiry2: 2 * day}, day, History{}, false, day},
		"expiry2 over a running expiry":               {Policy{Expiry: 9 * day, Expiry2: 2 * day}, 0, History{}, true, 2 * day},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.policy)
			v := b.addOld("a", tt.age, tt.history)
			start := b.now
			got := time.Duration(-1)
			for got < 0 && b.now.Sub(start) < 30*day {
				if list, _ := b.c.Advance(b.now); len(list) > 0 {
					got = b.now.Sub(start)
					break
				}
				if tt.attempt {
					if w := b.take(); w != nil && b.end(w, Deferred, HostWait{}).Expired {
						got = b.now.Sub(start)
						break
					}
				}
				next := b.c.Next()
				if next.IsZero() {
					break
				}
				b.now = next
			}
			assert.Equal(t, got, tt.want)
			if got >= 0 {
				b.c.Forget(v)
				if v.Message.Open != 0 || len(b.ring.threads) != 0 || !b.c.Next().IsZero() {
					t.Errorf("left behind: open %d, threads %d, next %v", v.Message.Open, len(b.ring.threads), b.c.Next())
				}
			}
		})
	}
}

// M27: an attempt that the host failed counts for all that waited for it.
func TestExpiryInAThreadInTrouble(t *testing.T) {
	b := newBench(t, Policy{Expiry: time.Hour, MaxThread: 20})
	for range 50 {
		b.addOld("dead", 2*time.Hour, History{})
	}
	b.now = b.now.Add(time.Second)
	if r := b.end(b.take(), HostDeferred, HostWait{}); !r.Expired {
		t.Error("the one that was tried did not expire")
	}
	n := 0
	for range 50 {
		if b.c.Next().IsZero() || n == 49 {
			break
		}
		list, _ := b.step()
		n += len(list)
		if b.now.Sub(time.Unix(1_800_000_000, 0)) > 10*time.Minute {
			break
		}
	}
	assert.Equal(t, n, 49, "expired of the others")
}

// Z18: a host that cannot be reached is not tried once per message.
func TestHostInTroubleIsProbedByOne(t *testing.T) {
	b := newBench(t, Policy{MaxThread: 20, Retries: []int{1, 2, 4}})
	for range 10_000 {
		b.add("dead")
	}
	first := b.takeAll()
	if len(first) != 20 {
		t.Fatalf("started %d, want 20", len(first))
	}
	var next time.Time
	for i, v := range first {
		r := b.end(v, HostDeferred, HostWait{Text: "refused"})
		if i == 0 {
			next = r.Next
		}
		if !r.Next.Equal(next) || !r.Host {
			t.Fatalf("answer %d moved the probe from %v to %v", i, next, r.Next)
		}
	}
	thread := first[0].Thread
	if thread.Tries() != 1 || thread.Trouble != "refused" {
		t.Errorf("got %d tries, %q", thread.Tries(), thread.Trouble)
	}
	var waits []int
	for range 3 {
		start := b.now
		probe := b.until()
		waits = append(waits, int(b.now.Sub(start)/time.Minute))
		if more := b.takeAll(); len(more) > 0 {
			t.Fatalf("%d ran beside the probe", len(more))
		}
		b.end(probe, HostDeferred, HostWait{})
	}
	assert.Same(t, waits, []int{1, 2, 4}, "intervals before the probe")
	b.end(b.until(), Delivered, HostWait{})
	if got := len(b.takeAll()); got != 20 || thread.Tries() != 0 {
		t.Errorf("after the host answered %d started, %d tries", got, thread.Tries())
	}
}

// A single recipient's deferral says nothing about the host (K14).
func TestRecipientDeferralLeavesTheThreadGoing(t *testing.T) {
	b := newBench(t, Policy{})
	b.add("a")
	b.add("a")
	b.end(b.take(), Deferred, HostWait{})
	if b.take() == nil {
		t.Error("the other message waits too")
	}
}

// M34
func TestRetryAtIsKeptAndDoesNotSpin(t *testing.T) {
	tests := map[string]struct {
		at       time.Duration
		min, max time.Duration
	}{
		"in ten minutes":  {10 * time.Minute, 10 * time.Minute, 10 * time.Minute},
		"in five seconds": {5 * time.Second, 5 * time.Second, 5 * time.Second},
		"now":             {0, time.Minute, 68 * time.Second},
		"in the past":     {-time.Hour, time.Minute, 68 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Policy{Retries: []int{1}})
			b.add("a")
			b.add("b")
			start, tries := b.now, 0
			for b.now.Sub(start) < 30*time.Minute {
				if v := b.take(); v != nil {
					tries++
					before := b.now
					r := b.end(v, HostDeferred, HostWait{Until: b.now.Add(tt.at)})
					if got := r.Next.Sub(before); got < tt.min || got > tt.max {
						t.Fatalf("wait %v, want %v to %v", got, tt.min, tt.max)
					}
					continue
				}
				b.step()
			}
			if want := 2 + 2*int(30*time.Minute/tt.min); tries > want {
				t.Errorf("two threads were tried %d times in 30 minutes, want at most %d", tries, want)
			}
		})
	}
}

// A later retryat of an attempt that ran beside prolongs the wait.
func TestRetryAtOfAnotherAttemptProlongs(t *testing.T) {
	b := newBench(t, Policy{})
	b.add("a")
	b.add("a")
	v, w := b.take(), b.take()
	b.end(v, HostDeferred, HostWait{})
	r := b.end(w, HostDeferred, HostWait{Until: b.now.Add(time.Hour)})
	assert.Equal(t, r.Next.Sub(b.now), time.Hour)
}

// A5: a thread's wait goes on after a restart.
func TestTroubleIsResumed(t *testing.T) {
	b := newBench(t, Policy{Retries: []int{1, 2, 4}})
	b.addOld("dead", time.Hour, History{Attempts: 2, Next: b.now.Add(7 * time.Minute), HostTries: 2, HostText: "refused"})
	b.add("dead")
	start := b.now
	v := b.until()
	if got := b.now.Sub(start); got != 7*time.Minute || v.Thread.Trouble != "refused" {
		t.Errorf("first try after %v (%q), want 7m", got, v.Thread.Trouble)
	}
	if b.take() != nil {
		t.Error("a second one ran beside the probe")
	}
	if r := b.end(v, HostDeferred, HostWait{}); r.Next.Sub(b.now).Truncate(time.Minute) != 4*time.Minute {
		t.Errorf("then %v, want 4m", r.Next.Sub(b.now))
	}
}
