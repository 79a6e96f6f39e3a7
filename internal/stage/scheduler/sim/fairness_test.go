package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/thread"
)

const (
	ms     = time.Millisecond
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
	day    = 24 * hour
)

// begin is when every simulation of a test begins.
func begin() time.Time { return time.Unix(1_800_000_000, 0).UTC() }

// policy is that of the built-in scheduler.conf.
func policy(change func(*thread.Policy)) thread.Policy {
	p := thread.Policy{Interval: minute, Retries: []int{1, 1, 2, 3, 4, 8, 13, 21, 34}, Expiry: 3 * day, MaxRing: 100, MaxThread: 20, MaxUnproven: 50}
	if change != nil {
		change(&p)
	}
	return p
}

// manySlots returns those of the built-in scheduler.conf.
func manySlots() Ring { return Ring{Slots: 20, MaxTA: 50, IdleMax: 3 * minute} }

// row is a line of docs/fairness.md.
type row struct{ what, wanted, got string }

func (w *World) host(name string, h Host) *Host {
	if known := w.hosts[name]; known != nil {
		return known
	}
	h.Name = name
	if h.Latency == 0 {
		h.Latency, h.Spread, h.Connect = 100*ms, 0.5, 50*ms
	}
	w.hosts[name] = &h
	return &h
}

func atMost(t *testing.T, what string, got, want time.Duration) row {
	t.Helper()
	if got > want {
		t.Errorf("%s: %v, want at most %v", what, got, want)
	}
	return row{what, "at most " + brief(want), brief(got)}
}

func atLeast(t *testing.T, what string, got, want float64) row {
	t.Helper()
	if got < want {
		t.Errorf("%s: %.3f, want at least %v", what, got, want)
	}
	return row{what, fmt.Sprint("at least ", want), fmt.Sprintf("%.3f", got)}
}

// counted returns a number that must not be above another.
func counted(t *testing.T, what string, got, most int) row {
	t.Helper()
	if got > most {
		t.Errorf("%s: %d, want at most %d", what, got, most)
	}
	return row{what, fmt.Sprint("at most ", most), fmt.Sprint(got)}
}

func brief(d time.Duration) string {
	if d < 10*second {
		return d.Round(10 * ms).String()
	}
	return d.Round(second).String()
}

func drained(t *testing.T, w *World, limit time.Duration) {
	t.Helper()
	if !w.Drain(limit) {
		t.Errorf("%d deliveries are open after %v", w.Open(), w.Since())
	}
}

func TestThreadsOfARingShareIt(t *testing.T) { threadsOfARing(t) }

// Twenty hosts, of which each has twice the mail of the one before: while all have
// some, each gets the same.
func threadsOfARing(t *testing.T) []row {
	w := New(1, begin())
	r := w.Ring("smtp", policy(func(p *thread.Policy) { p.MaxRing = 40 }), manySlots())
	for i := range 20 {
		name := fmt.Sprintf("smtp/h%d", i)
		w.host(name, Host{})
		for range 1000 + 200*i {
			w.SendOne(name, r, name)
		}
	}
	w.Run(20 * second)
	var got []float64
	for i := range 20 {
		got = append(got, float64(w.Host(fmt.Sprintf("smtp/h%d", i)).Delivered))
	}
	return []row{atLeast(t, "Jain's index of 20 hosts with queues from 1000 to 4800, after 20 s", Jain(got), 0.99)}
}

func TestRingsShareAChannel(t *testing.T) { ringsOfAChannel(t) }

// Three clauses with one channel under maxchannel; one has ten times the mail.
func ringsOfAChannel(t *testing.T) []row {
	w := New(2, begin())
	names := []string{"big", "mid", "small"}
	for i, count := range []int{20000, 5000, 2000} {
		r := w.Ring(names[i], policy(func(p *thread.Policy) { p.MaxChannel = 30 }), manySlots())
		for k := range count {
			name := fmt.Sprintf("smtp/%s%d", names[i], k%7)
			w.Host(name).Latency = 100 * ms
			w.SendOne(names[i], r, name)
		}
	}
	w.Run(15 * second)
	var got []float64
	for _, n := range names {
		got = append(got, float64(w.Count(n, Delivered)))
	}
	return []row{atLeast(t, "Jain's index of three rings under maxchannel=30, one of them with 20,000 messages, after 15 s", Jain(got), 0.98)}
}

func TestARingGetsAgentsThoughAnotherHasThemAll(t *testing.T) { ringsUnderMaxTA(t) }

// One clause has mail enough to keep every agent busy for long; then another clause
// gets its first.
func ringsUnderMaxTA(t *testing.T) []row {
	w := New(3, begin())
	one := Ring{Slots: 1, Overfeed: 10, MaxTA: 8, IdleMax: 3 * minute}
	a, b := w.Ring("a", policy(nil), one), w.Ring("b", policy(nil), one)
	for i := range 20000 {
		name := fmt.Sprintf("a/h%d", i%10)
		w.host(name, Host{})
		w.SendOne("a", a, name)
	}
	w.host("b/h", Host{})
	w.At(10*second, func() { w.SendOne("b", b, "b/h") })
	w.Run(60 * second)
	rows := []row{atMost(t, "first delivery of a clause while another has all agents (maxta=8)", w.Waits("b").Max(), 3*second)}
	w = New(19, begin())
	one.MaxTA = 2
	for i := range 4 {
		name := fmt.Sprintf("c%d/h", i)
		r := w.Ring(name, policy(nil), one)
		w.host(name, Host{})
		for range 1000 {
			w.SendOne(name, r, name)
		}
	}
	w.Run(60 * second)
	var got []float64
	for i := range 4 {
		got = append(got, float64(w.Count(fmt.Sprintf("c%d/h", i), Delivered)))
	}
	return append(rows, atLeast(t, "Jain's index of four clauses that share two agents (maxta=2), after 60 s", Jain(got), 0.95))
}

func TestNeitherNewNorOldStarves(t *testing.T) { newAgainstOld(t) }

// A host with 5000 messages from before that takes 50 a second, and 10 new ones a
// second of another sender: both get on, by age or shuffled; the new ones wait
// no longer than the backlog lasts.
func newAgainstOld(t *testing.T) []row {
	run := func(ageOrder bool) *World {
		w := New(4, begin())
		r := w.Ring("smtp", policy(func(p *thread.Policy) { p.AgeOrder = ageOrder; p.MaxThread = 10 }), manySlots())
		w.host("smtp/h", Host{Latency: 200 * ms})
		for i := range 5000 {
			w.Send(Message{Group: "old", Accepted: begin().Add(-hour - time.Duration(i)*second), To: []Destination{{Ring: r, Name: "smtp/h"}}})
		}
		for i := range 600 {
			w.At(time.Duration(i)*100*ms, func() { w.SendOne("new", r, "smtp/h") })
		}
		drained(t, w, hour)
		return w
	}
	shuffled, aged := run(false), run(true)
	oldest := func(w *World) time.Duration {
		var last time.Time
		for _, l := range w.Deliveries {
			if l.Group == "old" && l.Done.After(last) {
				last = l.Done
			}
		}
		return last.Sub(begin())
	}
	return []row{
		atMost(t, "shuffled: median wait of the new mail", shuffled.Waits("new").At(0.5), 2*second),
		atMost(t, "shuffled: the last of the old mail is delivered after", oldest(shuffled), 125*second),
		atMost(t, "ageorder: the last of the old mail is delivered after", oldest(aged), 125*second),
		atMost(t, "ageorder: the longest wait of the new mail", aged.Waits("new").Max(), 2*second),
	}
}

func TestWhatIsAlwaysPutOffDoesNotDelayTheNew(t *testing.T) { deferredAgainstNew(t) }

// 20,000 full mailboxes of a host are tried again and again; new mail to it goes.
func deferredAgainstNew(t *testing.T) []row {
	w := New(5, begin())
	r := w.Ring("smtp", policy(nil), manySlots())
	h := w.host("smtp/h", Host{})
	h.Decide = func(l *Delivery, _ time.Time) Verdict {
		if l.Group == "full" {
			return Verdict{Result: thread.Deferred}
		}
		return Verdict{}
	}
	for i := range 20000 {
		w.At(time.Duration(i)*180*ms, func() { w.SendOne("full", r, "smtp/h") })
	}
	for i := range 120 {
		w.At(hour+time.Duration(i)*minute, func() { w.SendOne("new", r, "smtp/h") })
	}
	w.Run(3*hour + 10*minute)
	return []row{atMost(t, "99th percentile of the wait of new messages beside 20,000 to full mailboxes", w.Waits("new").At(0.99), 2*second)}
}

func TestOneBigMessageLeavesRoomForSmallOnes(t *testing.T) { bigAgainstSmall(t) }

// A message to 10,000 hosts, and one to 10,000 recipients of one host, beside small
// ones.
func bigAgainstSmall(t *testing.T) []row {
	w := New(6, begin())
	r := w.Ring("smtp", policy(nil), manySlots())
	var to []Destination
	for i := range 10000 {
		name := fmt.Sprintf("smtp/h%d", i)
		w.host(name, Host{})
		to = append(to, Destination{Ring: r, Name: name})
	}
	w.Send(Message{Group: "big", To: to})
	for i := range 100 {
		name := fmt.Sprintf("smtp/small%d", i)
		w.host(name, Host{})
		w.At(second+time.Duration(i)*50*ms, func() { w.SendOne("small", r, name) })
	}
	drained(t, w, hour)
	rows := []row{atMost(t, "small messages beside one to 10,000 hosts: the longest wait", w.Waits("small").Max(), 2*second)}
	w = New(7, begin())
	r = w.Ring("smtp", policy(nil), manySlots())
	w.host("smtp/h", Host{}).PerRcpt = 20 * ms
	w.Send(Message{Group: "big", To: []Destination{{Ring: r, Name: "smtp/h", Rcpts: 10000}}})
	for i := range 100 {
		w.At(time.Duration(i)*100*ms, func() { w.SendOne("small", r, "smtp/h") })
	}
	drained(t, w, hour)
	return append(rows, atMost(t, "small messages beside one to 10,000 recipients of the same host: the longest wait", w.Waits("small").Max(), 2*second))
}

func TestSlowHostsDoNotBlockTheirRing(t *testing.T) { slowAgainstFast(t) }

// Z9: ten hosts that take a minute for each message could take every place of the
// ring; a fast host beside them loses little.
func slowAgainstFast(t *testing.T) []row {
	w := New(9, begin())
	r := w.Ring("smtp", policy(nil), manySlots())
	for i := range 10 {
		name := fmt.Sprintf("smtp/slow%d", i)
		w.host(name, Host{Latency: minute, Spread: 0.3})
		for range 500 {
			w.SendOne("slow", r, name)
		}
	}
	w.host("smtp/fast", Host{})
	for i := range 1200 {
		w.At(2*minute+time.Duration(i)*250*ms, func() { w.SendOne("fast", r, "smtp/fast") })
	}
	w.Run(8 * minute)
	fast := w.Waits("fast")
	return []row{
		atMost(t, "median wait of mail to a fast host beside ten that take a minute each", fast.At(0.5), 500*ms),
		atMost(t, "99th percentile of the same", fast.At(0.99), 5*second),
	}
}

// Random worlds: limits hold at every start, and every one drains.
func TestAnyWorldDrainsWithinItsLimits(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 99))
		w := New(seed, begin())
		p := policy(func(p *thread.Policy) {
			p.MaxRing, p.MaxThread, p.MaxChannel = 1+random.IntN(30), 1+random.IntN(10), random.IntN(2)*(1+random.IntN(30))
			p.AgeOrder = random.IntN(2) == 0
			p.Start, p.Jitter = random.IntN(8), random.IntN(50)
			if random.IntN(3) == 0 {
				p.HostRate = thread.Rate{N: 1 + random.IntN(20), Per: time.Duration(1+random.IntN(10)) * second}
			}
		})
		slots := Ring{Slots: []int{1, 4, 20}[random.IntN(3)], Overfeed: random.IntN(10), MaxTA: 2 + random.IntN(20), IdleMax: minute}
		rings := []*Ring{w.Ring("a", p, slots), w.Ring("b", p, slots)}
		running := func(h *Host) {
			if h.active > p.MaxThread {
				t.Errorf("seed %d: %d at once to %s, maxthr is %d", seed, h.active, h.Name, p.MaxThread)
			}
			if n := rings[0].Running() + rings[1].Running(); p.MaxChannel > 0 && n > p.MaxChannel {
				t.Errorf("seed %d: %d at once, maxchannel is %d", seed, n, p.MaxChannel)
			}
			for _, r := range rings {
				if r.Running() > p.MaxRing {
					t.Errorf("seed %d: %d at once, maxring is %d", seed, r.Running(), p.MaxRing)
				}
			}
			if len(w.agents) > slots.MaxTA {
				t.Errorf("seed %d: %d agents, maxta is %d", seed, len(w.agents), slots.MaxTA)
			}
		}
		began := map[*Host][]time.Time{}
		w.OnStart = func(_ *Delivery, h *Host) {
			running(h)
			if p.HostRate.N == 0 {
				return
			}
			list := append(began[h], w.Now())
			if n := len(list) - p.HostRate.N - 1; n >= 0 && list[len(list)-1].Sub(list[n]) < p.HostRate.Per-ms { // the core counts in milliseconds
				t.Errorf("seed %d: %d begun to %s in %v, hostrate is %d in %v", seed, p.HostRate.N+1, h.Name, list[len(list)-1].Sub(list[n]), p.HostRate.N, p.HostRate.Per)
			}
			began[h] = list
		}
		for i := range 15 {
			h := w.host(fmt.Sprintf("smtp/h%d", i), Host{Latency: time.Duration(1+random.IntN(3000)) * ms, Spread: 0.9,
				Connect: time.Duration(random.IntN(500)) * ms, Timeout: 30 * second, Capacity: random.IntN(2) * (1 + random.IntN(5))})
			if random.IntN(4) == 0 {
				from := time.Duration(random.IntN(600)) * second
				h.Down = []Outage{{from, from + time.Duration(random.IntN(7200))*second}}
			}
			h.Decide = func(*Delivery, time.Time) Verdict {
				return Verdict{Result: []thread.Result{thread.Delivered, thread.Delivered, thread.Delivered, thread.Deferred, thread.Failed}[random.IntN(5)]}
			}
		}
		for range 600 {
			w.At(time.Duration(random.IntN(1800))*second, func() {
				i := random.IntN(15)
				w.SendOne("", rings[i%2], fmt.Sprintf("smtp/h%d", i))
			})
		}
		w.Run(2 * hour)
		drained(t, w, 4*day)
		for _, r := range rings {
			assert.Equal(t, r.Running(), 0, "seed %d: run at the end", seed)
		}
	}
}
