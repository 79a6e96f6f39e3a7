package sim

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/thread"
)

func TestABlackHoleDelaysNobodyElse(t *testing.T) { blackHole(t) }

// M23: 10,000 messages to a host that never answers, then one to another host.
func blackHole(t *testing.T) []row {
	w := New(10, begin())
	r := w.Ring("smtp", policy(nil), manySlots())
	hole := w.host("smtp/hole", Host{Timeout: 30 * second, Down: []Outage{{0, Forever}}})
	for range 10000 {
		w.SendOne("hole", r, "smtp/hole")
	}
	w.host("smtp/good", Host{})
	w.At(minute, func() { w.SendOne("one", r, "smtp/good") })
	w.Run(5 * minute)
	if hole.Attempts == 0 {
		t.Error("the silent host was not tried")
	}
	return []row{atMost(t, "one message to another host, beside 10,000 to a host that never answers", w.Waits("one").Max(), second)}
}

func TestADeadHostCostsOneConnectPerInterval(t *testing.T) { deadHost(t) }

// Z18: 10,000 messages to a dead host over a day.
func deadHost(t *testing.T) []row {
	w := New(11, begin())
	p := policy(nil)
	r := w.Ring("smtp", p, manySlots())
	h := w.host("smtp/dead", Host{Timeout: 30 * second, Down: []Outage{{0, Forever}}})
	for i := range 10000 {
		w.At(time.Duration(i)*8*second, func() { w.SendOne("dead", r, "smtp/dead") })
	}
	w.Run(day)
	// The waits of the list, then re-entries at random: eleven intervals on average.
	// What ran when the host died comes besides.
	most := 24*60/8 + p.MaxThread
	rows := []row{counted(t, "connections in a day to a dead host with 10,000 messages", h.Connects, most)}
	w = New(12, begin())
	r = w.Ring("smtp", policy(nil), manySlots())
	w.host("smtp/back", Host{Timeout: 30 * second, Down: []Outage{{0, 2 * hour}}})
	for range 10000 {
		w.SendOne("back", r, "smtp/back")
	}
	drained(t, w, day)
	return append(rows, atMost(t, "the 10,000 are delivered, after a host was dead for 2 h, within", lastOf(w), 3*hour))
}

func TestOldestFirstPerDestination(t *testing.T) { oldestFirst(t) }

// Z3: with ageorder and one delivery at once, mail is begun in the order in which it
// was accepted, whatever order it was queued in.
func oldestFirst(t *testing.T) []row {
	w := New(13, begin())
	r := w.Ring("smtp", policy(func(p *thread.Policy) { p.AgeOrder, p.MaxThread = true, 1 }), manySlots())
	last := map[*Host]time.Time{}
	wrong := 0
	w.OnStart = func(l *Delivery, h *Host) {
		if l.Arrived.Before(last[h]) {
			wrong++
		}
		last[h] = l.Arrived
	}
	for i := range 2000 {
		name := fmt.Sprintf("smtp/h%d", i%5)
		w.host(name, Host{})
		w.Send(Message{Accepted: begin().Add(-time.Duration(i*7919%2000) * second), To: []Destination{{Ring: r, Name: name}}})
	}
	drained(t, w, hour)
	return []row{counted(t, "ageorder: of 2000 messages to 5 hosts, begun before an older one to the same host", wrong, 0)}
}

func TestOneHangingMessageDoesNotBlockTheRest(t *testing.T) { hangingMessage(t) }

// M28: the oldest message makes the host fall silent for ten minutes each time.
func hangingMessage(t *testing.T) []row {
	var rows []row
	for _, max := range []int{1, 20} {
		w := New(14, begin())
		r := w.Ring("smtp", policy(func(p *thread.Policy) { p.AgeOrder, p.MaxThread = true, max }), manySlots())
		h := w.host("smtp/h", Host{})
		h.Decide = func(l *Delivery, _ time.Time) Verdict {
			if l.Group == "poison" {
				return Verdict{Result: thread.HostDeferred, Took: 10 * minute}
			}
			return Verdict{}
		}
		w.Send(Message{Group: "poison", Accepted: begin().Add(-hour), To: []Destination{{Ring: r, Name: "smtp/h"}}})
		for range 1000 {
			w.SendOne("good", r, "smtp/h")
		}
		w.Run(4 * hour)
		assert.Equal(t, w.Count("good", Delivered), 1000, "messages that were delivered")
		rows = append(rows, atMost(t, fmt.Sprintf("maxthr=%d: 1000 messages behind one that hangs for 10 min each time", max), w.Waits("good").Max(), hour))
	}
	return rows
}

// M24
func TestLimitsHoldAtEverySample(t *testing.T) { limits(t) }

func limits(t *testing.T) []row {
	w := New(15, begin())
	p := policy(func(p *thread.Policy) { p.MaxChannel, p.MaxRing, p.MaxThread = 25, 15, 4 })
	set := Ring{Slots: 4, MaxTA: 7, IdleMax: minute}
	a, b := w.Ring("a", p, set), w.Ring("b", p, set)
	channel, ring, one, ta := 0, 0, 0, 0
	w.OnStart = func(_ *Delivery, h *Host) {
		channel, ring = max(channel, a.Running()+b.Running()), max(ring, a.Running(), b.Running())
		one, ta = max(one, h.active), max(ta, len(w.agents))
	}
	for i := range 5000 {
		name := fmt.Sprintf("smtp/h%d", i%8)
		w.host(name, Host{})
		w.SendOne("", []*Ring{a, b}[i%8%2], name)
	}
	drained(t, w, hour)
	if ta != 7 || one != 4 || ring != 15 || channel != 25 {
		t.Errorf("at most %d agents, %d to a host, %d in a ring, %d in the channel: the limits were not met", ta, one, ring, channel)
	}
	return []row{
		counted(t, "maxchannel=25, the most at once", channel, 25), counted(t, "maxring=15", ring, 15),
		counted(t, "maxthr=4", one, 4), counted(t, "maxta=7", ta, 7),
	}
}

func TestTheSameSeedGivesTheSameCourse(t *testing.T) {
	course := func() string {
		w := New(16, begin())
		r := w.Ring("smtp", policy(nil), manySlots())
		for i := range 300 {
			name := fmt.Sprintf("smtp/h%d", i%7)
			w.host(name, Host{Down: []Outage{{0, time.Duration(i%7) * minute}}})
			w.SendOne("", r, name)
		}
		w.Drain(day)
		return fmt.Sprint(w.Waits(""))
	}
	assert.Equal(t, course(), course(), "two courses")
}

func TestRatesAreKeptAndCostNoAttempt(t *testing.T) { rates(t) }

// Z10: hostrate=10/s and rate=15/s over two hosts.
func rates(t *testing.T) []row {
	w := New(17, begin())
	p := policy(func(p *thread.Policy) {
		p.HostRate, p.Rate = thread.Rate{N: 10, Per: second}, thread.Rate{N: 15, Per: second}
	})
	r := w.Ring("smtp", p, manySlots())
	began := map[*Host][]time.Time{}
	var all []time.Time
	w.OnStart = func(_ *Delivery, h *Host) {
		began[h] = append(began[h], w.Now())
		all = append(all, w.Now())
	}
	for i := range 600 {
		name := fmt.Sprintf("smtp/h%d", i%2)
		w.host(name, Host{})
		w.SendOne("", r, name)
	}
	drained(t, w, hour)
	attempts := 0
	for _, l := range w.Deliveries {
		attempts += l.Attempts
	}
	rows := []row{counted(t, "attempts for 600 messages", attempts, 600)}
	for i := range 2 {
		rows = append(rows, counted(t, fmt.Sprintf("hostrate=10/s: the most in any second to host %d", i+1), inAnySecond(began[w.Host(fmt.Sprintf("smtp/h%d", i))]), 10))
	}
	rows = append(rows, counted(t, "rate=15/s: the most in any second to both", inAnySecond(all), 15))
	return append(rows, atMost(t, "the 600 are delivered within", lastOf(w), 42*second))
}

// lastOf is when the last delivery was done with, since the beginning.
func lastOf(w *World) time.Duration {
	var last time.Time
	for _, l := range w.Deliveries {
		if l.Done.After(last) {
			last = l.Done
		}
	}
	return last.Sub(begin())
}

// inAnySecond returns the most times within a second, whenever that begins.
func inAnySecond(list []time.Time) (most int) {
	first := 0
	for i, at := range list {
		for at.Sub(list[first]) >= second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

func TestAHostThatTakesFewAtOnceIsFilledAndNotFlooded(t *testing.T) { fewAtOnce(t) }

// A host that answers 421 to the fourth connection, and maxthr=20.
func fewAtOnce(t *testing.T) []row {
	w := New(18, begin())
	r := w.Ring("smtp", policy(nil), manySlots())
	h := w.host("smtp/h", Host{Capacity: 3})
	for range 2000 {
		w.SendOne("", r, "smtp/h")
	}
	drained(t, w, hour)
	return []row{
		counted(t, "attempts refused, of 2000 messages to a host that takes 3 at once", h.Attempts-h.Delivered, 200),
		atMost(t, "all are delivered, which takes the host 67 s, within", lastOf(w), 5*minute),
	}
}
